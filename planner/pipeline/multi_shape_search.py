"""One decision of what is kept and what runs again, for the same step under several sets of input shapes.

    set 0 ── plan ──▶ runs ──replayed──▶ set 1, set 2, ...      all within the budget: done
                       ▲                      │
                       ╰── planned again ◀────╯                 a set is over it: its bytes are charged to the tasks
                                                                that run while they stick out, and the next plan
                                                                of the first set holds so much less there

The sets have the same tasks and buffers with other sizes and costs, so an order of one is legal for all. The set with
the highest peak is planned first; where another one binds, it is planned too, and what fits it is replayed on the
others. Each plan met on the way is judged by the set it suits least. An order of the same runs may be another one for a
set that is over the budget, or whose peak is the highest where the peak is the goal.

A bound for one set holds for what the decision takes there, so the largest of them bounds the overhead of the set that
takes most. That is all it says: whether one decision can be that good in every set at once it does not know.
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
from planner.formulation.arena_repair import with_extra_workspace
from planner.formulation.formulation import Formulation
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Score
from planner.search import lexicographic, portfolio
from planner.search.portfolio import Candidate

#: Part of the search for the first plan; of what is left for each later one; of what is left for an order of its own.
FIRST_PART, LATER_PART, ORDER_PART = 0.5, 0.35, 0.1
#: How often what sticks out in another set is charged to the first one.
MAX_CHARGES = 3


class DecisionCallback(Protocol):
    """Is told of every better decision: extra time, peak and bound of the set that takes most."""

    def __call__(self, extra: float, peak_bytes: int, floor: float) -> None: ...


class DecisionScore(NamedTuple):
    """Compares decisions; lower is better, first field first."""

    bytes_over_budget: int  # of the set that is most over it; of a lowest peak, that of the set with the highest
    overhead: Fraction  # of the set that takes most
    peak_bytes: int  # as reported, of the set with the highest


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """The same runs for all sets: an order for each, under one vector of choices."""

    orders: tuple[Order, ...]
    planner: str
    choices: tuple[int, ...]

    @property
    def has_one_order(self) -> bool:
        return all(np.array_equal(order, self.orders[0]) for order in self.orders)


class MultiShapeSearch:
    """One search over several questions of the same tasks and buffers."""

    def __init__(self, questions: Sequence[Formulation], planner: str, cancel: threading.Event, tell: DecisionCallback):
        self.formulations, self.planner, self.cancel, self.tell = questions, planner, cancel, tell
        self.goal = questions[0].goal
        self.started, self.iterations = time.monotonic(), self.goal.iterations
        self.best: Decision | None = None
        self.worst: DecisionScore | None = None
        self.notes: list[str] = []
        self.stopped_by_clock = False
        #: Per set what no decision takes less than, as a share of its baseline.
        self.lower_bounds = [Fraction(q.bound.cost, max(1, q.baseline_cost)) - 1 for q in questions]

    def run(self) -> Decision:
        """The best decision found within the goal's time or iterations."""
        for question, k in self._tries():
            self._search(question, k, LATER_PART if self.best is not None else FIRST_PART)
            self._with_own_orders()
        assert self.best is not None
        return self.best

    def _tries(self) -> Iterator[tuple[Formulation, int]]:
        """What to plan next and whose set that is, until nothing is to be won or nobody is left to ask."""
        peaks = [q.count.counted(q.baseline.score.peak_bytes) for q in self.formulations]
        first = peaks.index(max(peaks))
        yield self.formulations[first], first
        asked = {first}
        while not self._is_over() and (k := self._binding()) not in asked:
            asked.add(k)
            yield self.formulations[k], k
        problem = self.formulations[first].lowered.problem
        for _ in range(MAX_CHARGES):
            if self._is_over() or not self._misses_budget():
                return
            problem = with_extra_workspace(problem, self._sticking_out(first))
            yield _with_problem(self.formulations[first], problem), first
        if not self._is_over() and self._misses_budget() and not len(problem.choices):
            yield (
                _with_problem(self.formulations[first], envelope([q.lowered.problem for q in self.formulations])),
                first,
            )

    def _is_over(self) -> bool:
        """Nothing better can be shown to exist, or whoever asked wants to stop."""
        assert self.worst is not None
        proven = not self._misses_budget() and self.worst.overhead <= max(self.lower_bounds)
        return self.cancel.is_set() or (bool(self.goal.budget_bytes) and proven)

    def _misses_budget(self) -> bool:
        assert self.worst is not None
        return bool(self.goal.budget_bytes) and self.worst.bytes_over_budget > 0

    def _binding(self) -> int:
        """The set that is most over the budget, or with the highest peak where that is the goal, or takes most."""
        rows = [self._row(k) for k in range(len(self.formulations))]
        return rows.index(max(rows))

    def _row(self, k: int) -> DecisionScore:
        assert self.best is not None
        return self.measured(k, self.best.orders[k], self.best.choices)

    def measured(self, k: int, order: Order, choices: tuple[int, ...]) -> DecisionScore:
        """What an order takes in one set."""
        question = self.formulations[k]
        score = portfolio.goal_score(question.lowered.problem, question.goal, order, choices)
        over, count = score.bytes_over_budget, question.count
        return DecisionScore(
            over if question.goal.budget_bytes else count.counted(over),
            Fraction(score.cost, max(1, question.baseline_cost)) - 1,
            count.counted(score.peak_bytes),
        )

    def _offer(self, decision: Decision) -> None:
        """Keep the decision where it beats the best so far."""
        rows = [self.measured(k, order, decision.choices) for k, order in enumerate(decision.orders)]
        worst = DecisionScore(*(max(column) for column in zip(*rows, strict=True)))
        if self.worst is None or worst < self.worst:
            self.best, self.worst = decision, worst
            self.tell(float(worst.overhead), worst.peak_bytes, float(max(self.lower_bounds)))

    def _of_all(self, order: Order, planner: str, choices: tuple[int, ...]) -> Decision:
        return Decision((order,) * len(self.formulations), planner, choices)

    def _search(self, question: Formulation, k: int, part: float) -> None:
        """Plan a question about set `k`; what is met on the way counts too, where there is nothing to choose."""
        goal = question.goal
        goal = replace(goal, seconds=self._seconds_left() * part, iterations=self._iterations(part))
        before = self.best

        def improved(order: Order, _: Score) -> None:
            self._offer(self._of_all(order, self.planner, ()))

        plain = not len(question.lowered.problem.choices)
        question = replace(question, goal=goal)
        monitor = question.monitor(improved if plain else None, self.cancel)
        seeds = [] if self.best is None else [Candidate(self.best.orders[k], self.best.planner, self.best.choices)]
        found = lexicographic.search(question.lowered.problem, goal, self.planner, monitor, seeds)
        self._spend(monitor)
        if self.best is not None and self.best is not before:
            self.best = replace(self.best, planner=found.planner)
        self._offer(self._of_all(found.order, found.planner, found.choices))
        self.notes = list(dict.fromkeys([*self.notes, *monitor.notes]))

    def _with_own_orders(self) -> None:
        """Give the sets that bind an order of their own where that serves them."""
        if not self._misses_budget() and self.goal.budget_bytes:
            return
        for k, question in enumerate(self.formulations):
            assert self.best is not None
            if self.cancel.is_set():
                return
            if self._row(k).bytes_over_budget == 0 or (not self.goal.budget_bytes and k != self._binding()):
                continue
            choices, own = self.best.choices, list(self.best.orders)
            problem = resolve_choices(question.lowered.problem, choices)
            judge = partial(portfolio.goal_score, problem, question.goal)
            monitor = Monitor(
                judge, self._seconds_left() * ORDER_PART, self._iterations(ORDER_PART), cancel_event=self.cancel
            )
            own[k] = reorder_runs(problem, question.goal, own[k], judge, monitor)
            self._spend(monitor)
            self._offer(replace(self.best, orders=tuple(own)))

    def _sticking_out(self, first: int) -> np.ndarray:
        """int64[n]: by how much any set passes the budget while a task runs, with what the first one has to spare."""
        assert self.best is not None
        order, choices = self.best.orders[first], self.best.choices
        out, spare = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
        for k, question in enumerate(self.formulations):
            held = liveness.profile(resolve_choices(question.lowered.problem, choices), order)
            held = held - (question.goal.budget_bytes or 0)
            out = np.maximum(out, held)
            spare = np.maximum(-held, 0) if k == first else spare
        more = np.zeros(self.formulations[0].lowered.problem.tasks, np.int64)
        np.maximum.at(more, order, np.where(out > 0, out + spare, 0))
        return more

    def _seconds_left(self) -> float:
        return max(0.0, self.goal.seconds - (time.monotonic() - self.started))

    def _iterations(self, part: float) -> int | None:
        return None if self.iterations is None else max(1, int(self.iterations * part))

    def _spend(self, monitor: Monitor) -> None:
        self.stopped_by_clock |= monitor.stopped_by_clock
        if self.iterations is not None:
            self.iterations = max(0, self.iterations - monitor.calls)


def _with_problem(question: Formulation, problem: Problem) -> Formulation:
    """The same question about other columns; what is proven of the first ones holds for no others."""
    bound = replace(question.bound, cost=question.bound.single_run_cost, peak_bytes=0)
    return replace(question, lowered=replace(question.lowered, problem=problem, known={}), bound=bound)


def envelope(problems: Sequence[Problem]) -> Problem:
    """The first problem with the largest size of each buffer and workspace of each task in any of them.

    What takes a storage over in all of them may do so here; a plan within the budget is nearly always one for all.
    """
    size, workspace = (np.maximum.reduce([getattr(p, name) for p in problems]) for name in ("size", "workspace"))
    for column in (size, workspace):
        column.flags.writeable = False
    return replace(problems[0], size=size, workspace=workspace)
