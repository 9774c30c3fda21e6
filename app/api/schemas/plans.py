"""Wire types of operations and lists, from which OpenAPI and the JSON Schemas are made.

Requests are described by `request.py`, reports, curves and fits by `planner.report.schema`. Answers are written as
bytes and never pass through these records; tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Record without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Open(BaseModel):
    """Record to which later versions may add fields."""

    model_config = ConfigDict(extra="allow")


MAX_TAGS, MAX_TAG_CHARS, MAX_NOTE_CHARS = 16, 40, 2000  # of a plan and tenant
#: Without spaces and commas, so that a list of tags can be typed.
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS, pattern=r"^[^\s,\x00-\x1f\x7f]+$")]
INPUTS = Field(description="the first 16 inputs; null: stored by a version that did not record them")
BATCH = Field(description="leading length that all inputs share; null: there is none, or it was not recorded")


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
    batch: int | None = Field(description="batch of the request, else of the graph; null: there is none")
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


class ModelInput(Open):
    """An input of a model."""

    name: str = Field(description="name of the value")
    dtype: str | None = Field(description="element type; null: only the size in bytes is known")
    shape: list[int] | None = Field(description="shape; null: only the size in bytes is known")


class GraphRecord(Open):
    """Metadata of a stored graph."""

    id: str = Field(description="id of the graph")
    name: str = Field(description="name of the model as given, else the name of the graph in its file")
    graph_name: str | None = Field(description="name of the graph in its file; null: the model has no other name")
    inputs: list[ModelInput] | None = INPUTS
    batch: int | None = BATCH
    nodes: int = Field(description="number of nodes")
    values: int = Field(description="number of values")
    format: str = Field(description="native, or the framework of the posted file")
    created_at: str = Field(description="ISO 8601 time")


class Graphs(Open):
    """One page of graphs, newest first."""

    graphs: list[GraphRecord]
    next: str | None = Field(description="cursor of the next page; null: last page")


class PlanRecord(Open):
    """Figures of a stored plan."""

    id: str = Field(description="id of the plan")
    model: str = Field(description="name of the model")
    graph_id: str = Field(description="id of the graph")
    inputs: list[ModelInput] | None = INPUTS
    batch: int | None = BATCH
    planner: str = Field(description="planner that found the plan")
    status: Literal["proven", "found", "over_budget"] = Field(description="status of the plan")
    runtime: str = Field(description="allocator modelled")
    device: str = Field(description="device profile; custom: one of the request")
    counts: str = Field(description="bytes that count: everything or activations")
    budget: str | None = Field(description="budget as requested; null: another goal")
    budget_bytes: int | None = Field(description="budget in bytes; null: the goal is max_overhead")
    max_overhead: float | None = Field(description="overhead limit, as a fraction; null: the goal is a budget")
    baseline_peak_bytes: int = Field(description="peak without recomputation, in bytes")
    peak_bytes: int = Field(description="peak in bytes")
    arena_bytes: int | None = Field(description="size of the arena after layout, in bytes; null: no layout")
    saved_bytes: int = Field(description="baseline peak minus peak, in bytes")
    saved: float = Field(description="saved_bytes as a fraction of the baseline peak")
    seconds: float = Field(description="predicted time of one training step, in seconds")
    overhead: float | None = Field(description="extra time as a fraction of the baseline time")
    bound_overhead: float | None = Field(description="proven lower bound on the overhead, as a fraction")
    gap: float | None = Field(description="distance from the lower bound, as a fraction")
    created_at: str = Field(description="ISO 8601 time")
    tags: list[str] = Field(description="tags of the tenant, in alphabetical order")
    note: str | None = Field(description="note of the tenant; null: none")


class PlanChange(Strict):
    """New tags and note of a plan; a field that is left out stays as it is."""

    tags: Annotated[list[Tag] | None, Field(max_length=MAX_TAGS)] = Field(
        default=None, description="all tags; null or an empty list: none"
    )
    note: Annotated[str | None, Field(max_length=MAX_NOTE_CHARS)] = Field(
        default=None, description="the note; null or blank: none"
    )


class PlanAnnotations(Open):
    """Tags and note of a plan."""

    id: str = Field(description="id of the plan")
    tags: list[str] = Field(description="tags of the tenant, in alphabetical order")
    note: str | None = Field(description="note of the tenant; null: none")


class Plans(Open):
    """One page of plans, newest first."""

    plans: list[PlanRecord]
    next: str | None = Field(description="cursor of the next page; null: last page")


class CurveRecord(Open):
    """A stored curve."""

    id: str = Field(description="id of the curve")
    model: str | None = Field(description="name of the model")
    graph_id: str | None = Field(description="id of the graph")
    inputs: list[ModelInput] | None = INPUTS
    batch: int | None = BATCH
    created_at: str = Field(description="ISO 8601 time")


class Curves(Open):
    """One page of curves, newest first."""

    curves: list[CurveRecord]
    next: str | None = Field(description="cursor of the next page; null: last page")


class FitRecord(Open):
    """A stored fit."""

    id: str = Field(description="id of the fit")
    model: str | None = Field(description="name of the model; null: no size fits")
    graph_id: str | None = Field(description="id of the graph at the largest size; null: no size fits")
    inputs: list[ModelInput] | None = INPUTS
    batch: int | None = BATCH
    grow: str | None = Field(description="batch, sequence or the name of the growing dimension")
    size: int | None = Field(description="largest size that fits; null: none fits")
    created_at: str = Field(description="ISO 8601 time")


class Fits(Open):
    """One page of fits, newest first."""

    fits: list[FitRecord]
    next: str | None = Field(description="cursor of the next page; null: last page")


class LayoutRecord(Open):
    """A stored layout of buffers."""

    id: str = Field(description="id of the layout")
    created_at: str = Field(description="ISO 8601 time")


class PackedLayouts(Open):
    """One page of layouts, newest first."""

    layouts: list[LayoutRecord]
    next: str | None = Field(description="cursor of the next page; null: last page")


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


class Certificate(Open):
    """Certificate of a lower bound, checked by `remat verify --certificate`."""

    format: str = Field(description="format of the claims")
    claims: list[dict[str, Any]] = Field(description="proven inequalities, one record each")


class KeyRecord(Open):
    """The API key of a request, without its secret."""

    id: str = Field(description="middle part of the key")
    name: str = Field(description="name given when the key was made")
    scopes: list[str] = Field(description="read, plan, operator")
    created_at: str = Field(description="ISO 8601 time")
    expires_at: str | None = Field(description="ISO 8601 time; null: never")


class QuotaLimits(Open):
    """Limits of a key; null: the limit of the service."""

    nodes: int | None = Field(description="nodes of a graph")
    bytes: int | None = Field(description="bytes of a decompressed body")
    solves: int | None = Field(description="concurrent solves")
    solver_seconds: float | None = Field(description="solver seconds per day (UTC)")


class QuotaUse(Open):
    """Use of the quotas of a key."""

    solves: int = Field(description="unfinished solves")
    solver_seconds: float = Field(description="solver seconds charged today (UTC)")


class Me(Open):
    """The caller of a request."""

    tenant: str | None = Field(description="tenant of the key; null: no authentication")
    key: KeyRecord | None = Field(description="the API key; null: no authentication")
    quotas: QuotaLimits = Field(description="limits of the key")
    used: QuotaUse | None = Field(description="use of the quotas; null: no authentication")


class Health(Open):
    status: Literal["ok", "ready"]


class Version(Open):
    remat: str
    api: str
    format: str
