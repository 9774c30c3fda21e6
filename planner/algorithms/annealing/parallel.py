"""Joint annealing of order and recomputation by two parallel walks; of recomputation only if the order is given.

Both walks continue from the better of their orders after each round. `search.py` defines a walk.

    walk 0   order alone, then both ──┬── best ──▶ ──┬── best ──▶     first runs may move, if the order is free
    walk 1   recomputation alone ─────┴──────────────┴──────────▶     first runs are fixed
    round             0                      1             2

Free first runs win by far on random graphs and lose by far on training graphs, so from the second round on both walks
use the mode of the better one. Where the order is known to be free (`is_order_free`), both walks have free first runs
from the start, and long coolings; a walk on from a good plan is too short for that. The kernels release the GIL, so
threads suffice. Orders are exchanged between rounds only; under an iteration limit each walk has a quota per round, and
results do not depend on thread timing.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from planner.algorithms.annealing import move_kernels
from planner.algorithms.annealing.order_only import removed_share
from planner.algorithms.annealing.search import Annealing
from planner.algorithms.annealing.temperatures import FREE_TEMPERATURE, TEMPERATURES
from planner.algorithms.annealing.timeline_kernels import NO_BEST
from planner.algorithms.greedy import planner
from planner.problem import Problem, liveness, liveness_kernels
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

WORKERS = 2
# Chance in 100 that a move is of a first run, where those are free.
FIRST_RUN_PERCENT = 60
# Shares of the search at which rounds end, also where the order is free, and the least share of a round; rounds may end
# before.
ROUND_ENDS, FREE_ROUND_ENDS, MIN_ROUND_SHARE = (0.1, 0.2, 1.0), (0.25, 1.0), 0.05
# Rounds without a better order that end the search; each has twice the moves of the one before. By the clock, more of
# them follow within a share of the time, while the best order is not proven.
MAX_IDLE_ROUNDS, IDLE_SHARE = 3, 0.5
# Range of the initial limit of a later round with fixed first runs, as a share of the budget.
LIMIT_SHARES = (0.85, 1.1)
# Share of the first round for the order alone.
ORDER_SHARE = 0.4
# Share of the bytes over the budget from which on order alone decides much, and the time to see how much that is: a
# share of the search, and a maximum in seconds.
FREE_REMOVED, LOOK_SHARE, LOOK_SECONDS = 0.1, 0.03, 0.1
# Maximum timelines of one walk in a round, each with its own random seed.
MAX_TIMELINES = 64


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order found from the monitor's best, or from the result of `greedy` in a part of the time."""
    return anneal_in_parallel(problem, goal, monitor, planner.initial_order(problem, goal, monitor))


def anneal_in_parallel(problem: Problem, goal: Goal, monitor: Monitor, order: Order, is_free: bool = False) -> Order:
    """The best order found from `order`, by the monitor's score; `is_free` as `is_order_free` gives it."""
    walks = _ParallelAnnealing(problem, goal, monitor, order, is_free)
    _compile_kernels()  # before the second thread starts
    with ThreadPoolExecutor(1) as pool:
        while not walks.is_over():
            parts = walks.parts()
            other = pool.submit(walks.run_round, 1, parts[1])
            walks.exchange([walks.run_round(0, parts[0]), other.result()], parts)
    return walks.best


def anneal_alone(problem: Problem, goal: Goal, monitor: Monitor, order: Order, is_free: bool = False) -> Order:
    """As `anneal_in_parallel`, with both walks of a round one after the other, and one walk if the order `is_free`."""
    walks = _ParallelAnnealing(problem, goal, monitor, order, is_free)
    while not walks.is_over():
        if walks.is_free:
            part = monitor.child(monitor.judge, walks.round_share())
            walks.exchange([walks.run_round(0, part)], [part])
            continue
        share = walks.round_share() / WORKERS
        first = monitor.child(monitor.judge, share)
        orders = [walks.run_round(0, first)]
        second = monitor.child(monitor.judge, share / (1 - share))
        orders.append(walks.run_round(1, second))
        walks.exchange(orders, [first, second])
    return walks.best


def is_order_free(problem: Problem, goal: Goal, monitor: Monitor) -> bool:
    """Whether order alone removes much of what exceeds the budget; False under an iteration limit.

    Looks for at most LOOK_SECONDS of the monitor's time, and offers it the order found.
    """
    if monitor.iterations is not None or not goal.budget_bytes or goal.order_is_given:
        return False
    _compile_kernels()  # else they would be loaded in the time of the look
    look = monitor.child(monitor.judge, LOOK_SHARE)
    look.seconds = min(look.seconds, LOOK_SECONDS)
    removed = removed_share(problem, goal, look)
    monitor.absorb(look)
    if look.best is not None:
        monitor.offer(look.best)
    return removed >= FREE_REMOVED


def _compile_kernels() -> None:
    for kernels in (move_kernels.KERNELS, liveness_kernels.KERNELS):
        kernels.compiled()


class _ParallelAnnealing:
    """State of both walks; `parts` and `exchange` delimit the rounds."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, order: Order, is_free: bool = False):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.best, self.score = order, monitor.judge(order)
        self.is_free = is_free
        self.first_runs = (
            [0, 0] if goal.order_is_given else [FIRST_RUN_PERCENT, FIRST_RUN_PERCENT if self.is_free else 0]
        )
        self.begin = monitor.progress()
        self.round = self.idle = 0
        self.once = problem.single_run_ticks()

    def is_over(self) -> bool:
        return self.is_idle() or self.is_proven() or self.monitor.should_stop()

    def is_idle(self) -> bool:
        """Whether the last rounds found nothing better, and further ones are not likely to."""
        if self.idle < MAX_IDLE_ROUNDS:
            return False
        by_clock = self.monitor.iterations is None and bool(self.goal.budget_bytes)
        return not by_clock or self.monitor.progress() >= self.begin + IDLE_SHARE * (1 - self.begin)

    def is_proven(self) -> bool:
        """Whether the lower bound proves that no plan within the budget costs less."""
        fits = bool(self.goal.budget_bytes) and not self.score.bytes_over_budget
        return fits and self.score.cost <= max(self.once, self.monitor.cost_bound.ticks)

    def round_share(self) -> float:
        """Share of the remaining search for the next round."""
        now = (self.monitor.progress() - self.begin) / max(1 - self.begin, 1e-9)
        ends = FREE_ROUND_ENDS if self.is_free else ROUND_ENDS
        end = next((end for end in ends if end >= now + MIN_ROUND_SHARE), 1.0)
        return min(1.0, (end - now) / max(1 - now, 1e-9))

    def parts(self) -> list[Monitor]:
        """Monitors of the walks for the next round, which run at once."""
        monitor, share = self.monitor, self.round_share()
        share = share if monitor.iterations is None else share / WORKERS
        return [monitor.child(monitor.judge, share) for _ in range(WORKERS)]

    def run_round(self, walk: int, monitor: Monitor) -> Order:
        """The result of one walk from the best order in one round."""
        problem, goal, order = self.problem, self.goal, self.best
        number = self.round * WORKERS + walk
        annealing = Annealing(problem, goal, monitor, self.first_runs[walk], number * MAX_TIMELINES)
        if not goal.budget_bytes:
            return annealing.lowered(order, 0, cost_limit(problem, goal))
        budget, start, temperature, limit_share = goal.budget_bytes, order, FREE_TEMPERATURE, 1.0
        if not self.first_runs[walk]:
            temperature, draw = TEMPERATURES[0], random.Random(f"{goal.seed} {number}")
            if self.round:
                temperature, limit_share = draw.choice(TEMPERATURES), draw.uniform(*LIMIT_SHARES)
        elif not self.round and not self.is_free:
            start = annealing.reorder(base_order(problem, goal.strict_phases), budget, ORDER_SHARE)
            if liveness.peak(problem, start) <= budget:
                return start
        found = annealing.within(
            start, budget, 1.0, temperature, self.once, limit_share, 2 ** min(self.idle, MAX_IDLE_ROUNDS - 1)
        )
        if liveness.peak(problem, found) <= budget:
            return found
        return annealing.lowered(order, budget, NO_BEST)

    def exchange(self, orders: list[Order], parts: list[Monitor]) -> None:
        """Continue both walks from the best order, and from the second round on in its mode; ties: the first walk."""
        scores = [self.monitor.judge(order) for order in orders]
        for part in parts:
            self.monitor.absorb(part)
        better = min(range(len(orders)), key=scores.__getitem__)
        if self.round and scores[better] < max(scores):
            self.first_runs = [self.first_runs[better]] * WORKERS
        self.round += 1
        self.idle += 1
        if scores[better] < self.score:
            self.best, self.score, self.idle = orders[better], scores[better], 0
            self.monitor.offer(self.best)


def cost_limit(problem: Problem, goal: Goal) -> int:
    """Maximum ticks of a plan with the lowest peak; unlimited if the goal is the peak only."""
    if goal.budget_bytes == 0:
        return NO_BEST
    return goal.cost_limit(problem)
