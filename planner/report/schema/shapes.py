"""One plan for several sets of input shapes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.common import ExecutedSection, Integer, MeasuredSection, ModelSection, Run


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
