"""Saved forward values as in PyTorch's joint-graph partitioner: a minimum cut, and a knapsack for a memory budget.

Source: PyTorch's min-cut partitioner (torch/_functorch/partitioners.py; Zhang et al., "Recomputation: the min-cut
partitioner", 2023): saved values separate the forward from the backward pass with the fewest bytes. Under a memory
budget a knapsack first picks values to save, most recomputation ticks for the bytes, and the cut excludes them.
PyTorch's budget is on saved bytes, here it is on the peak: the most saved bytes whose order fits are taken.

    source ──∞──▶ a ─┤bytes of a├─▶ ──∞──▶ b ─┤bytes of b├─▶ ──∞──▶ backward      from the source: not recomputable
"""

from __future__ import annotations

import numpy as np

from planner.bounds.solvers.max_flow import MAX_BITS, uncut_source_side
from planner.problem import DEVICE, TO_LAST_READ, Problem
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import backward_start, base_order, can_recompute, order_keeping

#: Evenly spaced capacities tried first (minimum, maximum, limit on tasks in total), then bisection steps.
MIN_PARTS, PARTS, TASKS_TRIED, TRIES = 4, 32, 100_000, 6
#: Units in which the knapsack counts bytes.
UNITS = 1_000


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best order tried: evenly spaced knapsack capacities, then a bisection above the largest that fits."""
    base = base_order(problem, goal.strict_phases)
    best, partition = BestOrder.offered(monitor, base), MinCutPartition(problem, base)

    def has_room(saved_bytes: int) -> bool:
        """Whether the goal allows, or needs, that more is saved."""
        order = order_keeping(problem, partition.saved(saved_bytes), goal.strict_phases)
        return goal.has_room(problem, best.offer(order))

    # Saving nothing may peak as high as saving everything: all recomputed values may be live at once.
    low, high = 0, partition.most_bytes
    parts = min(PARTS, max(MIN_PARTS, TASKS_TRIED // max(1, problem.tasks)))
    for part in range(parts + 1):
        saved_bytes = partition.most_bytes * part // parts
        if monitor.should_stop():
            return best.order
        if has_room(saved_bytes):
            low, high = saved_bytes, min(partition.most_bytes, saved_bytes + partition.most_bytes // parts)
    for _ in range(TRIES):
        if monitor.should_stop() or high - low <= 1:
            break
        middle = (low + high) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle)
    return best.order


class MinCutPartition:
    """The flow network of one problem, and the values the knapsack may choose from."""

    def __init__(self, problem: Problem, base: Order):
        self.problem, turn = problem, backward_start(problem, base)
        self.forward = base[:turn]
        early = np.zeros(problem.tasks + 1, bool)  # the last entry is for "no producer", number -1
        early[self.forward] = True
        recomputable = np.append(can_recompute(problem), False)
        producer = problem.producer()
        self.size = np.where(problem.space == DEVICE, problem.size, 0)
        self.candidates = early[producer] & (problem.hold == TO_LAST_READ)
        self.droppable = self.candidates & recomputable[producer]  # recomputable buffers
        wanted = np.zeros(problem.buffers, bool)
        wanted[problem.reads.gather(base[turn:])] = True
        self.wanted = np.flatnonzero(wanted & self.candidates)
        self.items = self.wanted[self.droppable[self.wanted] & (self.size[self.wanted] > 0)]
        self.ticks = problem.cost[producer[self.items]]
        self.most_bytes = int(self.size[self.items].sum())
        # Bytes as capacities of the solver, and pairs (read, written) of candidates: one per read and write of a task.
        self.capacity = -(-self.size >> max(0, int(self.size[self.candidates].sum()).bit_length() - MAX_BITS))
        reads, writes = problem.reads.lists(), problem.writes.lists()
        pairs = [(a, b) for task in self.forward.tolist() for b in writes[task] for a in reads[task] if a != b]
        self.pairs = np.array(pairs, np.int64).reshape(-1, 2)
        self.pairs = self.pairs[self.candidates[self.pairs].all(axis=1)]

    def saved(self, most_bytes: int) -> np.ndarray:
        """int64[]: buffers that a minimum cut saves, with at most `most_bytes` picked by the knapsack."""
        saved = self.candidates & ~self.droppable
        saved[self.items[knapsack(self.size[self.items], self.ticks, most_bytes)]] = True
        nodes, candidates = 2 + 2 * self.problem.buffers, np.flatnonzero(self.candidates)
        inside, outside = np.split(np.arange(2, nodes), 2)
        kept, (read, written) = np.flatnonzero(saved), self.pairs[~saved[self.pairs[:, 1]]].T
        uncut_tail = (np.zeros_like(kept), outside[read], outside[self.wanted])
        uncut_head = (inside[kept], inside[written], np.ones_like(self.wanted))
        tail = np.concatenate([inside[candidates], *uncut_tail])
        head = np.concatenate([outside[candidates], *uncut_head])
        capacity = np.zeros(len(tail), np.int64)
        capacity[: len(candidates)] = self.capacity[candidates]
        side = uncut_source_side(nodes, tail, head, capacity, np.arange(len(tail)) >= len(candidates))
        return np.flatnonzero(self.candidates & side[inside] & ~side[outside])


def knapsack(size: np.ndarray, value: np.ndarray, most_bytes: int) -> np.ndarray:
    """bool[items]: items of maximum value with at most `most_bytes`; sizes are rounded up to whole units.

    Dynamic programming over units; O(items · UNITS).
    """
    unit = max(1, -(-most_bytes // UNITS))
    room = most_bytes // unit
    weight = -(-size // unit)
    best = np.zeros(room + 1, np.int64)
    taken = np.zeros((len(size), room + 1), bool)
    for i in range(len(size)):
        if weight[i] <= room:
            there = best[: room + 1 - weight[i]] + value[i]
            taken[i, weight[i] :] = there > best[weight[i] :]
            best[weight[i] :] = np.maximum(best[weight[i] :], there)
    chosen = np.zeros(len(size), bool)
    for i in range(len(size) - 1, -1, -1):
        if taken[i, room]:
            chosen[i] = True
            room -= int(weight[i])
    return chosen
