"""Wire types of batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.schemas.plans import Open, Problem

ItemState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class ItemCounts(Open):
    """Number of items per state."""

    queued: int
    running: int
    succeeded: int
    failed: int
    cancelled: int


class Batch(Open):
    """Plan requests for every combination of graphs, budgets, planners and seeds.

    Its state is "succeeded" once every item has ended, even if items failed.
    """

    id: str
    state: Literal["queued", "running", "succeeded", "cancelled"]
    operation: str = Field(description="path of the operation that reports its progress")
    created_at: str = Field(description="ISO 8601 time")
    started_at: str | None = Field(description="ISO 8601 time of the first item started since the last retry")
    ended_at: str | None = Field(description="ISO 8601 time; null: not ended")
    budgets: list[Any] | None = Field(description="budgets of the request; null: not varied")
    planners: list[str] | None = Field(description="planners of the request; null: not varied")
    seeds: list[int] | None = Field(description="seeds of the request; null: not varied")
    fields: dict[str, Any] = Field(description="other request fields, shared by all items")
    total: int = Field(description="number of items")
    done: int = Field(description="number of items that have ended")
    items: ItemCounts
    seconds: float = Field(description="seconds since started_at")
    solver_seconds: float = Field(description="total solver time of its items since started_at, in seconds")


class Batches(Open):
    """One page of batches, newest first."""

    batches: list[Batch]
    next: str | None = Field(description="cursor of the next page; null: last page")


class Item(Open):
    """One plan request of a batch, with figures of its plan."""

    number: Annotated[int, Field(ge=0)] = Field(description="index in the batch")
    graph_id: str
    model: str = Field(description="name of the graph")
    batch: int | None = Field(description="batch of the planned graph; null: there is none")
    budget: Any = Field(description="budget as requested; null: none")
    planner: str | None = Field(description="planner as requested; null: the default")
    seed: int | None = Field(description="seed as requested; null: the default")
    state: ItemState
    plan: str | None = Field(description="path of the plan; for a cancelled item, of its best plan so far")
    operation: str | None = Field(description="path of the operation that solves or solved it")
    cached: bool = Field(description="whether the plan was already stored")
    started_at: str | None = Field(description="ISO 8601 time")
    ended_at: str | None = Field(description="ISO 8601 time")
    status: str | None = Field(description="status of the plan: proven, found or over_budget")
    fits: bool | None = Field(description="whether the plan fits the memory of the device")
    within_budget: bool | None = Field(description="whether the memory needed is within the budget; null: no budget")
    budget_bytes: int | None = Field(description="budget in bytes")
    baseline_peak_bytes: int | None = Field(description="peak without recomputation, in bytes")
    peak_bytes: int | None = Field(description="peak of the plan, in bytes")
    arena_bytes: int | None = Field(description="size of the arena after layout, in bytes")
    saved_bytes: int | None = Field(description="baseline_peak_bytes - peak_bytes")
    saved: float | None = Field(description="saved_bytes as a fraction of baseline_peak_bytes")
    overhead: float | None = Field(description="extra time of the plan as a fraction of the baseline time")
    bound_overhead: float | None = Field(description="proven lower bound on the overhead")
    gap: float | None = Field(description="distance of the plan from the lower bound, as a fraction")
    reproducible: bool | None = Field(description="whether the same request gives the same plan, byte for byte")
    solver_seconds: float | None = Field(description="solver time in seconds")
    error: Problem | None = Field(description="problem of a failed item")


class Items(Open):
    """One page of items, ascending by number."""

    items: list[Item]
    next: str | None = Field(description="cursor of the next page; null: last page")
