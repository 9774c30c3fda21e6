"""Wire types: what OpenAPI, `/v1/schemas` and `remat schema` say of requests and answers.

Answers are written as bytes and never pass through these records; tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]
Length = Annotated[int, Field(ge=0, le=2**31 - 1)]
Percentage = Annotated[str, Field(pattern=r"^\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*%\s*$", examples=["50%"])]
ByteSize = Annotated[
    str, Field(pattern=r"^\s*[0-9]{1,9}(\.[0-9]{1,9})?\s*([KMG]?B|[KMG]iB)\s*$", examples=["8GiB", "8GB"])
]
PERCENT = r"^\s*(100|[1-9][0-9]?)(\.0{1,9})?\s*%\s*$"


class Strict(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class Open(BaseModel):
    """More fields may come."""

    model_config = ConfigDict(extra="allow")


class Finding(Open):
    """One fault: where it is, what stands there, what was expected, how to mend it."""

    path: str
    found: str
    expected: str
    remedy: str
    code: str


class Problem(Open):
    """RFC 9457, with every finding at once, ten at most."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: str | None
    code: str
    errors: Annotated[list[Finding], Field(max_length=10)]
    limit: dict[str, Any] | None


Section = Literal["plan", "timeline", "layout", "explain", "source", "graph"]


class RowsOf(Strict):
    """A gradient given as rows."""

    rows_of: str = Field(examples=["inputs[1]"])
    count: Length


class GradientRule(Strict):
    """What the gradient op of an op of your own reads and writes."""

    op: str = Field("", description="its type; the op's own name and Grad unless told")
    reads: list[str] = Field(["incoming"], description="inputs, outputs, incoming, or one such as inputs[0]")
    writes: Literal["inputs"] | list[str | RowsOf] = Field("inputs", description="inputs that get a gradient")
    needs_all_incoming: bool = Field(False, description="insists on the gradient of every output")


class Head(Strict):
    """A head gradient that is a constant."""

    value: Any = Field(1, description="one number for every element, or content")
    shape: list[Length] | None = None


class Differentiate(Strict):
    """What is differentiated by what, and how; see docs/concepts/gradients.md."""

    of: list[str] | dict[str, Head | str | float | None] | None = Field(None, description="targets")
    with_respect_to: list[str] | None = Field(None, description="every parameter unless told")
    head_gradients: dict[str, Head | str | float | None] | list[Head | str | float | None] = Field(
        {}, description="names of values, numbers, or null for ones; a list has one for each target"
    )
    no_gradient: list[str] = Field([], description="values no gradient passes")
    unreachable: Literal["null", "error", "zeros"] = Field("null", description="for what no target depends on")
    update: str | None = Field(None, description="short for the recipe's optimizer")
    gradient_rules: dict[str, GradientRule | Literal["none", "refused", "missing"]] = Field(
        {}, description="by op type, before what is known of it"
    )
    skip: list[str] | dict[str, int | list[int]] = Field(
        [], description='nodes left out: names, {"first": n} or {"range": [begin, end]}'
    )
    row_sparse: list[str] | Literal["all"] = Field([], description="values whose gradient may be rows")
    mixed: Literal["error", "densify"] = Field("error", description="rows and dense parts of one gradient")
    devices: Literal["error", "copy"] = Field("error", description="parts of one gradient on different devices")
    shared: Literal["one", "copies"] = Field("one", description="values with one and the same gradient")
    versions: Literal["keep", "strict"] = Field("keep", description="names written again before a gradient reads them")


Inputs = dict[str, list[Length] | Annotated[str, Field(pattern=r"^[0-9]{1,9}(x[0-9]{1,9})*$")]]
LeadingLength = Annotated[int, Field(ge=1, le=2**31 - 1)]


class ShapeSet(Strict):
    """One set of input shapes; what it leaves out is as the request says."""

    inputs: Inputs = Field({}, description="shapes of inputs")
    batch: LeadingLength | None = Field(None, description="leading length of every input")
    dims: dict[str, Length] = Field({}, description="lengths of symbolic dimensions")

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})


class Request(Strict):
    """What to ask for; every field may be left out."""

    budget: Annotated[str, Field(pattern=PERCENT)] | ByteSize | Bytes | Annotated[float, Field(gt=0, le=1)] | None = (
        Field(
            None,
            description="a share of the baseline peak, or bytes; 0: the lowest peak; a number with a point is a share",
        )
    )
    max_overhead: Percentage | Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        None, description="instead: the lowest peak within this much more time"
    )
    fits: str | Bytes | None = Field(None, description="instead: a device name or bytes", examples=["a100-80gb"])
    fraction_of: Literal["baseline", "reducible"] = Field("baseline", description="what a budget is a share of")
    counts: Literal["everything", "activations"] = Field("everything", description="whether residents count")
    order: Literal["free", "given"] | None = Field(None, description="given: first runs keep the document's order")
    phases: Literal["strict", "mixed"] | None = Field(None, description="strict: forward, backward, update")
    runtime: str = Field("arena", description="whose allocator is foreseen", examples=["arena", "torch-eager", "ort"])
    recipe: dict[str, Any] | None = Field(None, description="optimizer and its state: the whole step is planned")
    reserve: ByteSize | Bytes = Field(0, description="bytes set aside besides")
    planner: str = Field("auto", description="a name that /v1/planners lists")
    search_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(10.0, description="planning time")
    iterations: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = Field(
        None, description="instead of the clock: the same plan, byte for byte"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(0, description="of every random choice")
    device: str | dict[str, Any] = Field("a100-80gb", description="a name that /v1/devices lists, or an object")
    differentiate: bool | Differentiate | None = Field(None, description="make the training step first")
    loss: Annotated[str, Field(min_length=1)] | None = Field(None, description="scalar to differentiate")
    loss_chunks: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="parts in which the rows of a cross-entropy are taken, each forward and back before the next"
    )
    fuse_attention: bool = Field(False, description="attention as one node that keeps no scores")
    inputs: Inputs = Field({}, description="shapes of inputs", examples=[{"x": [16, 3, 224, 224]}])
    batch: LeadingLength | None = Field(None, description="leading length of every input")
    dims: dict[str, Length] = Field({}, description="lengths of symbolic dimensions")
    shapes: Annotated[list[ShapeSet], Field(max_length=16)] = Field(
        [],
        description="several sets of input shapes: one plan for all, see docs/concepts/several-shapes.md",
        examples=[[{"batch": 4}]],
    )
    checkpoints: list[str] = Field([], description="values that end segments")
    keep: list[str] = Field([], description="values never dropped")
    recompute: list[str] = Field([], description="values computed again")
    unknown_checkpoints: Literal["warn", "error"] = Field("warn", description="checkpoints the graph does not have")
    advise: bool = Field(False, description="also say what else would lower the peak, each lever with a full plan")
    advise_checkpoints: bool = Field(
        False, description="also say what each checkpoint is worth, and the best set of the same size"
    )
    share_buffers: bool = Field(False, description="also give values that are never live together one name")
    gradient_events: bool = Field(False, description="also say which node makes and finalises which gradient")
    layout: Literal["none", "fast", "best"] = Field("fast", description="addresses")
    execute: Literal["auto", "yes", "no"] = Field("no", description="run both graphs and compare")
    return_: Section | list[Section] = Field(["plan", "timeline"], alias="return", description="sections of the report")


class PeakBy(Open):
    """Bytes of the peak step by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    reserve: int


class Measured(Open):
    peak_bytes: int
    peak_step: int
    seconds: float
    peak_by: PeakBy


class Bound(Open):
    """Proven: no plan is below."""

    seconds: float
    overhead: float
    peak_bytes: int
    kind: str
    order: str
    proof: str = Field(description="certified: the verifier accepted the certificate; else solver")
    certificate: dict[str, Any] | None = Field(
        default=None, description="format and claims, which `remat verify --certificate` checks"
    )


class BodyPlan(Open):
    """What a forward node with bodies saves for its backward node, of the alternatives there are."""

    forward: str
    backward: str
    alternative: int = Field(description="0: what the graph saves as it stands")
    of: int
    saves: list[str]
    saved_bytes: int = Field(description="of all trips")


class Plan(Open):
    """The sequence, and what it costs."""

    status: Literal["proven", "found", "over_budget"]
    planner: str
    seed: int
    reproducible: bool
    budget_bytes: int | None
    counts: str
    peak_bytes: int
    arena_bytes: int | None
    seconds: float
    overhead: float
    saved_bytes: int
    saved: float
    bound: Bound
    gap: float | None
    smallest_budget_bytes: int | None
    smallest_budget_proven: bool
    binding_node: str | None
    order: list[tuple[str, int]] = Field(description="the whole sequence that runs: node and which run of it")
    kept: list[str]
    recomputed: list[str]
    choices: list[BodyPlan]
    offloaded: list[str]


class Holder(Open):
    value: str
    bytes: int


class Timeline(Open):
    step_bytes: list[int]
    baseline_step_bytes: list[int]
    holder: Holder | None = Field(default=None, description="the largest value that counts, at the peak")
    baseline_holder: Holder | None = None


class Layout(Open):
    """Where every value lies, one entry an instance; steps are inclusive."""

    value: list[str]
    run: list[int]
    from_step: list[int]
    to_step: list[int]
    bytes: list[int]
    offset: list[int]
    fragmentation: float


class Model(Open):
    name: str
    hash: str
    nodes: int
    values: int


class Executed(Open):
    status: Literal["equal", "different", "not executed"]
    how: str
    why: str
    peak_bytes: int | None = Field(
        None, description="that the run held, counted as it ran; null: none of this size ran"
    )


class Buffer(Open):
    name: str
    bytes: int


class GradientPair(Open):
    """A wanted value and its gradient, null where it has none; of a row-sparse one, names of indices and values."""

    value: str
    gradient: str | dict[str, str] | None
    shape: list[int] | None
    dtype: str | None
    finalised_by: str | None = Field(description="the node after which nothing is added to it")


class GradientReport(Open):
    """How gradients were made: events in order, "added" for a node, "finalised" for a gradient that is complete."""

    pairs: list[GradientPair]
    events: list[dict[str, Any]]


class Sharing(Open):
    """Values under shared names: one entry a value in the columns, steps inclusive."""

    bytes: int
    separate_bytes: int
    bound_bytes: int
    peak_node: str | None
    buffers: list[Buffer]
    value: list[str]
    buffer: list[str]
    from_step: list[int]
    to_step: list[int]
    value_bytes: list[int]
    free_after: list[tuple[str, str]] = Field(description="value, and the node after which it may be freed")


class CheckpointSet(Open):
    checkpoints: list[str]
    peak_bytes: int
    overhead: float


class CheckpointWorth(Open):
    value: str
    peak_bytes: int
    overhead: float
    peak_bytes_more: int = Field(description="than with the given checkpoints; below 0 it saves")


class CheckpointAdvice(Open):
    """What the given checkpoints are worth."""

    given: CheckpointSet
    best: CheckpointSet = Field(description="of the same size")
    dropping: list[CheckpointWorth]
    adding: list[CheckpointWorth] = Field(description="the best ten")
    sets: int = Field(description="sets that were judged")
    complete: bool = Field(description="no addition, and no exchange of one, was left untried")
    all_tried: bool = Field(description="best is the best of all sets of its size")


class Binding(Open):
    """The node no plan's peak goes below."""

    node: str | None = Field(description="null: what is held at the end decides")
    bytes: int
    next_node: str | None
    next_bytes: int = Field(description="as low as plans could go if it were not for the node")


class Lever(Open):
    """What the graph, or the question, changed in one way reaches."""

    lever: str
    parts: int = Field(description="micro-batches that a step takes, or chunks of its loss")
    peak_bytes: int
    seconds: float = Field(description="of a step, all micro-batches and one update")
    overhead: float = Field(description="over the baseline of the model as it was asked about")
    fits: bool
    executed: Executed = Field(description="whether loss and gradients are those of the step without the lever")
    offloaded: list[str] | None = Field(None, description="values that are copied to the host and back")
    request: dict[str, Any] = Field(description="fields to ask for it with")


class LeverLeftOut(Open):
    lever: str
    why: str


class Advice(Open):
    """What else would lower the peak."""

    binding: Binding
    levers: list[Lever]
    left_out: list[LeverLeftOut]


class ShapesRow(Open):
    """What the plan takes under one set of input shapes."""

    inputs: dict[str, list[int] | None] = Field(description="shapes of all inputs; null: only bytes are known")
    model: Model
    baseline: Measured
    budget_bytes: int | None
    peak_bytes: int
    arena_bytes: int | None
    seconds: float
    overhead: float
    bound_overhead: float = Field(description="no plan of this set within the budget takes less time")
    bound_peak_bytes: int
    within: bool = Field(description="within the budget, or the extra time")
    executed: Executed
    order: list[tuple[str, int]] | None = Field(description="the same runs in another order; null: as the plan")
    graph: dict[str, Any] | None = Field(None, description="rewritten, where that was asked for and the order differs")


class ShapesReport(Open):
    """One decision of what runs again, under several sets of input shapes."""

    worst: int = Field(description="the set with the highest peak, whose report this is")
    within: bool = Field(description="all sets are")
    one_order: bool
    peak_bytes: int = Field(description="the highest of all sets")
    overhead: float = Field(description="of the set that takes most")
    bound_overhead: float = Field(description="no decision within the budget takes less where it takes most")
    sets: list[ShapesRow]


class Report(Open):
    """The answer; sections not asked for are absent."""

    format: Literal["remat-report/1"]
    id: str
    model: Model
    runtime: str
    device: str | dict[str, Any]
    fits: bool
    request: dict[str, Any] = Field(description="the fields as they were asked")
    baseline: Measured
    reference: dict[str, Any] = Field(description="what mirroring reaches")
    plan: Plan
    checked: bool
    executed: Executed
    warnings: list[str]
    elapsed: dict[str, float]
    timeline: Timeline | None = None
    layout: Layout | None = None
    explain: dict[str, Any] | None = None
    sharing: Sharing | None = None
    gradients: GradientReport | None = None
    checkpoint_advice: CheckpointAdvice | None = None
    advice: Advice | None = None
    shapes: ShapesReport | None = None
    source: dict[str, Any] | None = None
    graph: dict[str, Any] | None = None


class CurvePoint(Open):
    """The best plan within one budget."""

    budget: Any = Field(description="as it was asked")
    budget_bytes: int
    status: Literal["proven", "found", "over_budget"]
    overhead: float
    peak_bytes: int
    bound_overhead: float = Field(description="no plan within the budget takes less time")
    plan: str | Plan = Field(description="path of the plan; on the command line the plan itself")


class Curve(Open):
    """Several budgets of one model: neither time nor bound rises with the budget."""

    format: Literal["remat-curve/1"]
    model: Model
    runtime: str
    device: str | dict[str, Any]
    request: dict[str, Any] = Field(description="the fields as they were asked")
    baseline: Measured
    points: list[CurvePoint]
    violations: int = Field(description="pairs of points of which the looser takes more time")
    checked: bool
    warnings: list[str]
    elapsed: dict[str, float]


class FitTry(Open):
    """One size that was tried; figures are absent where the model takes no such size."""

    size: int
    fits: bool
    why: Literal["", "proven", "not_found", "refused"] = Field(description="why it does not fit")
    said: str
    peak_bytes: int | None = None
    overhead: float | None = None
    bound_peak_bytes: int | None = None
    bound_overhead: float | None = None


class Fit(Open):
    """The largest size that fits a memory within some extra time."""

    format: Literal["remat-fit/1"]
    model: Model | None
    grow: str
    dimension: str | None = Field(description="the named dimension that grew; null: the batch")
    size: int | None = Field(description="null: not even 1 fits")
    budget_bytes: int | None
    max_overhead: float
    next: FitTry | None = Field(description="the smallest size known not to fit")
    tried: list[FitTry]
    plan: str | Plan | None = Field(description="path of the plan; on the command line the plan itself")
    checked: bool
    warnings: list[str]
    stopped: bool
    elapsed: dict[str, float]


class Incumbent(Open):
    overhead: float | None
    peak_bytes: int


class BoundSoFar(Open):
    overhead: float


class Progress(Open):
    seconds: float
    incumbent: Incumbent | None
    bound: BoundSoFar | None
    gap: float | None


class Operation(Open):
    """One job. GET is 200 whatever its state."""

    id: str
    kind: Literal["plan", "curve", "fit", "layout", "batch"]
    model: str | None = Field(description="name of the graph it is about; null of a layout and of a batch")
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    stage: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    progress: Progress | None
    result: str | None = Field(
        description="path of the plan, curve, fit or layout; a cancelled operation keeps its best so far"
    )
    error: Problem | None


class Operations(Open):
    """A page, newest first."""

    operations: list[Operation]
    next: str | None = Field(description="cursor of the next page")


class GraphRecord(Open):
    """What is kept of a graph, beside the graph."""

    id: str
    name: str
    nodes: int
    values: int
    format: str
    created_at: str


class Planner(Open):
    name: str
    summary: str


class Planners(Open):
    planners: list[Planner]


class Device(Open):
    name: str
    memory_bytes: int
    bytes_per_second: float
    flops_per_second: dict[str, float]
    kernel_seconds: float
    host_bytes_per_second: float = Field(description="to the host, and as many back; 0: not known")
    source: str


class Devices(Open):
    devices: list[Device]


class SavingsRow(Open):
    """What the plans of one group save; of `model`, `planner`, `budget` and `day` those that were asked for."""

    model: str | None = None
    planner: str | None = None
    budget: str | None = Field(default=None, description="as it was asked; null: something else was")
    day: str | None = None
    plans: int
    proven: int
    over_budget: int
    baseline_peak_bytes: int = Field(description="sum")
    peak_bytes: int = Field(description="sum")
    saved_bytes: int = Field(description="sum")
    saved: float | None = Field(description="mean share of the baseline's peak")
    overhead: float | None = Field(description="mean")
    gap: float | None = Field(description="mean")
    solver_seconds: float = Field(description="sum")


class Savings(Open):
    """A row a group, ascending."""

    group_by: list[Literal["model", "planner", "budget", "day"]]
    since: str | None = Field(alias="from")
    to: str | None
    rows: list[SavingsRow]


class Health(Open):
    status: Literal["ok", "ready"]


class Version(Open):
    remat: str
    api: str
    format: str
