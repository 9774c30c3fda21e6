"""One decision which buffers to keep and which tasks to recompute, for several sets of input shapes.

    set 0 ── plan ──▶ order ──replay──▶ set 1, set 2, ...       all within the budget: done
                       ▲                      │
                       ╰──── re-plan ◀────────╯                 a set is over the budget: charge its excess bytes to
                                                                the tasks that run during the excess, so the next
                                                                plan of the first set holds less at those tasks

The sets have the same tasks and buffers with different sizes and costs, so an order of one set is legal for all. The
set with the highest peak is planned first. If another set binds, that set is planned too, and its plan is replayed on
the others. The score of a plan is the worst over all sets. A set over the budget, or the set with the highest peak when
the peak is the goal, may get a reordering of the same runs.

The largest of the lower bounds of single sets bounds the overhead of the worst set. No bound is known for all sets at
once, so the gap may stay open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from planner.algorithms.annealing.reorder_runs import reorder_runs
from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair.charges import with_extra_workspace
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import frozen
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Score
from planner.search import lexicographic
from planner.search.scores import goal_score

#: Share of the remaining time or iterations for the first plan, for each later plan, and for a reordering of one set.
FIRST_PART, LATER_PART, ORDER_PART = 0.5, 0.35, 0.1
#: Re-plans of the first set with the excess bytes of the others charged to it.
MAX_CHARGES = 3


class DecisionCallback(Protocol):
    """Receives every better decision: overhead of the worst set, highest peak, lower bound on the overhead."""

    def __call__(self, extra: float, peak_bytes: int, bound: float) -> None: ...


class DecisionScore(NamedTuple):
    """Score of a decision; compared field by field, lower is better."""

    bytes_over_budget: int  # largest of any set; when the lowest peak is the goal, the highest counted peak
    overhead: Fraction  # largest of any set
    peak_bytes: int  # as reported, highest of any set


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """The same runs for all sets: one order for each set, under one vector of choices."""

    orders: tuple[Order, ...]
    planner: str
    choices: tuple[int, ...]


class MultiShapeSearch:
    """Search over several formulations with the same tasks and buffers."""

    def __init__(
        self, formulations: Sequence[Formulation], planner: str, cancel: threading.Event, on_progress: DecisionCallback
    ):
        self.formulations, self.planner, self.cancel, self.on_progress = formulations, planner, cancel, on_progress
        self.goal = formulations[0].goal
        self.started, self.iterations = time.monotonic(), self.goal.iterations
        self.best: Decision | None = None
        self.worst: DecisionScore | None = None
        self.notes: list[str] = []
        self.stopped_by_clock = False
        #: Lower bound on the overhead for each set.
        self.lower_bounds = [Fraction(q.bound.cost, max(1, q.baseline_cost)) - 1 for q in formulations]

    def run(self) -> Decision:
        """Best decision found within the goal's time or iterations."""
        for formulation, k in self._next_searches():
            self._search(formulation, k, LATER_PART if self.best is not None else FIRST_PART)
            self._with_own_orders()
        assert self.best is not None
        return self.best

    def _next_searches(self) -> Iterator[tuple[Formulation, int]]:
        """(formulation to plan next, its set), until the bound is reached or no set is left to plan."""
        peaks = [q.count.counted(q.baseline.score.peak_bytes) for q in self.formulations]
        first = peaks.index(max(peaks))
        yield self.formulations[first], first
        searched = {first}
        while not self._is_finished() and (k := self._binding()) not in searched:
            searched.add(k)
            yield self.formulations[k], k
        problem = self.formulations[first].lowered.problem
        for _ in range(MAX_CHARGES):
            if self._is_finished() or not self._misses_budget():
                return
            problem = with_extra_workspace(problem, self._excess_per_task(first))
            yield _with_problem(self.formulations[first], problem), first
        if not self._is_finished() and self._misses_budget() and not len(problem.choices):
            yield (
                _with_problem(self.formulations[first], envelope([q.lowered.problem for q in self.formulations])),
                first,
            )

    def _is_finished(self) -> bool:
        """Whether the best decision is proven optimal, or the search is cancelled."""
        assert self.worst is not None
        proven = not self._misses_budget() and self.worst.overhead <= max(self.lower_bounds)
        return self.cancel.is_set() or (bool(self.goal.budget_bytes) and proven)

    def _misses_budget(self) -> bool:
        assert self.worst is not None
        return bool(self.goal.budget_bytes) and self.worst.bytes_over_budget > 0

    def _binding(self) -> int:
        """Set with the worst score of the best decision."""
        rows = [self._row(k) for k in range(len(self.formulations))]
        return rows.index(max(rows))

    def _row(self, k: int) -> DecisionScore:
        assert self.best is not None
        return self.measured(k, self.best.orders[k], self.best.choices)

    def measured(self, k: int, order: Order, choices: tuple[int, ...]) -> DecisionScore:
        """Score of an order in one set."""
        formulation = self.formulations[k]
        score = goal_score(formulation.lowered.problem, formulation.goal, order, choices)
        over, count = score.bytes_over_budget, formulation.count
        return DecisionScore(
            over if formulation.goal.budget_bytes else count.counted(over),
            Fraction(score.cost, max(1, formulation.baseline_cost)) - 1,
            count.counted(score.peak_bytes),
        )

    def _offer(self, decision: Decision) -> None:
        """Keep the decision if it beats the best so far."""
        rows = [self.measured(k, order, decision.choices) for k, order in enumerate(decision.orders)]
        worst = DecisionScore(*(max(column) for column in zip(*rows, strict=True)))
        if self.worst is None or worst < self.worst:
            self.best, self.worst = decision, worst
            self.on_progress(float(worst.overhead), worst.peak_bytes, float(max(self.lower_bounds)))

    def _shared_order(self, order: Order, planner: str, choices: tuple[int, ...]) -> Decision:
        return Decision((order,) * len(self.formulations), planner, choices)

    def _search(self, formulation: Formulation, k: int, part: float) -> None:
        """Plan a formulation of set `k`; without choices, every better order found is offered too."""
        goal = formulation.goal.limited(self._seconds_left() * part, self._iterations(part))
        before = self.best

        def improved(order: Order, _: Score) -> None:
            self._offer(self._shared_order(order, self.planner, ()))

        plain = not len(formulation.lowered.problem.choices)
        formulation = replace(formulation, goal=goal)
        monitor = formulation.monitor(improved if plain else None, self.cancel)
        seeds = [] if self.best is None else [Candidate(self.best.orders[k], self.best.planner, self.best.choices)]
        found = lexicographic.search(formulation.lowered.problem, goal, self.planner, monitor, seeds)
        self._spend(monitor)
        if self.best is not None and self.best is not before:
            self.best = replace(self.best, planner=found.planner)
        self._offer(self._shared_order(found.order, found.planner, found.choices))
        self.notes = list(dict.fromkeys([*self.notes, *monitor.notes]))

    def _with_own_orders(self) -> None:
        """Reorder the runs for each binding set where that improves the decision."""
        if not self._misses_budget() and self.goal.budget_bytes:
            return
        for k, formulation in enumerate(self.formulations):
            assert self.best is not None
            if self.cancel.is_set():
                return
            if self._row(k).bytes_over_budget == 0 or (not self.goal.budget_bytes and k != self._binding()):
                continue
            choices, own = self.best.choices, list(self.best.orders)
            problem = resolve_choices(formulation.lowered.problem, choices)
            judge = partial(goal_score, problem, formulation.goal)
            monitor = Monitor(
                judge, self._seconds_left() * ORDER_PART, self._iterations(ORDER_PART), cancel_event=self.cancel
            )
            own[k] = reorder_runs(problem, formulation.goal, own[k], judge, monitor)
            self._spend(monitor)
            self._offer(replace(self.best, orders=tuple(own)))

    def _excess_per_task(self, first: int) -> np.ndarray:
        """int64[n]: excess over the budget of any set while a task runs, plus the unused budget of the first set."""
        assert self.best is not None
        order, choices = self.best.orders[first], self.best.choices
        out, spare = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
        for k, formulation in enumerate(self.formulations):
            held = liveness.profile(resolve_choices(formulation.lowered.problem, choices), order)
            held = held - (formulation.goal.budget_bytes or 0)
            out = np.maximum(out, held)
            spare = np.maximum(-held, 0) if k == first else spare
        charge = np.zeros(self.formulations[0].lowered.problem.tasks, np.int64)
        np.maximum.at(charge, order, np.where(out > 0, out + spare, 0))
        return charge

    def _seconds_left(self) -> float:
        return max(0.0, self.goal.seconds - (time.monotonic() - self.started))

    def _iterations(self, part: float) -> int | None:
        return None if self.iterations is None else max(1, int(self.iterations * part))

    def _spend(self, monitor: Monitor) -> None:
        self.stopped_by_clock |= monitor.stopped_by_clock
        if self.iterations is not None:
            self.iterations = max(0, self.iterations - monitor.calls)


def _with_problem(formulation: Formulation, problem: Problem) -> Formulation:
    """The formulation with other columns and without the bounds proven for the original columns."""
    bound = replace(formulation.bound, cost=formulation.bound.single_run_cost, peak_bytes=0)
    return replace(formulation, lowered=replace(formulation.lowered, problem=problem, known={}), bound=bound)


def envelope(problems: Sequence[Problem]) -> Problem:
    """The first problem with the largest size of each buffer and workspace of each task in any of them.

    A takeover allowed in all problems is allowed here. A plan within the budget here is nearly always within the budget
    of every set.
    """
    size, workspace = (np.maximum.reduce([getattr(p, name) for p in problems]) for name in ("size", "workspace"))
    return replace(problems[0], size=frozen(size), workspace=frozen(workspace))
