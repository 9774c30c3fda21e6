"""One step of `greedy`: gaps closed under a limit, and runs taken out that a limit does not need."""

from __future__ import annotations

import numpy as np

from planner import liveness
from planner.gap_kernels import KERNELS, close_best, drop_runs, price_all, signatures
from planner.gaps import CHAIN, board_of
from planner.kernels import Kernel, compiled, is_compiled
from planner.plan import Order
from planner.problem import HANDED_OUT, TO_THE_END, Problem

# Above this many tasks compiled kernels pay for numba's start.
INTERPRETED = 300
# A price this much below the next best is looked at again later.
SLACK = 0.95
# Closing a gap may make others worth closing that were not; they are all priced again so often.
ROUNDS = 8


def closed(problem: Problem, order: Order, limit: int) -> Order:
    """The order with gaps closed where it is over `limit`, the best price first."""
    fast, degree = _fast(problem), np.diff(problem.reads.pointer) + np.diff(problem.writes.pointer)
    margin = CHAIN * int(degree.max(initial=0))
    board, ledger = board_of(problem, order, 2 * int(degree[order].sum()) + margin, not fast)
    for _ in range(ROUNDS):
        uses = np.flatnonzero(np.asarray(board.free[: board.count[0]]))
        prices = np.zeros(len(uses))
        _kernel(price_all, fast)(board, ledger, uses if fast else uses.tolist(), limit, prices)
        uses, prices = uses[prices > 0], prices[prices > 0]
        rows = uses if fast else uses.tolist()
        if not _kernel(close_best, fast)(board, ledger, rows, prices, limit, SLACK, margin):
            break
    added = board.count[1]
    at, task = np.asarray(board.added_at[:added], np.int64), np.asarray(board.added_task[:added], np.int64)
    by = np.lexsort((task, at))
    return without_unread(problem, np.insert(order, at[by], task[by]))


def trimmed(problem: Problem, order: Order, limit: int) -> Order:
    """The order without repeats that the limit does not need, the dearest taken out first."""
    fast = _fast(problem)
    while True:
        first = np.zeros(len(order), bool)
        first[np.unique(order, return_index=True)[1]] = True
        steps = np.flatnonzero(~first)
        steps = steps[np.lexsort((steps, -problem.cost[order[steps]]))]
        board, ledger = board_of(problem, order, 0, not fast)
        dropped = np.zeros(len(steps), np.int64)
        rows, tasks = (steps, order[steps]) if fast else (steps.tolist(), order[steps].tolist())
        _kernel(drop_runs, fast)(board, ledger, rows, tasks, limit, dropped)
        shorter = without_unread(problem, np.delete(order, steps[dropped > 0]))
        if len(shorter) == len(order) or liveness.peak(problem, shorter) > limit:
            return order
        order = shorter


def without_unread(problem: Problem, order: Order) -> Order:
    """The order without repeats whose outputs nobody needs."""
    while True:
        lives = liveness.lifetimes(problem, order)
        hold = problem.hold[lives.buffer]
        needed = np.bincount(lives.read_instance.index, minlength=len(hold)) > 0
        needed |= ((hold == TO_THE_END) | (hold == HANDED_OUT)) & (lives.stop == len(order))
        keep = np.zeros(len(order), bool)
        keep[np.unique(order, return_index=True)[1]] = True
        written = lives.written_instance
        keep[written.row_of_entry()[needed[written.index]]] = True
        if keep.all():
            return order
        order = order[keep]


def _fast(problem: Problem) -> bool:
    return problem.tasks > INTERPRETED or is_compiled(KERNELS)


def _kernel(kernel: Kernel, fast: bool) -> Kernel:
    return compiled(KERNELS, signatures)[KERNELS.index(kernel)] if fast else kernel
