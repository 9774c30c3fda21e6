"""Wire types of batches; see `schemas.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.schemas.plans import Open, Problem

ItemState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class ItemCounts(Open):
    """How many items are in each state."""

    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class Batch(Open):
    """Many questions at once. It has succeeded when every item has ended, well or not."""

    id: str
    state: Literal["queued", "running", "succeeded", "cancelled"]
    operation: str = Field(description="path of the operation that tells its progress")
    created_at: str
    started_at: str | None = Field(description="when the first item was taken, since the last retry")
    ended_at: str | None
    budgets: list[Any] | None
    planners: list[str] | None
    seeds: list[int] | None
    fields: dict[str, Any] = Field(description="the other fields, of every item")
    total: int = Field(description="items")
    done: int = Field(description="items that have ended")
    items: ItemCounts
    seconds: float = Field(description="since started_at; total and done say how much is left")
    solver_seconds: float = Field(description="that its solves have taken since started_at")


class Batches(Open):
    """A page, newest first."""

    batches: list[Batch]
    next: str | None = Field(description="cursor of the next page")


class Item(Open):
    """One question of a batch; the figures are those of its plan."""

    number: Annotated[int, Field(ge=0)]
    graph_id: str
    model: str
    budget: Any = Field(description="as it was asked; null: none was named")
    planner: str | None
    seed: int | None
    state: ItemState
    plan: str | None = Field(description="path of the plan; a cancelled item keeps its best so far")
    operation: str | None = Field(description="path of the operation that solves it, or has")
    cached: bool = Field(description="answered from what was stored")
    started_at: str | None
    ended_at: str | None
    status: str | None
    fits: bool | None
    budget_bytes: int | None
    baseline_peak_bytes: int | None
    peak_bytes: int | None
    arena_bytes: int | None
    saved_bytes: int | None
    saved: float | None
    overhead: float | None
    bound_overhead: float | None
    gap: float | None
    reproducible: bool | None
    solver_seconds: float | None
    error: Problem | None


class Items(Open):
    """A page, ascending."""

    items: list[Item]
    next: str | None = Field(description="cursor of the next page")
