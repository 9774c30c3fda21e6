"""Relaxation-induced neighbourhood search: an integer program over what the best order and a relaxation leave open.

    best order          a live   b live   c not   d not      at a step whose memory is full
    linear program      a live   b 0.4    c 0.6   d not
    integer program     a live   b ?      c ?     d not      hundreds of variables instead of thousands

The linear program is that of `bounds/step_lp.py` over the fullest steps of the order, whose first runs keep their
order. The integer solution says which buffers are live at each of these steps, and which tasks run again between two
of them: right before the first task there that reads their results. Steps at which the memory of that order exceeds the
budget join the program.

Source: Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve MIP solutions",
Mathematical Programming 102, 2005; the steps and the order are the project's own.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from graph.cancellation import CancellationError, cancellation_scope
from planner.algorithms.greedy.gap_closing import GapCloser, without_unread_repeats
from planner.bounds.solvers.linear import solve_integer
from planner.bounds.step_lp import StepLp, StepSolution, Variable
from planner.bounds.step_network import StepModel
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor, TimeEnd
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order, first_run_step, is_first_run, last_recompute_step

# Steps to start with, those that join at once, and the maximum.
FIRST_STEPS, JOINING_STEPS, MAX_STEPS = 4, 2, 9
# A step is full if its memory exceeds this share of the budget, or of the peak if that is lower.
FULL = 0.97
# Maximum rows of a linear program, and by the clock about the seconds that each takes.
MAX_ROWS, ROW_SECONDS = 60_000, 1e-4
# Share of the recomputation that a better order saves at least; solvers do not see less.
LEAST_GAIN = 1e-5
# The smallest buffers, with so much of the budget together, are always live.
SMALL_SHARE = 1e-3
# A variable above this is rounded to 1.
HALF = 0.5
# SCIP tries fewer branches before it chooses one, which halves the time of these programs.
FEWER_TRIALS = "branching/relpscost/initcand = 5\nbranching/relpscost/inititer = 5\n"
# Share of the remaining search for one integer program.
PROGRAM_SHARE = 0.9


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order of the monitor with its recomputations improved; without one, that of the document.

    The same order without a budget.
    """
    order = base_order(problem, goal.strict_phases) if monitor.best is None else monitor.best
    score = monitor.offer(order)
    if len(order) and goal.budget_bytes and (score.bytes_over_budget or score.cost > problem.single_run_ticks()):
        stop = TimeEnd(monitor) if monitor.iterations is None else monitor.cancel_event
        with suppress(CancellationError), cancellation_scope(stop):
            _Neighbourhood(problem, goal, goal.budget_bytes, monitor).search()
    assert monitor.best is not None
    return monitor.best


class _Neighbourhood:
    """The programs over the fullest steps of the best order, under one order of first runs."""

    def __init__(self, problem: Problem, goal: Goal, budget: int, monitor: Monitor):
        assert monitor.best is not None
        self.problem, self.budget, self.monitor = problem, budget, monitor
        self.first_runs = monitor.best[is_first_run(problem, monitor.best)]
        self.place = first_run_step(problem, self.first_runs)
        self.latest = last_recompute_step(problem, self.first_runs)
        as_given, small = replace(goal, order_is_given=True), _small(problem.size, budget)
        self.model = StepModel(problem, as_given, budget, order=self.first_runs, always_live=small)
        self.producer, self.reads = problem.producer().tolist(), problem.reads.lists()
        self.chain: list[int] = []  # tasks whose steps are in the program, in the order of their first runs
        self.program: tuple[StepLp, StepSolution] | None = None  # of the chain, with its optimum

    def search(self) -> None:
        """Solve programs until one finds no better order, no step joins, or the search is over."""
        assert self.monitor.best is not None
        begun, last_closed = self.monitor.best_score, Score(sys.maxsize, 0, 0)
        self._join(self.monitor.best, FIRST_STEPS)
        while self._is_solved():
            # Steps that the rounded optimum of the first linear program exceeds join before an integer program.
            if len(self.chain) <= FIRST_STEPS and self._join(self._rounded(), JOINING_STEPS):
                continue
            assert self.monitor.best_score is not None
            around_best = not self.monitor.best_score.bytes_over_budget
            order, has_ended = self._improved(around_best)
            if order is None:
                return
            if not self.monitor.offer(order).bytes_over_budget:
                if around_best and has_ended:
                    return
                continue
            closed = self.monitor.offer(
                GapCloser(self.problem, self.monitor.should_stop).reduce_to(order, self.budget)[0]
            )
            if closed >= last_closed:
                return  # more steps bring no better order
            last_closed = closed
            if len(self.chain) >= MAX_STEPS:
                if self.monitor.best_score == begun:
                    return
                begun, self.chain, order = self.monitor.best_score, [], self.monitor.best
            if not self._join(order, JOINING_STEPS if self.chain else FIRST_STEPS):
                return

    def _join(self, order: Order, count: int) -> bool:
        """Add up to `count` tasks to the chain, the fullest of each run of full steps in an order; whether any joined.

        The bytes of a repeat count for the next first run.
        """
        held, first = liveness.profile(self.problem, order), np.flatnonzero(is_first_run(self.problem, order))
        held = np.maximum.reduceat(held, np.append(0, first[:-1] + 1))
        full = held > FULL * min(self.budget, int(held.max()))
        edges = np.flatnonzero(np.diff(np.concatenate([[0], full, [0]]).astype(np.int8)))
        peaks = [start + int(held[start:stop].argmax()) for start, stop in edges.reshape(-1, 2).tolist()]
        fullest = order[first[sorted(peaks, key=lambda peak: -int(held[peak]))]].tolist()
        joining = [task for task in fullest if task not in self.chain][:count]
        self.chain = sorted([*self.chain, *joining], key=self.place.__getitem__)
        self.program = None if joining else self.program
        return bool(joining)

    def _is_solved(self) -> bool:
        """Whether the linear program of the chain is solved, and some order may be better than the best."""
        if self.program is None and (lp := self._linear_program()) is not None:
            relaxed = lp.solved({})
            self.program = None if relaxed is None else (lp, relaxed)
        best = self.monitor.best_score
        if self.program is None or best is None or self.monitor.should_stop():
            return False
        once = self.problem.single_run_ticks()
        return best.bytes_over_budget > 0 or self.program[1].ticks < best.cost - once

    def _linear_program(self) -> StepLp | None:
        """The linear program of the chain; None without steps, and if it is too large."""
        windows = list(itertools.combinations(range(len(self.chain) + 1), 2))
        allowed, monitor = float(MAX_ROWS), self.monitor
        if monitor.iterations is None:
            allowed = min(allowed, (1 - monitor.progress()) * monitor.seconds / ROW_SECONDS)
        # About half of the inequalities hold in every order.
        if not windows or len(windows) * (len(self.model.read) + self.problem.tasks) // 2 > allowed:
            return None
        return StepLp(self.model, self.chain, windows, branches=True)

    def _rounded(self) -> Order:
        """The order of the rounded optimum of the linear program."""
        assert self.program is not None
        _, relaxed = self.program
        up = [name for name, value in relaxed.between.items() if value > HALF]
        return self._order(name for name in (*relaxed.ones, *up) if name[0] == "R")

    def _improved(self, around_best: bool) -> tuple[Order | None, bool]:
        """(the order of the best integer solution found, or None; whether none in the neighbourhood takes less time).

        Variables that are whole in the linear program keep their values, with `around_best` only those that have the
        same in the best order. Solutions that take no less time than an order within the budget are not found.
        """
        assert self.program is not None and self.monitor.best_score is not None
        (lp, relaxed), best = self.program, self.monitor.best_score
        recomputed = best.cost - self.problem.single_run_ticks()
        most = math.inf if best.bytes_over_budget else (1 - LEAST_GAIN) * recomputed
        ones = set(relaxed.ones)
        fixed = {name: int(name in ones) for name in lp.column if name[0] == "L" and name not in relaxed.between}
        if around_best:
            live = self._live_in_best()
            fixed = {name: value for name, value in fixed.items() if value == (name[2] in live[name[1]])}
        rows = lp.integer_model(fixed, most)
        found = solve_integer(rows, self.monitor, share=PROGRAM_SHARE, parameters=FEWER_TRIALS)
        if found.values is None:
            return None, found.ended
        again = (name for name, column in lp.column.items() if name[0] == "R" and found.values[column] > HALF)
        return without_unread_repeats(self.problem, self._order(again)).order, found.ended

    def _live_in_best(self) -> list[set[int]]:
        """For each step of the chain: the buffers that are live there in the best order."""
        assert self.monitor.best is not None
        lifetimes = liveness.lifetimes(self.problem, self.monitor.best)
        steps = first_run_step(self.problem, self.monitor.best)[self.chain]
        return [set(lifetimes.buffer[(lifetimes.start <= at) & (lifetimes.stop > at)].tolist()) for at in steps]

    def _order(self, again: Iterable[Variable]) -> Order:
        """The first runs, and `again` from step k of the chain to the next those tasks t with a variable ("R", k, t).

        Each runs right before the first task that needs its results, or before the next step.
        """
        order, waiting = list[int](), [set[int]() for _ in range(len(self.chain) + 1)]
        for _, k, task in again:
            waiting[k + 1].add(task)

        def run_again(tasks: Iterable[int], place: int) -> None:
            order.extend(task for task in sorted(tasks, key=self.place.__getitem__) if place <= self.latest[task])

        bounds = [0, *self.place[self.chain].tolist(), len(self.first_runs)]
        for (start, stop), rest in zip(itertools.pairwise(bounds), waiting, strict=True):
            for place, task in enumerate(self.first_runs[start:stop].tolist(), start):
                run_again(self._taken_for(task, rest), place)
                order.append(task)
            run_again(rest, stop)
        return np.array(order, np.int64)

    def _taken_for(self, task: int, rest: set[int]) -> list[int]:
        """The tasks of `rest` whose results `task` needs, directly or through one another; they leave `rest`."""
        found, reading = list[int](), [task]
        while reading:
            for b in self.reads[reading.pop()]:
                if (producer := self.producer[b]) in rest:
                    rest.remove(producer)
                    found.append(producer)
                    reading.append(producer)
        return found


def _small(size: np.ndarray, budget: int) -> np.ndarray:
    """bool[m]: the smallest buffers, which hold at most SMALL_SHARE of the budget together."""
    by_size = np.argsort(size, kind="stable")
    small = np.zeros(len(size), bool)
    small[by_size[np.cumsum(size[by_size]) <= SMALL_SHARE * budget]] = True
    return small
