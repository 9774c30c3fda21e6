"""Wire types of the layout of buffers in one arena."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.schemas.plans import Open, Strict
from planner.layout.csv_buffers import MAX_BUFFERS, MAX_NUMBER
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS, MAX_SEARCH_SECONDS

Step = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Bytes = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Alignment = Annotated[int, Field(ge=1, le=MAX_NUMBER)]


class LayoutBuffer(Strict):
    """A buffer with a lifetime."""

    id: str | int | None = Field(None, description="unique id; default: none")
    lower: Step = Field(description="first step at which it is live")
    upper: Step = Field(description="end of the lifetime, exclusive; above lower")
    size: Bytes = Field(description="size in bytes")
    alignment: Alignment | None = Field(
        None, description="alignment of its offset in bytes; default: the alignment of the request"
    )
    offset: Bytes | None = Field(
        None, description="required offset in bytes, a multiple of its alignment; default: free"
    )


class LayoutRequest(Strict):
    """Buffers to place in one arena."""

    buffers: Annotated[list[LayoutBuffer], Field(max_length=MAX_BUFFERS)]
    capacity: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        None, description="size of the arena in bytes, which ends the search once reached; default: minimize the arena"
    )
    alignment: Alignment = Field(1, description="alignment in bytes of buffers without their own; default: 1")
    search_seconds: Annotated[float, Field(gt=0, le=MAX_SEARCH_SECONDS)] = Field(
        DEFAULT_SEARCH_SECONDS, description=f"time limit in seconds; default: {DEFAULT_SEARCH_SECONDS:g}"
    )


class PackedLayout(Open):
    """Offsets of the buffers; buffers with overlapping lifetimes do not overlap in memory."""

    offsets: list[int] = Field(description="offsets in bytes, in the order of the buffers")
    arena_bytes: int = Field(description="size of the arena in bytes")
    bound_bytes: int = Field(description="proven lower bound on the arena, in bytes")
    status: Literal["proven", "found", "over_capacity"] = Field(
        description="proven: the arena is the smallest possible"
    )
