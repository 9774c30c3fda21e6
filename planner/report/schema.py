"""Schema of reports, curves and fits, as msgspec structs.

The published JSON Schema, OpenAPI and the parser of saved reports are derived from these records. A class name without
`Section` or `Document` is its name in the published schemas. A section that was not requested is absent (UNSET).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from planner.errors import BadRequest

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Run = tuple[str, Integer]  # node, and which run of it
Device = str | dict[str, Any]  # name of a profile, or the profile


class PeakBySection(Struct):
    """Bytes of the peak step by use."""

    parameters: Integer
    gradients: Integer
    optimizer: Integer
    activations: Integer
    workspace: Integer
    reserve: Integer


class MeasuredSection(Struct):
    """Peak and time of one execution order."""

    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    peak_by: PeakBySection


class BaselineSection(MeasuredSection):
    """The graph without recomputation."""

    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(
            description="bytes that budgets in percent and savings refer to: the peak, with sizes rounded to the "
            "alignment of addresses if the runtime uses those"
        ),
    ] = UNSET


class ReferenceSection(Struct):
    """MXNet mirroring on the same graph, for comparison."""

    planner: str
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]


class BoundSection(Struct):
    """Proven lower bounds on time and peak."""

    seconds: Annotated[float, Meta(description="lower bound on the time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="lower bound on the overhead, as a fraction")]
    peak_bytes: Annotated[Integer, Meta(description="lower bound on the peak of any plan, in bytes")]
    kind: Annotated[str, Meta(description="algorithm that proved the bound on time")]
    order: Annotated[str, Meta(description="free: valid for any order of first runs; given: for that of the document")]
    proof: Annotated[
        str, Meta(description="certified: the verifier accepted all claims; solver: cancelled before that")
    ]
    certificate: Annotated[
        dict[str, Any], Meta(description="format and claims, checked by `remat verify --certificate`")
    ] = {}
    covers: Annotated[
        Literal["compute"] | UnsetType,
        Meta(description="present with copies: the bound is on the sum of compute, not on waiting for copies"),
    ] = UNSET


class BodyPlanSection(Struct):
    """Selected alternative of a forward node with bodies: the values saved for its backward node."""

    forward: Annotated[str, Meta(description="name of the forward node")]
    backward: Annotated[str, Meta(description="name of the backward node")]
    alternative: Annotated[Integer, Meta(description="number of the alternative; 0: the graph unchanged")]
    of: Annotated[Integer, Meta(description="number of alternatives")]
    saves: Annotated[list[str], Meta(description="names of the saved values")]
    saved_bytes: Annotated[Integer, Meta(description="bytes saved by all iterations")]


class PlanSection(Struct):
    """Execution order with recomputation, its memory and its time."""

    status: Annotated[
        Literal["proven", "found", "over_budget"],
        Meta(description="proven: no better plan exists; over_budget: no plan within the budget was found"),
    ]
    planner: Annotated[str, Meta(description="planner that found the plan")]
    seed: Integer
    reproducible: Annotated[bool, Meta(description="whether the same request gives the same plan, byte for byte")]
    stopped: Annotated[bool, Meta(description="whether the search was cancelled")]
    budget_bytes: Annotated[Integer | None, Meta(description="budget in bytes; null: the goal is max_overhead")]
    max_overhead: Annotated[float | None, Meta(description="overhead limit, as a fraction; null: the goal is a budget")]
    counts: Annotated[str, Meta(description="bytes that count: everything or activations")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    peak_step: Annotated[Integer, Meta(description="step of the peak, from 0")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_by: PeakBySection
    arena_bytes: Annotated[
        Integer | None, Meta(description="size of the arena after layout, in bytes; null: no layout")
    ]
    saved_bytes: Annotated[Integer, Meta(description="needed_bytes of the baseline minus those of the plan")]
    saved: Annotated[float, Meta(description="saved_bytes as a fraction of the needed_bytes of the baseline")]
    bound: BoundSection
    gap: Annotated[
        float | None,
        Meta(
            description="overhead minus its lower bound; for peak goals, peak over its lower bound minus 1; null: over "
            "the budget"
        ),
    ]
    smallest_budget_bytes: Annotated[
        Integer | None, Meta(description="smallest budget reached, in bytes, if over budget or for the lowest peak")
    ]
    smallest_budget_proven: Annotated[bool, Meta(description="whether no smaller budget can be reached")]
    binding_node: Annotated[str | None, Meta(description="node that determines the lower bound on the peak")]
    order: Annotated[list[Run], Meta(description="execution order: name of the node and number of its run, from 0")]
    kept: Annotated[list[str], Meta(description="forward values that the backward pass reads from their first run")]
    recomputed: Annotated[list[str], Meta(description="names of the nodes that run more than once")]
    choices: Annotated[list[BodyPlanSection], Meta(description="selected alternatives of nodes with bodies")]
    offloaded: Annotated[list[str], Meta(description="values copied to the host and back")]
    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(description="memory needed, in bytes: the arena if the runtime uses the planned addresses, else the peak"),
    ] = UNSET
    within_budget: Annotated[
        bool | UnsetType | None,
        Meta(description="whether needed_bytes is within the budget, and copies within host_memory; null: no budget"),
    ] = UNSET


class CopiesSection(Struct):
    """Copies to host memory and back, which run beside compute."""

    compute_seconds: Annotated[float, Meta(description="time of all nodes but copies, in seconds")]
    waiting_seconds: Annotated[float, Meta(description="time of the step in which no node computes, in seconds")]
    to_host_bytes: Annotated[Integer, Meta(description="bytes copied to the host")]
    from_host_bytes: Annotated[Integer, Meta(description="bytes copied back")]
    host_peak_bytes: Annotated[Integer, Meta(description="most bytes in host memory at once")]
    host_arena_bytes: Annotated[Integer | None, Meta(description="size of the arena in host memory; null: no layout")]


class OverlapSection(Struct):
    """Collectives that run beside compute."""

    communication_seconds: Annotated[float, Meta(description="time of all collectives, in seconds")]
    waiting_seconds: Annotated[float, Meta(description="time of the step in which no node computes, in seconds")]
    baseline_waiting_seconds: Annotated[float, Meta(description="the same of the step without a plan")]


class EnginesSection(Struct):
    """When the entries of the order run, as columns."""

    engine: Annotated[
        list[Literal["compute", "to_host", "from_host", "communication"]], Meta(description="engine; views: compute")
    ]
    start: Annotated[list[float], Meta(description="begin, in seconds")]
    end: Annotated[list[float], Meta(description="end, in seconds")]


class HolderSection(Struct):
    """Largest counted value that is live at a peak."""

    value: str
    bytes: Integer


class TimelineSection(Struct):
    """Memory over time."""

    step_bytes: Annotated[list[Integer], Meta(description="bytes live at each step of the plan")]
    baseline_step_bytes: Annotated[list[Integer], Meta(description="bytes live at each step of the baseline")]
    holder: HolderSection | None
    baseline_holder: HolderSection | None
    engines: EnginesSection | UnsetType = UNSET
    host_step_bytes: Annotated[
        list[Integer] | UnsetType, Meta(description="bytes in host memory at each step of the plan")
    ] = UNSET


class WorkspaceSection(Struct):
    """Workspaces as columns, one entry per step that has one."""

    step: list[Integer]
    bytes: list[Integer]
    offset: Annotated[list[Integer], Meta(description="offset in the arena, in bytes")]


class LayoutSection(Struct):
    """Arena layout as columns, one entry per instance of a value; steps are inclusive."""

    value: list[str]
    run: Annotated[list[Integer], Meta(description="run of the node that writes the instance, from 0")]
    from_step: list[Integer]
    to_step: list[Integer]
    bytes: list[Integer]
    offset: Annotated[list[Integer], Meta(description="offset in the arena, in bytes")]
    workspace: WorkspaceSection
    fragmentation: Annotated[float, Meta(description="arena over peak minus 1")]


class ReservationSection(Struct):
    """What allocators that choose addresses themselves reserve on the device, residents included."""

    allocated_bytes: Annotated[
        Integer, Meta(description="largest sum of blocks in use in PyTorch's caching allocator, in bytes")
    ]
    reserved_bytes: Annotated[Integer, Meta(description="most that it reserves with its default settings, in bytes")]
    expandable_reserved_bytes: Annotated[
        Integer, Meta(description="most that it reserves with expandable_segments:True, in bytes")
    ]
    first_fit_bytes: Annotated[Integer, Meta(description="arena of an allocator that takes the lowest gap, in bytes")]
    runs: Annotated[
        bool, Meta(description="whether the default settings serve every request within the device's memory")
    ]


class AllocatorSection(Struct):
    """Simulation of PyTorch's caching allocator for the runtime torch-eager."""

    plan: ReservationSection
    baseline: ReservationSection


class ModelInputSection(Struct):
    """An input of the planned graph."""

    name: Annotated[str, Meta(description="name of the value")]
    dtype: Annotated[str | None, Meta(description="element type; null: only the size in bytes is known")]
    shape: Annotated[list[Integer] | None, Meta(description="shape; null: only the size in bytes is known")]


class ModelSection(Struct):
    """Identity, size and inputs of the planned graph."""

    name: Annotated[str, Meta(description="name of the model: as given, that of its file, or that of the graph")]
    hash: Annotated[str, Meta(description="hash of the graph; a name given to the model does not change it")]
    nodes: Annotated[Integer, Meta(description="number of nodes")]
    values: Annotated[Integer, Meta(description="number of values")]
    inputs: Annotated[list[ModelInputSection], Meta(description="the first 16 inputs")]
    batch: Annotated[Integer | None, Meta(description="leading length that all inputs share; null: there is none")]
    graph_name: Annotated[
        str | UnsetType, Meta(description="name of the graph in its file, if the model has another")
    ] = UNSET


class GradientCheckSection(Struct):
    """Gradients of the training graph beside finite differences of its forward pass in float64."""

    status: Literal["agree", "different", "not compared"]
    directions: Annotated[Integer, Meta(description="random directions over all parameters")]
    error: Annotated[
        float | None, Meta(description="largest error relative to the 2-norm of gradient times direction; one digit")
    ]
    tolerance: Annotated[float | None, Meta(description="largest relative error explained by rounding")]
    why: Annotated[str, Meta(description="what differs, or why nothing was compared")]


class ExecutedSection(Struct):
    """Execution check: both graphs are executed and their results compared."""

    status: Literal["equal", "different", "not executed"]
    how: Annotated[str, Meta(description="method, such as arena, and a reduced batch size if any")]
    why: Annotated[str, Meta(description="reason for the status")]
    compared: Annotated[str | UnsetType, Meta(description="what was compared with what; empty: not executed")] = UNSET
    gradients: Annotated[
        GradientCheckSection | UnsetType | None,
        Meta(description="check of the gradients themselves, without effect on the status; null: not run"),
    ] = UNSET
    peak_bytes: Annotated[
        Integer | UnsetType | None,
        Meta(description="measured peak in bytes; null: not executed at the full batch size"),
    ] = UNSET


class BufferSection(Struct):
    """A shared buffer."""

    name: str
    bytes: Integer


class GradientPairSection(Struct):
    """A value and its gradient: a name, null for none, or the names of indices and values if row-sparse."""

    value: str
    gradient: str | dict[str, str] | None
    shape: list[Integer] | None
    dtype: str | None
    finalised_by: Annotated[str | None, Meta(description="last node that contributes to the gradient")]


class GradientReportSection(Struct):
    """Gradients, and the events that produced them: "added" for a node, "finalised" for a complete gradient."""

    pairs: list[GradientPairSection]
    events: Annotated[list[dict[str, Any]], Meta(description="events, in order")]


class SharingSection(Struct):
    """Buffer sharing; columns have one entry per value, and steps are inclusive."""

    bytes: Annotated[Integer, Meta(description="size of all shared buffers, in bytes")]
    separate_bytes: Annotated[Integer, Meta(description="size of all values without sharing, in bytes")]
    bound_bytes: Annotated[Integer, Meta(description="lower bound on the size of all buffers, in bytes")]
    peak_node: Annotated[str | None, Meta(description="node at which the most bytes are live")]
    buffers: list[BufferSection]
    value: list[str]
    buffer: Annotated[list[str], Meta(description="name of the buffer of each value")]
    from_step: list[Integer]
    to_step: list[Integer]
    value_bytes: list[Integer]
    free_after: Annotated[
        list[tuple[str, str]], Meta(description="pairs of a value and the node after which it can be freed")
    ]


class CheckpointSetSection(Struct):
    """A set of checkpoints and the plan it leads to."""

    checkpoints: list[str]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]


class CheckpointWorthSection(Struct):
    """Effect of adding or dropping one checkpoint."""

    value: str
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_bytes_more: Annotated[Integer, Meta(description="peak minus that of the given set, in bytes")]


class CheckpointAdviceSection(Struct):
    """Evaluation of the given checkpoints."""

    given: CheckpointSetSection
    best: Annotated[CheckpointSetSection, Meta(description="best set found of the same size")]
    dropping: Annotated[list[CheckpointWorthSection], Meta(description="effect of dropping each checkpoint")]
    adding: Annotated[list[CheckpointWorthSection], Meta(description="effect of adding a checkpoint, the ten best")]
    sets: Annotated[Integer, Meta(description="number of sets evaluated")]
    complete: Annotated[bool, Meta(description="whether every addition and every exchange of one was evaluated")]
    all_tried: Annotated[bool, Meta(description="whether all sets of this size were evaluated")]


class BindingSection(Struct):
    """Node that determines the lower bound on the peak."""

    node: Annotated[str | None, Meta(description="name of the node; null: bytes live at the end determine it")]
    bytes: Annotated[Integer, Meta(description="lower bound on the peak, in bytes")]
    next_node: Annotated[str | None, Meta(description="node that determines the bound without this node")]
    next_bytes: Annotated[Integer, Meta(description="lower bound on the peak without this node, in bytes")]


class LeverSection(Struct):
    """Plan after one change of the graph or the request."""

    lever: Annotated[str, Meta(description="technique")]
    parts: Annotated[Integer, Meta(description="number of micro-batches or loss chunks")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    seconds: Annotated[float, Meta(description="time of one training step with all its micro-batches, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the requested model's baseline time")]
    fits: Annotated[bool, Meta(description="whether the plan is within the budget")]
    executed: Annotated[
        ExecutedSection, Meta(description="comparison of loss and gradients with the unchanged training step")
    ]
    request: Annotated[dict[str, Any], Meta(description="request fields that select the technique")]
    needed_bytes: Annotated[
        Integer | UnsetType,
        Meta(description="bytes that decide whether the plan fits: with addresses, where the runtime uses them"),
    ] = UNSET
    offloaded: Annotated[list[str] | UnsetType, Meta(description="values copied to the host and back")] = UNSET


class LeverLeftOutSection(Struct):
    """A technique that was not evaluated."""

    lever: Annotated[str, Meta(description="technique")]
    why: Annotated[str, Meta(description="reason")]


class AdviceSection(Struct):
    """Other techniques that lower the peak."""

    binding: BindingSection
    levers: list[LeverSection]
    left_out: list[LeverLeftOutSection]


class ShapesRowSection(Struct):
    """The plan for one set of input shapes."""

    inputs: Annotated[
        dict[str, list[Integer] | None], Meta(description="shapes of all inputs; null: only the size is known")
    ]
    model: ModelSection
    baseline: MeasuredSection
    budget_bytes: Annotated[Integer | None, Meta(description="budget in bytes")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    arena_bytes: Annotated[Integer | None, Meta(description="size of the arena after layout, in bytes")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    bound_overhead: Annotated[float, Meta(description="lower bound on the overhead for this set, as a fraction")]
    bound_peak_bytes: Annotated[Integer, Meta(description="lower bound on the peak for this set, in bytes")]
    within: Annotated[bool, Meta(description="whether the plan is within the budget or the overhead limit")]
    executed: ExecutedSection
    order: Annotated[list[Run] | None, Meta(description="execution order for this set; null: the order of the plan")]
    graph: Annotated[
        dict[str, Any] | UnsetType, Meta(description="rewritten graph, if requested and the order differs")
    ] = UNSET


class ShapesReportSection(Struct):
    """One plan for several sets of input shapes."""

    worst: Annotated[Integer, Meta(description="index of the set with the highest peak, which this report describes")]
    within: Annotated[bool, Meta(description="whether all sets are within the budget or the overhead limit")]
    one_order: Annotated[bool, Meta(description="whether all sets have the same execution order")]
    peak_bytes: Annotated[Integer, Meta(description="highest peak of all sets, in bytes")]
    overhead: Annotated[float, Meta(description="largest overhead of all sets, as a fraction")]
    bound_overhead: Annotated[float, Meta(description="lower bound on the largest overhead, as a fraction")]
    sets: list[ShapesRowSection]


class IfKeptSection(Struct):
    """The plan without one recomputation."""

    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    seconds: Annotated[float, Meta(description="predicted time of one training step, in seconds")]
    fits: Annotated[
        bool | None,
        Meta(
            description="whether the plan is within the budget, with addresses found quickly if the runtime uses them; "
            "null: its peak is, addresses were not searched"
        ),
    ]


class RecomputedSection(Struct):
    """Benefit and cost of the recomputations of one node."""

    node: str
    runs: Annotated[Integer, Meta(description="number of runs")]
    freed_bytes: Annotated[Integer, Meta(description="bytes freed between runs, summed over all recomputations")]
    byte_steps: Annotated[Integer, Meta(description="freed bytes times the steps for which they are freed")]
    seconds: Annotated[float, Meta(description="extra time in seconds")]
    if_kept: Annotated[IfKeptSection | None, Meta(description="plan without these recomputations; null: not evaluated")]


class HeldSection(Struct):
    """A value that is live at the peak; steps are inclusive."""

    value: str
    bytes: Integer
    from_step: Integer
    to_step: Integer


class ExplainSection(Struct):
    """Recomputed nodes, the limiting node, and the values that are live at the peaks."""

    recomputed: list[RecomputedSection]
    binding: BindingSection
    holders: Annotated[list[HeldSection], Meta(description="largest values live at the peak of the plan")]
    baseline_holders: Annotated[list[HeldSection], Meta(description="largest values live at the peak of the baseline")]


class ReportDocument(Struct):
    """Report of a plan; sections that were not requested are absent."""

    format: Literal["remat-report/1"]
    id: str
    model: ModelSection
    runtime: Annotated[str, Meta(description="allocator model")]
    device: Annotated[Device, Meta(description="device profile")]
    fits: Annotated[bool, Meta(description="as fits_device")]
    request: Annotated[dict[str, Any], Meta(description="request fields as given")]
    baseline: Annotated[BaselineSection, Meta(description="the graph without recomputation")]
    reference: ReferenceSection
    plan: PlanSection
    checked: Annotated[bool, Meta(description="whether the independent checker accepted the plan")]
    executed: ExecutedSection
    warnings: list[str]
    elapsed: Annotated[dict[str, float], Meta(description="stage -> seconds")]
    fits_device: Annotated[
        bool | UnsetType, Meta(description="whether all bytes fit the memory of the device or of the request")
    ] = UNSET
    copies: CopiesSection | UnsetType = UNSET
    overlap: OverlapSection | UnsetType = UNSET
    timeline: TimelineSection | UnsetType = UNSET
    layout: LayoutSection | UnsetType = UNSET
    allocator: AllocatorSection | UnsetType = UNSET
    explain: ExplainSection | UnsetType = UNSET
    sharing: SharingSection | UnsetType = UNSET
    gradients: GradientReportSection | UnsetType = UNSET
    checkpoint_advice: CheckpointAdviceSection | UnsetType = UNSET
    advice: AdviceSection | UnsetType = UNSET
    shapes: ShapesReportSection | UnsetType = UNSET
    source: Annotated[dict[str, Any] | UnsetType, Meta(description="planned graph, after differentiation")] = UNSET
    graph: Annotated[dict[str, Any] | UnsetType, Meta(description="rewritten graph")] = UNSET


class CopiedPointSection(Struct):
    """Best plan with copies to the host within one budget."""

    within_budget: Annotated[
        bool, Meta(description="whether the memory needed is within the budget, and copies within host_memory")
    ]
    seconds: Annotated[float, Meta(description="predicted time: the end of the last task")]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    needed_bytes: Annotated[Integer, Meta(description="memory needed, in bytes, compared with the budget")]
    host_peak_bytes: Annotated[Integer, Meta(description="largest bytes in host memory")]
    offloaded: Annotated[list[str], Meta(description="values copied to the host and back")]


class CurvePointSection(Struct):
    """Best plan within one budget."""

    budget: Annotated[Any, Meta(description="budget as requested")]
    budget_bytes: Annotated[Integer, Meta(description="budget in bytes")]
    status: Literal["proven", "found", "over_budget"]
    overhead: Annotated[float, Meta(description="extra time as a fraction of the baseline time")]
    peak_bytes: Annotated[Integer, Meta(description="peak in bytes")]
    bound_overhead: Annotated[float, Meta(description="lower bound on the overhead, as a fraction")]
    plan: Annotated[str | PlanSection, Meta(description="path of the plan; on the command line, the plan itself")]
    bound_peak_bytes: Annotated[
        Integer | UnsetType, Meta(description="lower bound on the peak of any plan, in bytes")
    ] = UNSET
    needed_bytes: Annotated[
        Integer | UnsetType, Meta(description="memory needed, in bytes, compared with the budget: `plan.needed_bytes`")
    ] = UNSET
    copied: Annotated[
        CopiedPointSection | UnsetType | None,
        Meta(description="with `offload`: the plan with copies within the same budget; null where there can be none"),
    ] = UNSET


class CurveDocument(Struct):
    """Plans of one model at several budgets; neither time nor bound increases with the budget."""

    format: Literal["remat-curve/1"]
    model: ModelSection
    runtime: Annotated[str, Meta(description="allocator model")]
    device: Annotated[Device, Meta(description="device profile")]
    request: Annotated[dict[str, Any], Meta(description="request fields as given")]
    baseline: Annotated[BaselineSection, Meta(description="the graph without recomputation")]
    points: list[CurvePointSection]
    violations: Annotated[Integer, Meta(description="number of pairs of points with more time at the larger budget")]
    checked: Annotated[bool, Meta(description="whether the independent checker accepted all plans")]
    warnings: list[str]
    elapsed: Annotated[dict[str, float], Meta(description="stage -> seconds")]


class FitTrySection(Struct):
    """One size that was tried; figures are absent if the model does not accept the size."""

    size: Integer
    fits: bool
    why: Annotated[
        Literal["", "proven", "not_found", "refused"],
        Meta(description="why it does not fit: proven, no plan found, or refused by the model; empty: it fits"),
    ]
    said: Annotated[str, Meta(description="explanation of `why`")]
    peak_bytes: Annotated[Integer | UnsetType | None, Meta(description="peak of the plan, in bytes")] = UNSET
    needed_bytes: Annotated[
        Integer | UnsetType | None,
        Meta(description="memory needed by the plan, in bytes, compared with the memory limit: `plan.needed_bytes`"),
    ] = UNSET
    overhead: Annotated[float | UnsetType | None, Meta(description="overhead of the plan, as a fraction")] = UNSET
    bound_peak_bytes: Annotated[Integer | UnsetType | None, Meta(description="lower bound on the peak, in bytes")] = (
        UNSET
    )
    bound_overhead: Annotated[
        float | UnsetType | None, Meta(description="lower bound on the overhead, as a fraction")
    ] = UNSET


class FitDocument(Struct):
    """Largest size of a dimension that fits a memory limit within an overhead limit."""

    format: Literal["remat-fit/1"]
    model: ModelSection | None
    grow: Annotated[str, Meta(description="dimension to maximize, as requested")]
    dimension: Annotated[str | None, Meta(description="name of the symbolic dimension; null: the batch")]
    size: Annotated[Integer | None, Meta(description="largest size that fits; null: even 1 does not fit")]
    budget_bytes: Annotated[Integer | None, Meta(description="memory limit in bytes")]
    max_overhead: Annotated[float, Meta(description="overhead limit, as a fraction")]
    next: Annotated[FitTrySection | None, Meta(description="smallest size known not to fit")]
    tried: Annotated[list[FitTrySection], Meta(description="all sizes tried")]
    plan: Annotated[
        str | PlanSection | None, Meta(description="path of the plan; on the command line, the plan itself")
    ]
    checked: Annotated[bool, Meta(description="whether the independent checker accepted the plan")]
    warnings: list[str]
    stopped: Annotated[bool, Meta(description="whether the search was cancelled")]
    elapsed: Annotated[dict[str, float], Meta(description="stage -> seconds")]


class SavedReport(ReportDocument, kw_only=True):
    """A saved report with its source graph, as `remat verify` needs it."""

    source: dict[str, Any]


def parse_saved(document: Mapping[str, Any]) -> SavedReport:
    """The typed report. Raises BadRequest naming the first part that is missing or of another type.

    >>> parse_saved({"format": "remat-report/1"})
    Traceback (most recent call last):
    planner.errors.BadRequest: not_a_report at report: Object missing required field `id`; ...
    """
    try:
        report = msgspec.convert(dict(document), SavedReport)
    except msgspec.ValidationError as error:
        found, _, place = str(error).partition(" - at `$")
        raise _damaged(place.strip("`.") or "report", found) from error
    layout = None if isinstance(report.layout, UnsetType) else report.layout
    for name, columns in (("layout", layout), ("layout.workspace", layout and layout.workspace)):
        lengths = {field: len(column) for field, column in _columns(columns)}
        if len(set(lengths.values())) > 1:
            raise _damaged(name, "columns of unequal length: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
    return report


def schema_components(ref_template: str) -> dict[str, dict[str, Any]]:
    """JSON Schema of every record by its published name; `ref_template` holds `{name}`."""
    _, found = msgspec.json.schema_components([ReportDocument, CurveDocument, FitDocument], ref_template=ref_template)
    prefix, _, suffix = ref_template.partition("{name}")
    published = {f"{prefix}{name}{suffix}": f"{prefix}{_published(name)}{suffix}" for name in found}

    def renamed(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                key: published[value] if key == "$ref" else _published(value) if key == "title" else renamed(value)
                for key, value in part.items()
            }
        return [renamed(each) for each in part] if isinstance(part, list) else part

    return {_published(name): renamed(component) for name, component in found.items()}


def _published(name: str) -> str:
    return name.removesuffix("Section").removesuffix("Document")


def _columns(columns: Struct | None) -> list[tuple[str, list[Any]]]:
    if columns is None:
        return []
    found = ((name, getattr(columns, name)) for name in columns.__struct_fields__)
    return [(name, column) for name, column in found if isinstance(column, list)]


def _damaged(path: str, found: str) -> BadRequest:
    return BadRequest.one(
        "not_a_report",
        path,
        found,
        "a report with its source, as it was written",
        'write it with `remat plan -o`, or ask for {"return": ["plan", "source"]}',
    )
