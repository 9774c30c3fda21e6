"""Wire types of requests, operations and lists, from which OpenAPI and the JSON Schemas are made.

Reports, curves and fits are described by `planner.report.schema`. Answers are written as bytes and never pass through
these records; tests hold the two together.
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
    """Record without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Open(BaseModel):
    """Record to which later versions may add fields."""

    model_config = ConfigDict(extra="allow")


class Finding(Open):
    """One fault of the input: where it is, what was found, what was expected, and how to correct it."""

    path: str = Field(description="location in the input, such as nodes[3].op")
    found: str
    expected: str
    remedy: str
    code: str = Field(description="machine-readable kind, see docs/reference/errors.md")


class Problem(Open):
    """Problem object of RFC 9457, with at most ten findings."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: str | None = Field(description="path of the request")
    code: str = Field(description="machine-readable kind, see docs/reference/errors.md")
    errors: Annotated[list[Finding], Field(max_length=10)] = Field(description="findings in the input")
    limit: dict[str, Any] | None = Field(description="name and value of the exceeded limit")


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


class Incumbent(Open):
    """Best plan so far."""

    overhead: float | None = Field(description="extra time as a fraction of the baseline time")
    peak_bytes: int = Field(description="peak in bytes")


class BoundSoFar(Open):
    """Best proven lower bound so far."""

    overhead: float = Field(description="lower bound on the overhead, as a fraction")


class Progress(Open):
    """Progress of a search."""

    seconds: float = Field(description="search time in seconds")
    incumbent: Incumbent | None
    bound: BoundSoFar | None
    gap: float | None = Field(description="distance of the incumbent from the bound, as a fraction")


class Operation(Open):
    """A background job. GET returns 200 in every state."""

    id: str
    kind: Literal["plan", "curve", "fit", "layout", "batch"]
    model: str | None = Field(description="name of the graph; null for a layout or a batch")
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    stage: str | None = Field(description="current stage; null: not running")
    created_at: str = Field(description="ISO 8601 time")
    started_at: str | None = Field(description="ISO 8601 time")
    ended_at: str | None = Field(description="ISO 8601 time")
    progress: Progress | None
    result: str | None = Field(
        description="path of the plan, curve, fit or layout; for a cancelled operation, of its best result so far"
    )
    error: Problem | None = Field(description="problem of a failed operation")


class Operations(Open):
    """One page of operations, newest first."""

    operations: list[Operation]
    next: str | None = Field(description="cursor of the next page; null: last page")


class GraphRecord(Open):
    """Metadata of a stored graph."""

    id: str
    name: str
    nodes: int = Field(description="number of nodes")
    values: int = Field(description="number of values")
    format: str = Field(description="native, or the framework of the posted file")
    created_at: str = Field(description="ISO 8601 time")


class Planner(Open):
    name: str
    summary: str


class Planners(Open):
    planners: list[Planner]


class Device(Open):
    """Device profile."""

    name: str
    memory_bytes: int
    bytes_per_second: float = Field(description="memory bandwidth in bytes per second")
    flops_per_second: dict[str, float] = Field(description="element type -> peak FLOP/s")
    kernel_seconds: float = Field(description="launch time of a kernel in seconds")
    host_bytes_per_second: float = Field(description="bandwidth to the host per direction, bytes/s; 0: unknown")
    source: str = Field(description="data sheet of the figures")


class Devices(Open):
    devices: list[Device]


class SavingsRow(Open):
    """Savings of the plans of one group; of `model`, `planner`, `budget` and `day`, only those of `group_by`."""

    model: str | None = None
    planner: str | None = None
    budget: str | None = Field(default=None, description="budget as requested; null: another goal")
    day: str | None = Field(default=None, description="date of the first solve (UTC)")
    plans: int = Field(description="number of plans")
    proven: int = Field(description="number of plans proven optimal")
    over_budget: int = Field(description="number of plans over their budget")
    baseline_peak_bytes: int = Field(description="sum of the peaks without recomputation, in bytes")
    peak_bytes: int = Field(description="sum of the peaks, in bytes")
    saved_bytes: int = Field(description="sum of the savings, in bytes")
    saved: float | None = Field(description="mean saving as a fraction of the baseline peak")
    overhead: float | None = Field(description="mean extra time as a fraction of the baseline time")
    gap: float | None = Field(description="mean distance from the lower bound, as a fraction")
    solver_seconds: float = Field(description="sum of the solver times, in seconds")


class Savings(Open):
    """Savings, one row per group, ascending."""

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
