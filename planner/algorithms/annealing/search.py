"""Simulated annealing of an order under a memory limit; the common part of `anneal` and `search_order`.

Moves: insert a recomputation right before a use (recomputing its dead inputs too, or pulling later recomputations
forward), drop one together with the runs that served it only, move one, or move a first run within the window that its
neighbours leave, or further together with neighbours in the way. Most moves of first runs are at steps over the limit.
The objective is ticks + penalty · bytes over the limit, summed over steps. The penalty adapts so that the walk
keeps crossing the limit. Where first runs move, some bytes over the limit are free at first, and fewer as it cools,
because feasible orders are isolated. Every move changes only the slots between the uses it touches.

Sources: Kirkpatrick, Gelatt, Vecchi, "Optimization by Simulated Annealing", 1983; for sequences with
recomputation, Imanishi et al., "A Simulated Annealing Approach to Memory Planning", NeurIPS 2023.
"""

from __future__ import annotations

import numpy as np

from planner.algorithms.annealing import move_kernels
from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.move_kernels import FACTORS, PENALTY, PER_TICK, SLACK, TEMPERATURE
from planner.algorithms.annealing.temperatures import (
    COLD,
    FLAT_TEMPERATURE,
    FREE_COLD,
    NEAR_TEMPERATURE,
    ORDER_TEMPERATURE,
    PEAK_TEMPERATURE,
)
from planner.algorithms.annealing.timeline import fenced_sequence, order_of, timeline_of
from planner.algorithms.annealing.timeline_kernels import AnnealingTimeline
from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order

# Search for a lower peak: share of a try of the remaining search, first and minimum step as shares of the peak.
TRY_SHARE, FIRST_STEP, MIN_STEP = 0.15, 0.05, 0.001
# Slots visited between two polls of the monitor, about 10 ms, and limits on the moves between them.
WORK, MIN_MOVES, MAX_MOVES = 2_000_000, 200, 5_000
# Moves per run in one cooling: with fixed first runs, and with moving ones.
MOVES_PER_RUN, FREE_MOVES_PER_RUN = 1_500, 5_000
# Share of a cooling during which its limit still approaches the final one.
RELAXED_SHARE = 0.3
# Slots from one run to the next in a new timeline.
STRIDE = 3
# Bytes over the limit that are free where first runs move: share of limit · runs at temperature 1, power of the
# temperature with which they fall, share of the cooling after which none are. Minimum penalty until then, as a share of
# the first.
FREE_SHARE, FREE_POWER, TIGHT_SHARE, MIN_PENALTY = 0.06, 1.5, 0.9, 1e-3
# Depth of the stack of runs of one move.
STACK = 256
# A mean buffer over the limit at this many steps weighs as much as a mean task at first.
PENALTY_STEPS = 10
# Increment of the seed from one timeline to the next.
NEXT_SEED = 7919
# Shares of a limit above which a flat order holds bytes as rarely as possible, and above which bytes count as often as
# OVER_WEIGHT.
FLAT_SHARE, STEEP_SHARE, OVER_WEIGHT = 0.885, 0.985, 100
# Share of a limit above which bytes are near it, and weight of bytes above the limit among them.
NEAR_SHARE, NEAR_WEIGHT = 0.9, 3000
# Chance in 100 that a move is of a first run where nothing else may change.
FIRST_RUNS_ALONE = 100


class Annealing:
    """Annealing runs for one problem, each with its own random numbers."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, first_runs: int, rounds: int = 0):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.first_runs = first_runs  # chance in 100 that a move is of a first run
        self.resident_bytes = problem.resident_bytes()
        self.kernels = move_kernels.KERNELS.compiled()
        self.rounds = rounds

    def lowered(self, order: Order, floor: int, cost_limit: int) -> Order:
        """The order with a lower peak, down to `floor`, at a cost of at most `cost_limit` ticks."""
        part, peak = FIRST_STEP, liveness.peak(self.problem, order)
        while part >= MIN_STEP and peak > floor and not self.monitor.should_stop():
            limit = max(floor, int(peak * (1 - part)))
            until = self.monitor.progress() + TRY_SHARE * (1 - self.monitor.progress())
            found = self.within(order, limit, until, PEAK_TEMPERATURE, cost_limit)
            reached = liveness.peak(self.problem, found)
            if reached <= limit and liveness.cost(self.problem, found) <= cost_limit:
                order, peak = found, reached
                self.monitor.offer(order)
            else:
                part /= 2
        return order

    def reorder(self, order: Order, limit: int, until: float, temperature: float = ORDER_TEMPERATURE) -> Order:
        """The order with first runs rearranged to exceed `limit` less, even if it still exceeds it."""
        t = self.timeline(order, limit, FIRST_RUNS_ALONE)
        self.cool(t, np.zeros(len(t.slot_run) + 1, np.int64), limit, until, temperature, 0, FIRST_RUNS_ALONE)
        return without_unread_repeats(self.problem, order_of(self.problem, t)).order

    def flattened(self, order: Order, limit: int, until: float) -> Order:
        """The order with first runs rearranged to hold less near `limit`, and no more than that if possible."""
        flat, steep = (int((limit - self.resident_bytes) * share) for share in (FLAT_SHARE, STEEP_SHARE))
        t = self.timeline(order, flat + self.resident_bytes, FIRST_RUNS_ALONE)
        _weigh_above(t, steep, OVER_WEIGHT)
        unused = np.zeros(len(t.slot_run) + 1, np.int64)
        self.cool(t, unused, flat + self.resident_bytes, until, FLAT_TEMPERATURE, 0, FIRST_RUNS_ALONE)
        return without_unread_repeats(self.problem, order_of(self.problem, t)).order

    def within(
        self,
        order: Order,
        limit: int,
        until: float,
        temperature: float,
        enough: int,
        limit_share: float = 1.0,
        patience: int = 1,
    ) -> Order:
        """The cheapest order with a peak of at most `limit` bytes found from `order`; `order` itself if none is found.

        Cools down until the monitor's `progress` reaches `until`, or after `patience` times the moves that the length
        requires; ends early at a cost of at most `enough` ticks. The limit starts at `limit_share` of its value.
        """
        t = self.timeline(order, limit, self.first_runs)
        if t.counters[on.OVER] == 0:
            t.counters[on.BEST] = t.counters[on.TICKS]
        best = np.zeros(len(t.slot_run) + 1, np.int64)
        self.cool(t, best, limit, until, temperature, enough, self.first_runs, limit_share, patience)
        return self._stored(best, order)

    def flat_within(self, order: Order, limit: int, until: float, near_bytes: int) -> Order:
        """The cheapest order found that holds about `near_bytes` near `limit`, a sum over steps as of `bytes_near`.

        `order` itself if none is found, or if it is one and none is cheaper. Bytes above the limit count NEAR_WEIGHT
        times, so that a small sum leaves no room for them. The walk sums over slots, of which some are empty.
        """
        near = near_limit(self.problem, limit)
        t = self.timeline(order, near, self.first_runs)
        held = bytes_near(self.problem, order, limit)
        slots_per_step = int(t.counters[on.OVER]) / held if held else STRIDE
        t.counters[on.MAX_OVER] = int(slots_per_step * near_bytes)
        _weigh_above(t, limit - self.resident_bytes, NEAR_WEIGHT)
        if t.counters[on.OVER] <= t.counters[on.MAX_OVER]:
            t.counters[on.BEST] = t.counters[on.TICKS]
        best = np.zeros(len(t.slot_run) + 1, np.int64)
        self.cool(t, best, near, until, NEAR_TEMPERATURE, 0, self.first_runs)
        return self._stored(best, order)

    def _stored(self, best: np.ndarray, order: Order) -> Order:
        """The order that the kernel stored; `order` if it stored none."""
        tasks = best[1 : best[0] + 1]
        return without_unread_repeats(self.problem, tasks[tasks < self.problem.tasks]).order if len(tasks) else order

    def cool(
        self,
        t: AnnealingTimeline,
        best: np.ndarray,
        limit: int,
        until: float,
        temperature: float,
        enough: int,
        first_runs: int,
        limit_share: float = 1.0,
        patience: int = 1,
    ) -> None:
        """Anneal a timeline from `temperature` until it is cold."""
        anneal, monitor = self.kernels["anneal"], self.monitor
        stack, factors = np.zeros(STACK, np.int64), self.factors()
        moves = min(MAX_MOVES, max(MIN_MOVES, WORK // len(t.slot_run)))
        cold, moves_per_run = (FREE_COLD, FREE_MOVES_PER_RUN) if first_runs else (COLD, MOVES_PER_RUN)
        runs = int((t.slot_run >= 0).sum())
        enough_moves, least_penalty = patience * moves_per_run * runs, MIN_PENALTY * factors[PENALTY]
        if not self.problem.tasks:
            return  # nothing to move
        start, moved, known, limit = monitor.progress(), 0, int(t.counters[on.BEST]), limit - self.resident_bytes
        if limit_share != 1.0:
            t.counters[on.BEST] = 0  # the best order is stored per limit
        while not monitor.should_stop():
            done = max((monitor.progress() - start) / max(until - start, 1e-9), moved / enough_moves)
            if done >= 1:
                break
            if limit_share != 1.0:
                now = (
                    limit
                    if done >= RELAXED_SHARE
                    else int(limit * (limit_share + (1 - limit_share) * done / RELAXED_SHARE))
                )
                t.counters[[on.LIMIT, on.OVER]] = now, np.maximum(t.bytes - now, 0).sum()
                if done >= RELAXED_SHARE:
                    t.counters[on.BEST], limit_share = known, 1.0
            factors[TEMPERATURE], factors[SLACK] = temperature * (cold / temperature) ** done, t.counters[on.MAX_OVER]
            if 0 < first_runs < FIRST_RUNS_ALONE and done < TIGHT_SHARE:
                factors[SLACK] = limit * runs * FREE_SHARE * factors[TEMPERATURE] ** FREE_POWER
                factors[PENALTY] = max(factors[PENALTY], least_penalty)
            anneal(t, moves, first_runs, factors, stack, best)
            moved += moves
            if t.counters[on.BEST] <= enough and limit_share == 1.0:
                break
            if first_runs == FIRST_RUNS_ALONE and t.counters[on.OVER] == 0:
                break

    def timeline(self, order: Order, limit: int, first_runs: int) -> AnnealingTimeline:
        """A new timeline with the order and its own random seed."""
        problem, strict = self.problem, self.goal.strict_phases
        seed = self.goal.seed + NEXT_SEED * self.rounds
        self.rounds += 1
        t = timeline_of(problem, order, limit - self.resident_bytes, first_runs > 0, strict, seed)
        self.kernels["fill"](t, fenced_sequence(problem, order, strict), STRIDE)
        return t

    def factors(self) -> np.ndarray:
        """float64[FACTORS] for the kernel, without the temperature and the slack."""
        problem = self.problem
        factors = np.zeros(FACTORS)
        factors[PENALTY] = problem.buffers / max(1.0, PENALTY_STEPS * float(problem.size.sum()))
        factors[PER_TICK] = problem.tasks / max(1.0, float(problem.cost.sum()))
        return factors


def _weigh_above(t: AnnealingTimeline, limit: int, weight: int) -> None:
    """Count bytes above a second limit, on the non-resident bytes, so many times more in OVER."""
    t.counters[[on.MARGIN, on.WEIGHT]] = limit - t.counters[on.LIMIT], weight
    t.counters[on.OVER] += weight * np.maximum(t.bytes - limit, 0).sum()


def bytes_near(problem: Problem, order: Order, limit: int) -> int:
    """Bytes above NEAR_SHARE of what a limit leaves beside residents, summed over steps."""
    return bytes_above(problem, order, near_limit(problem, limit))


def bytes_above(problem: Problem, order: Order, limit: int) -> int:
    """Bytes above a limit, summed over steps."""
    return int(np.maximum(liveness.profile(problem, order) - limit, 0).sum())


def near_limit(problem: Problem, limit: int) -> int:
    """Bytes from which on a step is near a limit."""
    resident = problem.resident_bytes()
    return resident + int((limit - resident) * NEAR_SHARE)
