"""Search result: what search, bound, layout and execution found, by task and buffer numbers, without names.

solve of a graph ────▶ report with its names
               ╰─────▶ search result, which a service stores
solve of an equivalent graph (same up to names) ◀──╯ ──▶ report with its names, without a search
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import numpy as np

from graph.training.gradient_check import DIFFERENT
from planner.bounds import claims
from planner.errors import IllegalPlan
from planner.formulation.execution_check import EQUAL, ExecutionResult
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.offloading import with_copies_of
from planner.problem import Problem
from planner.problem.plan import Plan
from planner.request.budget import Budget
from planner.request.plan_request import Request


class SearchResult(msgspec.Struct, frozen=True):
    """Numbers are those of the tasks and buffers of one problem."""

    problem: str  # its digest
    budget_bytes: int | None
    order: list[int]
    planner: str
    choices: tuple[int, ...]
    offsets: list[int] | None
    arena_bytes: int | None
    bound: LowerBound
    notes: tuple[str, ...]  # of planners and arena repair; they contain no names
    stopped_by_clock: bool
    executed: ExecutionResult | None  # None: not executed; the reason may contain a name
    copied: list[int] | None = None  # buffers with copies to the host, ascending; None: the plan may have none
    host_arena_bytes: int | None = None

    @classmethod
    def of(
        cls,
        formulation: Formulation,
        plan: Plan,
        notes: tuple[str, ...],
        stopped_by_clock: bool,
        executed: ExecutionResult,
    ) -> SearchResult:
        copies = formulation.lowered.copies
        copied = [] if copies is None else copies.buffer.tolist()
        return cls(
            _digest(formulation.lowered.problem if copies is None else copies.original),
            formulation.budget_bytes,
            plan.order.tolist(),
            plan.planner,
            plan.choices,
            None if plan.offsets is None else plan.offsets.tolist(),
            plan.arena_bytes,
            formulation.bound,
            notes,
            stopped_by_clock,
            executed if executed.status == EQUAL and not _names_a_value(executed) else None,
            copied if formulation.may_copy else None,
            plan.host_arena_bytes,
        )

    def with_budget(self, request: Request) -> Request:
        """The request with the budget in bytes, if it is a share that takes a search to resolve."""
        if request.budget is None or request.fraction_of != "reducible":
            return request
        return replace(request, budget=Budget(self.budget_bytes), fraction_of="baseline")

    def applied(self, formulation: Formulation, request: Request) -> tuple[Formulation, Plan]:
        """(formulation with bound and copies, plan with addresses). Raises IllegalPlan for another problem."""
        if _digest(formulation.lowered.problem) != self.problem:
            raise IllegalPlan("the search result is about another problem; plan the graph without it")
        if self.copied is not None:
            order, buffers = np.asarray(self.order, np.int64), np.asarray(self.copied, np.int64)
            formulation = with_copies_of(formulation, request, buffers, order)
        plan = formulation.evaluated(np.asarray(self.order, np.int64), self.planner, self.choices)
        offsets = None if self.offsets is None else np.asarray(self.offsets, np.int64)
        placed = replace(plan, offsets=offsets, arena_bytes=self.arena_bytes, host_arena_bytes=self.host_arena_bytes)
        return replace(formulation, bound=self.bound), placed


def _names_a_value(executed: ExecutionResult) -> bool:
    """True if the gradient check found a difference: its reason names a value."""
    return executed.gradients is not None and executed.gradients.status == DIFFERENT


def _digest(problem: Problem) -> str:
    """SHA-256 of the columns that plans and bounds depend on."""
    return hashlib.sha256(msgspec.json.encode(claims.problem_columns(problem))).hexdigest()
