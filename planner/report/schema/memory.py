"""Memory over time and addresses: timeline, layout, and what other allocators reserve."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from planner.report.schema.common import Integer


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
