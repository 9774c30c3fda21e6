"""The one description of what a solve answers: reports, curves and fits, as msgspec structs.

The published JSON Schema, OpenAPI and the reading of saved reports follow from these records. A class name without
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
    """Bytes of the peak step by what they are for."""

    parameters: Integer
    gradients: Integer
    optimizer: Integer
    activations: Integer
    workspace: Integer
    reserve: Integer


class MeasuredSection(Struct):
    """Peak and time of one order."""

    peak_bytes: Integer
    peak_step: Integer
    seconds: float
    peak_by: PeakBySection


class ReferenceSection(Struct):
    """MXNet's mirroring on the same graph, for comparison."""

    planner: str
    peak_bytes: Integer
    peak_step: Integer
    seconds: float
    overhead: float


class BoundSection(Struct):
    """Proven: no plan is below."""

    seconds: float
    overhead: float
    peak_bytes: Integer
    kind: str
    order: str
    proof: Annotated[str, Meta(description="certified: the verifier accepted the certificate; else solver")]
    certificate: Annotated[
        dict[str, Any], Meta(description="format and claims, which `remat verify --certificate` checks")
    ] = {}


class BodyPlanSection(Struct):
    """What a forward node with bodies saves for its backward node, of the alternatives there are."""

    forward: str
    backward: str
    alternative: Annotated[Integer, Meta(description="0: what the graph saves as it stands")]
    of: Integer
    saves: list[str]
    saved_bytes: Annotated[Integer, Meta(description="of all iterations")]


class PlanSection(Struct):
    """The sequence, and what it costs."""

    status: Literal["proven", "found", "over_budget"]
    planner: str
    seed: Integer
    reproducible: bool
    stopped: Annotated[bool, Meta(description="the search was cancelled")]
    budget_bytes: Integer | None
    max_overhead: Annotated[float | None, Meta(description="the goal, where no budget is")]
    counts: str
    peak_bytes: Integer
    peak_step: Integer
    seconds: float
    overhead: float
    peak_by: PeakBySection
    arena_bytes: Integer | None
    saved_bytes: Integer
    saved: float
    bound: BoundSection
    gap: float | None
    smallest_budget_bytes: Integer | None
    smallest_budget_proven: bool
    binding_node: str | None
    order: Annotated[list[Run], Meta(description="the whole sequence that runs: node and which run of it")]
    kept: list[str]
    recomputed: list[str]
    choices: list[BodyPlanSection]
    offloaded: list[str]


class HolderSection(Struct):
    value: str
    bytes: Integer


class TimelineSection(Struct):
    """Bytes after each step; the largest value that counts, at each peak."""

    step_bytes: list[Integer]
    baseline_step_bytes: list[Integer]
    holder: HolderSection | None
    baseline_holder: HolderSection | None


class WorkspaceSection(Struct):
    """Workspace of tasks, one entry a step that has some."""

    step: list[Integer]
    bytes: list[Integer]
    offset: list[Integer]


class LayoutSection(Struct):
    """Where every value lies, one entry an instance; steps are inclusive."""

    value: list[str]
    run: list[Integer]
    from_step: list[Integer]
    to_step: list[Integer]
    bytes: list[Integer]
    offset: list[Integer]
    workspace: WorkspaceSection
    fragmentation: float


class ModelSection(Struct):
    name: str
    hash: str
    nodes: Integer
    values: Integer


class ExecutedSection(Struct):
    """What running both graphs showed."""

    status: Literal["equal", "different", "not executed"]
    how: str
    why: str
    peak_bytes: Annotated[
        Integer | UnsetType | None, Meta(description="counted during the run; null: no graph of this size ran")
    ] = UNSET


class BufferSection(Struct):
    name: str
    bytes: Integer


class GradientPairSection(Struct):
    """A value and its gradient, null where it has none; of a row-sparse one, names of indices and values."""

    value: str
    gradient: str | dict[str, str] | None
    shape: list[Integer] | None
    dtype: str | None
    finalised_by: Annotated[str | None, Meta(description="the node after which nothing is added to it")]


class GradientReportSection(Struct):
    """How gradients were made: events in order, "added" for a node, "finalised" for a gradient that is complete."""

    pairs: list[GradientPairSection]
    events: list[dict[str, Any]]


class SharingSection(Struct):
    """Values under shared names: one entry a value in the columns, steps inclusive."""

    bytes: Integer
    separate_bytes: Integer
    bound_bytes: Integer
    peak_node: str | None
    buffers: list[BufferSection]
    value: list[str]
    buffer: list[str]
    from_step: list[Integer]
    to_step: list[Integer]
    value_bytes: list[Integer]
    free_after: Annotated[list[tuple[str, str]], Meta(description="value, and the node after which it may be freed")]


class CheckpointSetSection(Struct):
    checkpoints: list[str]
    peak_bytes: Integer
    overhead: float


class CheckpointWorthSection(Struct):
    value: str
    peak_bytes: Integer
    overhead: float
    peak_bytes_more: Annotated[Integer, Meta(description="than with the given checkpoints; below 0 it saves")]


class CheckpointAdviceSection(Struct):
    """What the given checkpoints are worth."""

    given: CheckpointSetSection
    best: Annotated[CheckpointSetSection, Meta(description="of the same size")]
    dropping: list[CheckpointWorthSection]
    adding: Annotated[list[CheckpointWorthSection], Meta(description="the best ten")]
    sets: Annotated[Integer, Meta(description="sets that were evaluated")]
    complete: Annotated[bool, Meta(description="no addition, and no exchange of one, was left untried")]
    all_tried: Annotated[bool, Meta(description="best is the best of all sets of its size")]


class BindingSection(Struct):
    """The node no plan's peak goes below."""

    node: Annotated[str | None, Meta(description="null: the bytes present at the end decide")]
    bytes: Integer
    next_node: str | None
    next_bytes: Annotated[Integer, Meta(description="the lowest peak of plans if it were not for the node")]


class LeverSection(Struct):
    """What the graph, or the request, changed in one way reaches."""

    lever: str
    parts: Annotated[Integer, Meta(description="micro-batches that a step takes, or chunks of its loss")]
    peak_bytes: Integer
    seconds: Annotated[float, Meta(description="of a step, all micro-batches and one update")]
    overhead: Annotated[float, Meta(description="over the baseline of the model as requested")]
    fits: bool
    executed: Annotated[
        ExecutedSection, Meta(description="whether loss and gradients are those of the step without the lever")
    ]
    request: Annotated[dict[str, Any], Meta(description="fields that request it")]
    offloaded: Annotated[list[str] | UnsetType, Meta(description="values that are copied to the host and back")] = UNSET


class LeverLeftOutSection(Struct):
    lever: str
    why: str


class AdviceSection(Struct):
    """Other techniques that lower the peak."""

    binding: BindingSection
    levers: list[LeverSection]
    left_out: list[LeverLeftOutSection]


class ShapesRowSection(Struct):
    """What the plan takes under one set of input shapes."""

    inputs: Annotated[
        dict[str, list[Integer] | None], Meta(description="shapes of all inputs; null: only bytes are known")
    ]
    model: ModelSection
    baseline: MeasuredSection
    budget_bytes: Integer | None
    peak_bytes: Integer
    arena_bytes: Integer | None
    seconds: float
    overhead: float
    bound_overhead: Annotated[float, Meta(description="no plan of this set within the budget takes less time")]
    bound_peak_bytes: Integer
    within: Annotated[bool, Meta(description="within the budget, or the extra time")]
    executed: ExecutedSection
    order: Annotated[list[Run] | None, Meta(description="the same runs in another order; null: the order of the plan")]
    graph: Annotated[
        dict[str, Any] | UnsetType, Meta(description="rewritten, where that was requested and the order differs")
    ] = UNSET


class ShapesReportSection(Struct):
    """One decision of recomputation under several sets of input shapes."""

    worst: Annotated[Integer, Meta(description="the set with the highest peak, which this report describes")]
    within: Annotated[bool, Meta(description="all sets are")]
    one_order: bool
    peak_bytes: Annotated[Integer, Meta(description="the highest of all sets")]
    overhead: Annotated[float, Meta(description="the largest of all sets")]
    bound_overhead: Annotated[float, Meta(description="no decision within the budget has a smaller largest overhead")]
    sets: list[ShapesRowSection]


class IfKeptSection(Struct):
    """The plan without this recomputation."""

    peak_bytes: Integer
    seconds: float
    fits: bool


class RecomputedSection(Struct):
    """What the repeats of one node free and cost."""

    node: str
    runs: Integer
    freed_bytes: Integer
    byte_steps: Integer
    seconds: float
    if_kept: Annotated[IfKeptSection | None, Meta(description="null: not evaluated")]


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
    holders: list[HeldSection]
    baseline_holders: list[HeldSection]


class ReportDocument(Struct):
    """The answer; sections that were not requested are absent."""

    format: Literal["remat-report/1"]
    id: str
    model: ModelSection
    runtime: str
    device: Device
    fits: bool
    request: Annotated[dict[str, Any], Meta(description="the fields as requested")]
    baseline: MeasuredSection
    reference: ReferenceSection
    plan: PlanSection
    checked: bool
    executed: ExecutedSection
    warnings: list[str]
    elapsed: dict[str, float]
    timeline: TimelineSection | UnsetType = UNSET
    layout: LayoutSection | UnsetType = UNSET
    explain: ExplainSection | UnsetType = UNSET
    sharing: SharingSection | UnsetType = UNSET
    gradients: GradientReportSection | UnsetType = UNSET
    checkpoint_advice: CheckpointAdviceSection | UnsetType = UNSET
    advice: AdviceSection | UnsetType = UNSET
    shapes: ShapesReportSection | UnsetType = UNSET
    source: dict[str, Any] | UnsetType = UNSET
    graph: dict[str, Any] | UnsetType = UNSET


class CurvePointSection(Struct):
    """The best plan within one budget."""

    budget: Annotated[Any, Meta(description="as requested")]
    budget_bytes: Integer
    status: Literal["proven", "found", "over_budget"]
    overhead: float
    peak_bytes: Integer
    bound_overhead: Annotated[float, Meta(description="no plan within the budget takes less time")]
    plan: Annotated[str | PlanSection, Meta(description="path of the plan; on the command line the plan itself")]


class CurveDocument(Struct):
    """Several budgets of one model: neither time nor bound rises with the budget."""

    format: Literal["remat-curve/1"]
    model: ModelSection
    runtime: str
    device: Device
    request: Annotated[dict[str, Any], Meta(description="the fields as requested")]
    baseline: MeasuredSection
    points: list[CurvePointSection]
    violations: Annotated[Integer, Meta(description="pairs of points of which the looser takes more time")]
    checked: bool
    warnings: list[str]
    elapsed: dict[str, float]


class FitTrySection(Struct):
    """One size that was tried; figures are absent where the model takes no such size."""

    size: Integer
    fits: bool
    why: Annotated[Literal["", "proven", "not_found", "refused"], Meta(description="why it does not fit")]
    said: str
    peak_bytes: Integer | UnsetType | None = UNSET
    overhead: float | UnsetType | None = UNSET
    bound_peak_bytes: Integer | UnsetType | None = UNSET
    bound_overhead: float | UnsetType | None = UNSET


class FitDocument(Struct):
    """The largest size that fits a memory within some extra time."""

    format: Literal["remat-fit/1"]
    model: ModelSection | None
    grow: str
    dimension: Annotated[str | None, Meta(description="the named dimension that grew; null: the batch")]
    size: Annotated[Integer | None, Meta(description="null: not even 1 fits")]
    budget_bytes: Integer | None
    max_overhead: float
    next: Annotated[FitTrySection | None, Meta(description="the smallest size known not to fit")]
    tried: list[FitTrySection]
    plan: Annotated[str | PlanSection | None, Meta(description="path of the plan; on the command line the plan itself")]
    checked: bool
    warnings: list[str]
    stopped: bool
    elapsed: dict[str, float]


class SavedReport(ReportDocument, kw_only=True):
    """A report that was saved with the graph it is about, as `remat verify` needs it."""

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
