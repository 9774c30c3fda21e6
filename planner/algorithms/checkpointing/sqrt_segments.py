"""Segments: keep the user's checkpoints, or the buffers that cross cuts of the forward pass; recompute the rest.

Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, section 4.
O(n) time a try. A chain peaks near 2√n buffers; lengths around √n are tried and the best is taken.

    forward   a ── b ── c │ d ── e ── f │ g          a cut lies where the fewest bytes cross it
              ╰───────────┼──────╯                   c and a cross the first one
"""

from __future__ import annotations

import math

import numpy as np

from planner.problem import RESIDENT, Problem
from planner.problem.best_order import BestOrder
from planner.problem.columns import sum_over_intervals
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import backward_start, base_order, order_keeping

# A try at this many tasks takes about half a second; there are at least three.
TASKS_TRIED = 400_000


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The order with the user's checkpoints, or else with the best segment length tried."""
    if problem.checkpoint.any():
        return order_keeping(problem, np.flatnonzero(problem.checkpoint), goal.strict_phases)
    order = base_order(problem, goal.strict_phases)
    forward = order[: backward_start(problem, order)]
    crossing, first, last = _crossings(problem, forward)
    best = BestOrder.offered(monitor, order)
    for length in _lengths(len(forward), max(3, TASKS_TRIED // max(1, len(order)))):
        cuts = _cuts(crossing, length)
        for keep in (_crossing_buffers(first, last, cuts), problem.writes.gather(forward[cuts])):
            if monitor.should_stop():
                return best.order
            try:
                best.offer(order_keeping(problem, keep, goal.strict_phases, monitor.check))
            except SearchCancelled:
                return best.order
    return best.order


def _lengths(tasks: int, tries: int) -> list[int]:
    """Segment lengths to try: √n first, then shorter and longer ones in geometric steps, at most a dozen."""
    root = math.isqrt(tasks)
    steps = min(tries, 12) // 2
    ratios = [r for i in range(1, steps + 1) for r in (2.0 ** (-i / 2), 2.0 ** (i / 2))]
    lengths = [max(1, round(root * ratio)) for ratio in [1.0, *ratios]]
    return [length for length in dict.fromkeys(lengths) if length < tasks]


def _crossings(problem: Problem, forward: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes across the cut after each forward task, first write of each buffer, last forward read of each)."""
    tasks = len(forward)
    first, last = np.full(problem.buffers, tasks, np.int64), np.full(problem.buffers, -1, np.int64)
    step, written = problem.writes.entries(forward)
    np.minimum.at(first, written, step)
    step, read = problem.reads.entries(forward)
    np.maximum.at(last, read, step)
    moving = (first < last) & (problem.hold != RESIDENT)
    crossing = sum_over_intervals(first[moving], last[moving], problem.size[moving], tasks)
    return crossing, np.where(moving, first, tasks), np.where(moving, last, -1)


def _cuts(crossing: np.ndarray, length: int) -> np.ndarray:
    """The task of every window of `length` tasks after which the fewest bytes cross."""
    starts = range(0, len(crossing) - length + 1, length)
    return np.array([start + int(np.argmin(crossing[start : start + length])) for start in starts], np.int64)


def _crossing_buffers(first: np.ndarray, last: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Buffers written before some cut and read after it in the forward pass."""
    next_cut = np.searchsorted(cuts, first)
    cut = np.append(cuts, len(first) + len(cuts) + last.max(initial=0) + 1)[next_cut]
    return np.flatnonzero(cut < last)
