"""Blocks: the best plans of every distinct block, then the best chain of them through all blocks within the budget.

    block       0       1       2    ...      k        bytes saved by earlier blocks are live during each block, in the
    plan        p2      p2      p2            p0       forward and the backward pass: the last blocks have least room

A plan of a block is a set of saved buffers; it has a cost in ticks, saved bytes between the block's forward and
backward part, and a peak in each. Equal blocks share their plans. The chain is a dynamic program over (saved bytes so
far, ticks) with exact bytes, after Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing
for heterogeneous chains", 2019, without its discretised memory sizes. Several successive blocks may save nothing
between them. The chain is applied to all blocks and scored by the evaluator; if its peak differs from the prediction,
the budget of the chain is adjusted.
"""

from __future__ import annotations

from planner.algorithms.blocks import kernels as block_kernels
from planner.algorithms.blocks.chain_dp import BlockChainDp
from planner.algorithms.blocks.detection import blocks_of
from planner.algorithms.greedy import planner
from planner.algorithms.greedy.gap_closing import GapCloser
from planner.algorithms.greedy.gaps import evaluate_order
from planner.bounds import largest_task
from planner.problem import Problem
from planner.problem.best_order import BestOrder
from planner.problem.liveness import cost, peak
from planner.problem.monitor import Monitor, SearchCancelled, is_watched
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

#: Lengths of parts (successive blocks that save nothing between them), tried in this order.
PART_LENGTHS = ((1,), (1, 2), (1, 2, 3, 4))
#: Maximum adjustments of the budget, the tolerance (1 / NEAR of the budget), and steps of the bisection.
MAX_BUDGET_FIXES, NEAR, BISECTION_STEPS = 4, 500, 14
#: Maximum tasks for interpreted kernels if compiled ones are in the disk cache.
MAX_INTERPRETED = 60
#: Above this many tasks `greedy` runs only if the blocks found no order within the budget.
MAX_GREEDY_TASKS = 20_000


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget, or the lowest peak within the overhead."""
    search = _BlockSearch(problem, goal, monitor)
    try:
        return search.order()
    except SearchCancelled:
        return search.best.order


class _BlockSearch:
    """One problem, and the best order so far."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.closing = GapCloser(problem, monitor.should_stop, monitor.check)
        self.known = monitor.best is not None
        base = base_order(problem, goal.strict_phases)
        self.best = BestOrder.offered(monitor, base if monitor.best is None else monitor.best)
        self.best.offer(base)

    def order(self) -> Order:
        problem, goal, monitor = self.problem, self.goal, self.monitor
        blocks = blocks_of(problem, goal.strict_phases, monitor.check if is_watched(problem.tasks) else lambda: None)
        highest = int(blocks.base.step_bytes.max(initial=0))
        if (goal.budget_bytes is not None and highest <= goal.budget_bytes) or monitor.should_stop():
            return self.best.order
        if problem.tasks <= MAX_GREEDY_TASKS and not self.known:
            self.best.offer(planner.plan(problem, goal, monitor))
        if blocks.out[-1] > 0:
            chain = BlockChainDp(blocks, block_kernels.KERNELS, self.uses_compiled())
            for lengths in PART_LENGTHS:
                before = self.best.score
                if monitor.should_stop() or not chain.add_parts(lengths, monitor.should_stop, monitor.check):
                    break
                if goal.budget_bytes:
                    self.within(chain, goal.budget_bytes)
                else:
                    self.lowest(chain, largest_task.bound(problem).bytes, highest)
                if self.best.score == before:
                    break
            self.trim()
        if problem.tasks > MAX_GREEDY_TASKS and self.best.score.bytes_over_budget > 0 and not monitor.should_stop():
            self.best.offer(planner.plan(problem, goal, monitor))
        return self.best.order

    def uses_compiled(self) -> bool:
        """Whether compiled kernels are loaded or pay off; plans do not depend on it."""
        kernels, tasks = block_kernels.KERNELS, self.problem.tasks
        return self.closing.fast or kernels.is_compiled() or (tasks > MAX_INTERPRETED and kernels.is_on_disk())

    def is_cancelled(self) -> bool:
        """Poll within a chain; does not count as an iteration."""
        return self.monitor.cancelled

    def within(self, chain: BlockChainDp, budget: int) -> None:
        """Offer the chain's order; while its peak misses the budget, retry with an adjusted budget."""
        chain_budget, last = budget, -1
        for _ in range(MAX_BUDGET_FIXES):
            order = chain.order(chain_budget, self.is_cancelled)
            if order is None:
                return
            highest = self.best.offer(order).peak_bytes
            if highest == last or 0 <= budget - highest <= budget // NEAR or self.monitor.should_stop():
                return
            chain_budget, last = chain_budget + budget - highest, highest

    def lowest(self, chain: BlockChainDp, low: int, high: int) -> None:
        """Bisect for the lowest budget that the chain meets within the time limit."""
        limit = None if self.goal.budget_bytes is not None else self.goal.cost_limit(self.problem)
        for _ in range(BISECTION_STEPS):
            if high - low < 2 or self.monitor.should_stop():
                return
            middle = (low + high) // 2
            order = chain.order(middle, self.is_cancelled)
            if order is None or (limit is not None and cost(self.problem, order) > limit):
                low = middle
            else:
                self.best.offer(order)
                high = middle

    def trim(self) -> None:
        """Remove recomputations that the budget does not need from the best order, or reduce it to the budget.

        For the budget 0, reduce it to the bytes of the largest task.
        """
        budget = self.goal.budget_bytes
        if self.monitor.should_stop() or budget is None or len(self.best.order) == 0:
            return
        budget = budget or largest_task.bound(self.problem).bytes
        if peak(self.problem, self.best.order) > budget:
            self.best.offer(self.closing.reduce_to(self.best.order, budget)[0])
        else:
            self.best.offer(self.closing.trim_repeats(evaluate_order(self.problem, self.best.order), budget).order)
