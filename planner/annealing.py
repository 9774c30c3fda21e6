"""Simulated annealing of a sequence under a limit on its bytes; what `anneal` and `search_order` have in common.

Moves add a repeat right before a use (with repeats of its dead inputs, or later ones pulled forward), take one
out with what was run for it alone, move a repeat, or move a first run within the window its neighbours leave.
The objective is ticks + penalty · bytes over the limit, summed over steps; the penalty follows the walk so that
it keeps crossing the limit. Every move changes only the slots between the uses it touches.

Sources: Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated Annealing", 1983; for sequences with
recomputation, Imanishi et al., "A Simulated Annealing Approach to Memory Planning", NeurIPS 2023.
"""

from __future__ import annotations

import numpy as np

from planner import anneal_kernels, liveness
from planner import timeline_kernels as on
from planner.algorithms import greedy
from planner.anneal_kernels import HEAT, PENALTY, PER_TICK
from planner.closing import without_unread
from planner.monitor import Monitor
from planner.plan import Goal, Order
from planner.problem import DEVICE, RESIDENT, Problem
from planner.timeline import Timeline, sequence, timeline_of
from planner.timeline_kernels import NEVER_YET

# Share of the search that `greedy` may take for the start.
GREEDY_PART = 0.3
# Coolings one after the other: until which share of the search, and from how many mean tasks that a move may cost.
COOLINGS = ((0.6, 0.1), (1.0, 0.03))
# At the end of each.
COLD = 0.003
# Downwards: the heat of a try, its share of what is left, the first part of the peak to go down, and the least.
WARM, TRY, FIRST_STEP, LEAST_STEP = 0.1, 0.15, 0.05, 0.001
# Slots looked at between two questions whether to stop, about 10 ms, in moves.
WORK, FEWEST, MOST = 2_000_000, 20, 5_000
# Moves a step without a better sequence until a cooling is given up.
PATIENCE = 1_000
# Slots from one run to the next in a new timeline.
STRIDE = 3
# Depth of the stack of runs that one move looks at.
STACK = 256
# So many steps over the limit by a mean buffer weigh as much as a mean task at first.
SPREAD = 10
# From the seed of one timeline to that of the next.
NEXT_SEED = 7919


class Annealing:
    """One problem, annealed as often as asked."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, first_runs: int):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.first_runs = first_runs  # chance in 100 that a move is one of a first run
        resident = (problem.hold == RESIDENT) & (problem.space == DEVICE)
        self.resident_bytes = int(problem.size[resident].sum())
        self.kernels = anneal_kernels.KERNELS.compiled()
        self.rounds = 0

    def search(self) -> Order:
        """The best order by the monitor's score, from the best so far or what `greedy` finds in a part of the time."""
        problem, goal, monitor = self.problem, self.goal, self.monitor
        order = monitor.best
        if order is None:
            part = monitor.beside(monitor.judge, GREEDY_PART)
            order = greedy.plan(problem, goal, part)
            monitor.spent(part)
            monitor.offer(order)
        if goal.budget_bytes == 0 or goal.budget_bytes is None:
            extra = 0.1 if goal.max_overhead is None else goal.max_overhead
            cost_limit = NEVER_YET if goal.budget_bytes == 0 else int(problem.cost.sum() * (1 + extra))
            return self.lowered(order, 0, cost_limit)
        if liveness.peak(problem, order) > goal.budget_bytes:
            order = self.lowered(order, goal.budget_bytes, NEVER_YET)
        if liveness.peak(problem, order) <= goal.budget_bytes:
            for until, heat in COOLINGS:
                order = self.within(order, goal.budget_bytes, until, heat, int(problem.cost.sum()))
                monitor.offer(order)
        return order

    def lowered(self, order: Order, floor: int, cost_limit: int) -> Order:
        """The order with a lower peak, down to `floor`, as long as it costs at most `cost_limit` ticks."""
        part, peak = FIRST_STEP, liveness.peak(self.problem, order)
        while part >= LEAST_STEP and peak > floor and not self.monitor.should_stop():
            limit = max(floor, int(peak * (1 - part)))
            until = self.monitor.progress() + TRY * (1 - self.monitor.progress())
            found = self.within(order, limit, until, WARM, cost_limit)
            reached = liveness.peak(self.problem, found)
            if reached <= limit and liveness.cost(self.problem, found) <= cost_limit:
                order, peak = found, reached
                self.monitor.offer(order)
            else:
                part /= 2
        return order

    def within(self, order: Order, limit: int, until: float, heat: float, enough: int) -> Order:
        """The cheapest sequence with a peak of at most `limit` bytes found from `order`; `order` when there is none.

        Cools down until the monitor's `progress` is `until`; ends before when a sequence costs no more than
        `enough` ticks, or when nothing has changed for long.
        """
        problem, anneal, monitor = self.problem, self.kernels["anneal"], self.monitor
        t = self.timeline(order, limit)
        if t.counters[on.OVER] == 0:
            t.counters[on.BEST] = t.counters[on.TICKS]
        best, stack, factors = np.zeros(len(t.slot_run) + 1, np.int64), np.zeros(STACK, np.int64), self.factors()
        moves = min(MOST, max(FEWEST, WORK // len(t.slot_run)))
        start = monitor.progress()
        idle, found = 0, int(t.counters[on.BEST])
        while found > enough and idle < PATIENCE * len(order) and not monitor.should_stop():
            done = (monitor.progress() - start) / max(until - start, 1e-9)
            if done >= 1:
                break
            factors[HEAT] = heat * (COLD / heat) ** done
            anneal(t, moves, self.first_runs, factors, stack, best)
            idle = idle + moves if t.counters[on.BEST] == found else 0
            found = int(t.counters[on.BEST])
        tasks = best[1 : best[0] + 1]
        return without_unread(problem, tasks[tasks < problem.tasks]).order if len(tasks) else order

    def timeline(self, order: Order, limit: int) -> Timeline:
        """The order on a new timeline; each has random numbers of its own."""
        problem, strict = self.problem, self.goal.strict_phases
        seed = self.goal.seed + NEXT_SEED * self.rounds
        self.rounds += 1
        t = timeline_of(problem, order, limit - self.resident_bytes, self.first_runs > 0, strict, seed)
        self.kernels["fill"](t, sequence(problem, order, strict), STRIDE)
        return t

    def factors(self) -> np.ndarray:
        """float64[3] for the kernel; the heat is still missing."""
        problem = self.problem
        factors = np.zeros(3)
        factors[PENALTY] = problem.buffers / max(1.0, SPREAD * float(problem.size.sum()))
        factors[PER_TICK] = problem.tasks / max(1.0, float(problem.cost.sum()))
        return factors
