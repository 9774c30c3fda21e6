"""Curves and fits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.common import BaselineSection, Device, Integer, ModelSection
from planner.report.schema.plan import PlanSection


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
