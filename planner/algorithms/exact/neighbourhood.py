"""Relaxation-induced neighbourhood search: an integer program over what the best order and a relaxation leave open.

    best order          a live   b live   c not   d not      at a step whose memory is full
    linear program      a live   b 0.4    c 0.6   d not
    integer program     a live   b ?      c ?     d not      hundreds of variables instead of thousands

The linear program is that of `bounds/step_lp.py` over the fullest steps of the order, whose first runs keep their
order. The integer solution says which buffers are live at each of these steps, and which tasks are recomputed between
two of them: right before the first task there that reads their results. Steps at which the memory of that order exceeds
the budget join the program.

Source: Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve MIP solutions",
Mathematical Programming 102, 2005; the steps and the order are the project's own.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from graph.cancellation import CancellationError, cancellation_scope
from planner.algorithms.greedy.gap_closing import GapCloser, without_unread_repeats
from planner.bounds.solvers.linear import solve_integer
from planner.bounds.step_lp import StepLp, StepSolution, Variable
from planner.bounds.step_network import StepModel
from planner.problem import RESIDENT, Problem, liveness
from planner.problem.columns import true_intervals
from planner.problem.monitor import Monitor, TimeEnd
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order, can_recompute, first_run_step, is_first_run, last_recompute_step

# Steps to start with, those that join at once, and the maximum.
FIRST_STEPS, JOINING_STEPS, MAX_STEPS = 4, 2, 9
# A step is full if its memory exceeds this share of the budget, or of the peak if that is lower.
FULL = 0.97
# Maximum rows of a linear program, and by the clock about the seconds that each takes.
MAX_ROWS, ROW_SECONDS = 60_000, 1e-4
# Share of the recomputation that a better order saves at least. SCIP ends within as much of the optimum.
LEAST_GAIN = 1e-4
# The smallest buffers, with so much of the budget together, are always live.
SMALL_SHARE = 5e-4
# A variable above this is rounded to 1.
HALF = 0.5
# SCIP tries fewer branches before it chooses one, which halves the time of these programs.
FEWER_TRIALS = "branching/relpscost/initcand = 5\nbranching/relpscost/inititer = 5\n"
# Share of the remaining search for one integer program.
PROGRAM_SHARE = 0.9


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order of the monitor with its recomputations improved; without one, that of the document.

    The same order without a budget, and one that exceeds it.
    """
    order = base_order(problem, goal.strict_phases) if monitor.best is None else monitor.best
    score = monitor.offer(order)
    if goal.budget_bytes and not score.bytes_over_budget and score.cost > problem.single_run_ticks():
        stop = TimeEnd(monitor) if monitor.iterations is None else monitor.cancel_event
        with suppress(CancellationError), cancellation_scope(stop):
            _Neighbourhood(problem, goal, goal.budget_bytes, monitor).search()
    assert monitor.best is not None
    return monitor.best


@dataclass(frozen=True, eq=False, slots=True)
class _Relaxation:
    """The linear program of a chain of steps, solved."""

    chain: list[int]  # tasks whose first runs are the steps, in their order
    program: StepLp
    optimum: StepSolution


class _Neighbourhood:
    """The programs over the fullest steps of the best order, under one order of first runs."""

    def __init__(self, problem: Problem, goal: Goal, budget: int, monitor: Monitor):
        self.problem, self.budget, self.monitor = problem, budget, monitor
        self.first_runs = self.best[is_first_run(problem, self.best)]
        self.place = first_run_step(problem, self.first_runs)
        self.latest = last_recompute_step(problem, self.first_runs)
        self.once_ticks = liveness.cost(problem, self.first_runs)
        as_given = replace(goal, order_is_given=True)
        small = _small(problem, budget)
        self.model = StepModel(problem, as_given, budget, order=self.first_runs, always_live=small)
        # A bound allows ranks to agree on recomputed collectives; an order has to do without.
        self.model.recomputable &= can_recompute(problem)
        self.producer, self.reads = problem.producer().tolist(), problem.reads.lists()
        self.chain: list[int] = []  # tasks whose steps are in the next program
        self.relaxed: _Relaxation | None = None  # the last that was solved
        self.is_largest = False  # no further step can join it

    @property
    def best(self) -> Order:
        """The best order of the monitor."""
        assert self.monitor.best is not None
        return self.monitor.best

    @property
    def best_score(self) -> Score:
        """Its score."""
        assert self.monitor.best_score is not None
        return self.monitor.best_score

    def search(self) -> None:
        """Solve programs until one finds no better order, no step joins, or the search is over."""
        begun, last_closed = self.best_score, Score(sys.maxsize, 0, 0)
        self._join(self.best, FIRST_STEPS)
        while self._is_relaxed():
            # Steps that the rounded optimum of the first linear program exceeds join before an integer program.
            if len(self.chain) <= FIRST_STEPS and self._join(self._rounded(), JOINING_STEPS):
                continue
            order, has_ended = self._improved()
            if order is None:
                return
            if not self.monitor.offer(order).bytes_over_budget:
                if has_ended:
                    return
                continue
            closed = self.monitor.offer(
                GapCloser(self.problem, self.monitor.should_stop).reduce_to(order, self.budget)[0]
            )
            if closed >= last_closed:
                return  # more steps bring no better order
            last_closed = closed
            count = JOINING_STEPS
            if len(self.chain) >= MAX_STEPS:
                if self.best_score == begun:
                    return
                begun, self.chain, order, count = self.best_score, [], self.best, FIRST_STEPS
            if not self._join(order, count):
                return

    def _join(self, order: Order, count: int) -> bool:
        """Add up to `count` tasks to the chain, the fullest of each run of full steps in an order; whether any joined.

        The bytes of a repeat count for the next first run.
        """
        held, first = liveness.profile(self.problem, order), np.flatnonzero(is_first_run(self.problem, order))
        held = np.maximum.reduceat(held, np.append(0, first[:-1] + 1))
        full = held > FULL * min(self.budget, int(held.max()))
        peaks = [start + int(held[start:stop].argmax()) for start, stop in true_intervals(full)]
        fullest = order[first[sorted(peaks, key=lambda peak: -int(held[peak]))]].tolist()
        joining = [] if self.is_largest else [task for task in fullest if task not in self.chain][:count]
        self.chain = sorted([*self.chain, *joining], key=self.place.__getitem__)
        return bool(joining)

    def _is_relaxed(self) -> bool:
        """Whether there is a linear program to go on from, of the chain or the last one, and an order may be better.

        If that of the chain is too large or not solved, the chain becomes that of the last.
        """
        if self.relaxed is None or self.relaxed.chain != self.chain:
            if (relaxed := self._relaxation()) is not None:
                self.relaxed = relaxed
            elif self.relaxed is not None:
                self.chain, self.is_largest = self.relaxed.chain, True
        if self.relaxed is None or self.monitor.should_stop():
            return False
        return self.relaxed.optimum.ticks < self.best_score.cost - self.once_ticks

    def _relaxation(self) -> _Relaxation | None:
        """The solved linear program of the chain; None without steps, if it is too large, and if it is not solved."""
        windows = list(itertools.combinations(range(len(self.chain) + 1), 2))
        allowed, monitor = float(MAX_ROWS), self.monitor
        if monitor.iterations is None:
            allowed = min(allowed, (1 - monitor.progress()) * monitor.seconds / ROW_SECONDS)
        # About half of the inequalities hold in every order.
        if not windows or len(windows) * (len(self.model.read) + self.problem.tasks) // 2 > allowed:
            return None
        program = StepLp(self.model, self.chain, windows, branches=True)
        optimum = program.solved({})
        return None if optimum is None else _Relaxation(self.chain, program, optimum)

    def _rounded(self) -> Order:
        """The order of the rounded optimum of the linear program."""
        assert self.relaxed is not None
        optimum = self.relaxed.optimum
        up = [name for name, value in optimum.between.items() if value > HALF]
        return self._order(name for name in (*optimum.ones, *up) if name[0] == "R")

    def _improved(self) -> tuple[Order | None, bool]:
        """(the order of the best integer solution found, or None; whether the neighbourhood has none of less time)."""
        assert self.relaxed is not None
        program, most = self.relaxed.program, (1 - LEAST_GAIN) * (self.best_score.cost - self.once_ticks)
        rows = program.integer_model(self._fixed(self.relaxed), most)
        found = solve_integer(rows, self.monitor, share=PROGRAM_SHARE, parameters=FEWER_TRIALS)
        if found.values is None:
            return None, found.ended
        repeats = (name for name, column in program.column.items() if name[0] == "R" and found.values[column] > HALF)
        return without_unread_repeats(self.problem, self._order(repeats)).order, found.ended

    def _fixed(self, relaxed: _Relaxation) -> dict[Variable, int]:
        """Values of the variables that are whole in the linear program and have the same value in the best order."""
        ones, live = set(relaxed.optimum.ones), self._live_in_best()
        names = (name for name in relaxed.program.column if name[0] == "L" and name not in relaxed.optimum.between)
        return {name: int(name in ones) for name in names if (name in ones) == (name[2] in live[name[1]])}

    def _live_in_best(self) -> list[set[int]]:
        """For each step of the chain: the buffers that are live there in the best order."""
        lifetimes = liveness.lifetimes(self.problem, self.best)
        steps = first_run_step(self.problem, self.best)[self.chain]
        return [set(lifetimes.buffer[(lifetimes.start <= at) & (lifetimes.stop > at)].tolist()) for at in steps]

    def _order(self, repeats: Iterable[Variable]) -> Order:
        """The first runs, with the tasks t recomputed between step k of the chain and the next, for each ("R", k, t).

        Each runs right before the first task after the step that needs its results, or before the next step.
        """
        order, waiting = list[int](), [set[int]() for _ in range(len(self.chain) + 1)]
        for _, k, task in repeats:
            waiting[k + 1].add(task)

        def recompute(tasks: Iterable[int], place: int) -> None:
            order.extend(task for task in sorted(tasks, key=self.place.__getitem__) if place <= self.latest[task])

        bounds = [0, *self.place[self.chain].tolist(), len(self.first_runs)]
        for (start, stop), rest in zip(itertools.pairwise(bounds), waiting, strict=True):
            for place, task in enumerate(self.first_runs[start:stop].tolist(), start):
                if place > start or not start:  # recomputation of a step follows its task
                    recompute(self._taken_for(task, rest), place)
                order.append(task)
            recompute(rest, stop)
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


def _small(problem: Problem, budget: int) -> np.ndarray:
    """bool[m]: the smallest buffers that are not resident, which hold at most SMALL_SHARE of the budget together."""
    size, small = problem.planned_size(), np.zeros(problem.buffers, bool)
    held = np.flatnonzero(problem.hold != RESIDENT)
    held = held[np.argsort(size[held], kind="stable")]
    small[held[np.cumsum(size[held]) <= SMALL_SHARE * budget]] = True
    return small
