"""The document of a report, and the JSON Schema of all documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.analyses import (
    AdviceSection,
    CheckpointAdviceSection,
    ExplainSection,
    GradientReportSection,
    SharingSection,
)
from planner.report.schema.common import BaselineSection, Device, ExecutedSection, ModelSection
from planner.report.schema.curve_and_fit import CurveDocument, FitDocument
from planner.report.schema.memory import AllocatorSection, LayoutSection, TimelineSection
from planner.report.schema.plan import CopiesSection, OverlapSection, PlanSection, ReferenceSection
from planner.report.schema.shapes import ShapesReportSection


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
