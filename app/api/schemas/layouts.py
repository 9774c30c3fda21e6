"""Wire types of buffers to be packed, and of where they lie; see `schemas.py`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.schemas.plans import Open, Strict
from planner.layout.csv_buffers import DEFAULT_SECONDS, MAX_BUFFERS, MAX_NUMBER
from planner.request.field_parsers import MAX_SEARCH_SECONDS

Step = Annotated[int, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Bytes = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Alignment = Annotated[int, Field(ge=1, le=MAX_NUMBER)]


class LayoutBuffer(Strict):
    """Bytes that are needed for some time."""

    id: str | int | None = Field(None, description="what the sender calls it; each once")
    lower: Step = Field(description="it is live from here on")
    upper: Step = Field(description="and no more from here on; above lower")
    size: Bytes
    alignment: Alignment | None = Field(None, description="its offset is a multiple; that of the question unless told")
    offset: Bytes | None = Field(None, description="where it must lie, a multiple of its alignment")


class LayoutQuestion(Strict):
    """Buffers that go into one arena."""

    buffers: Annotated[list[LayoutBuffer], Field(max_length=MAX_BUFFERS)]
    capacity: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        None, description="bytes of the arena: the search ends with the first packing within; none: the smallest"
    )
    alignment: Alignment = Field(1, description="of buffers that say none")
    search_seconds: Annotated[float, Field(gt=0, le=MAX_SEARCH_SECONDS)] = DEFAULT_SECONDS


class PackedLayout(Open):
    """An offset for each buffer; no two that are live together share a byte."""

    offsets: list[int] = Field(description="of the buffers, in their order")
    arena_bytes: int
    bound_bytes: int = Field(description="no arena is smaller")
    status: Literal["proven", "found", "over_capacity"] = Field(description="proven: no arena is smaller than this one")
