"""What a trip saves for the way back: sets of buffers, each with the fewest bytes for its price of time.

A buffer that the way back needs is saved, or made again, and then what its task reads is needed too. The
cheapest set for a price λ of a tick is a minimum cut; λ from high to low gives the lower hull of (bytes
saved, ticks spent). A partition by min-cut as in Zhang et al. 2023 (PyTorch's recomputing partitioner), with
time as a second price.

    source ──λ·ticks──▶ task ──bytes saved──▶ buffer ──∞──▶ tasks that read it, or the way back
    a task on the sink's side runs again; an arc from task to buffer that is cut is a saved buffer
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.bounds.solvers.max_flow import UNCUTTABLE, FlowNetwork
from planner.problem import BACKWARD, Problem

#: Prices tried: 2 to the power of these, times bytes per tick of the whole way out.
MAX_POWER = 10
POWERS = range(-MAX_POWER, MAX_POWER + 1, 2)
#: A price that cannot be paid.
UNSAVABLE = -1
#: Sets on the way from one cut to the next.
MAX_INTERMEDIATE = 6


@dataclass(frozen=True, slots=True)
class SaveCosts:
    """What a buffer costs to be saved: bytes over all trips; NEVER where it cannot be, 0 where it is there anyway."""

    price: np.ndarray  # int64[m]
    free: np.ndarray  # bool[m]  given to the way back anew: needs no saving


def saved_sets(problem: Problem, crossing: SaveCosts, needed: Iterable[int] = ()) -> list[tuple[int, ...]]:
    """Sets of buffers to save, ascending numbers in each, by falling price of time; each set once.

    Tasks of phase BACKWARD are the way back; `needed` are buffers it hands out beside what it reads.
    """
    ticks = np.maximum(problem.cost, 1).tolist()
    total = sum(t for t, phase in zip(ticks, problem.phase.tolist(), strict=True) if phase != BACKWARD)
    bytes_in_all = int(crossing.price[crossing.price > 0].sum())
    found: dict[tuple[int, ...], None] = {}
    for power in sorted(POWERS, reverse=True):
        # A tick costs 2^power · bytes / total; all is scaled by `total << LOWEST` to stay whole.
        price = max(1, bytes_in_all) << (power + MAX_POWER)
        saved = _cut(problem, crossing, [price * t for t in ticks], total << MAX_POWER, needed)
        if saved is not None:
            found[saved] = None
    return list(found)


def _cut(
    problem: Problem, crossing: SaveCosts, ticks: list[int], scale: int, needed: Iterable[int]
) -> tuple[int, ...] | None:
    """The buffers a minimum cut saves; None when what is needed can be neither saved nor made."""
    n, m = problem.tasks, problem.buffers
    network = FlowNetwork(2 + n + m)
    behind, again = (problem.phase == BACKWARD).tolist(), problem.repeatable().tolist()
    reads, writes, producer = problem.reads.lists(), problem.writes.lists(), problem.producer().tolist()
    free, price = crossing.free.tolist(), crossing.price.tolist()
    save = [UNCUTTABLE if price[b] == UNSAVABLE else price[b] * scale for b in range(m)]
    task_node, buffer_node = range(2, 2 + n), range(2 + n, 2 + n + m)
    for t in range(n):
        if behind[t]:
            continue
        network.arc(0, task_node[t], ticks[t] if again[t] else UNCUTTABLE)
        for b in writes[t]:
            network.arc(task_node[t], buffer_node[b], save[b])
        for b in reads[t]:
            if not free[b]:
                network.arc(buffer_node[b], task_node[t], UNCUTTABLE)
    ways = [b for b in range(m) if not free[b] and not (producer[b] >= 0 and behind[producer[b]])]
    wanted = {b for t in range(n) if behind[t] for b in reads[t]} | set(needed)
    for b in ways:
        if producer[b] < 0:
            network.arc(0, buffer_node[b], save[b])
        if b in wanted:
            network.arc(buffer_node[b], 1, UNCUTTABLE)
    side = network.source_side()
    if network.flow >= UNCUTTABLE:
        return None
    return tuple(b for b in ways if not side[buffer_node[b]] and (producer[b] < 0 or side[task_node[producer[b]]]))


def with_intermediate_sets(sets: list[list[int]], size: Mapping[int, int]) -> list[list[int]]:
    """The sets, and behind each those that lead to the next: what that drops goes one by one, large and small first."""
    result = []
    for now, following in itertools.pairwise(sets):
        result.append(now)
        dropped = sorted(set(now) - set(following), key=lambda v: (size[v], v))
        for way in (dropped, dropped[::-1]):
            left = list(dict.fromkeys([*following, *now]))
            for v in way[:MAX_INTERMEDIATE]:
                left = [other for other in left if other != v]
                result.append(left)
    return [*result, *sets[-1:]]


def evenly_spaced(count: int, most: int) -> list[int]:
    """At most `most` of the numbers below `count`, the first and the last included, evenly spread; `most` above 1."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


@dataclass(frozen=True, slots=True)
class AlternativeCost:
    """What one alternative takes; lower is better in each."""

    forward_cost: int  # ticks
    backward_cost: int  # ticks
    forward_workspace: int  # bytes
    backward_workspace: int  # bytes
    saved: int  # bytes of all trips

    def row(self) -> tuple[int, ...]:
        return (self.forward_cost, self.backward_cost, self.forward_workspace, self.backward_workspace, self.saved)


def pareto(figures: list[AlternativeCost], most: int, fixed: Collection[int] = ()) -> list[int]:
    """At most `most` places of `figures`: the first, the one that saves least, and of those no other beats the spread.

    One with nothing better than another goes. Of too many the one goes, unless it is `fixed`, whose
    neighbours by bytes saved leave the smallest share of time and bytes between them.
    """
    rows = [one.row() for one in figures]
    stays = [
        i
        for i, row in enumerate(rows)
        if i == 0
        or not any(
            j != i and all(a <= b for a, b in zip(other, row, strict=True)) and (other != row or j < i)
            for j, other in enumerate(rows)
        )
    ]
    by_bytes = sorted(stays[1:], key=lambda i: (-rows[i][4] - max(rows[i][2:4]), sum(rows[i][:2]), i))
    while len(by_bytes) + 1 > most:
        chain = [0, *by_bytes]
        gaps = [
            (chain[k] in fixed, _between(rows[chain[k - 1]], rows[chain[k + 1]], rows), k)
            for k in range(1, len(chain) - 1)
        ]
        del by_bytes[min(gaps)[2] - 1]
    return [0, *by_bytes]


def _between(one: tuple[int, ...], other: tuple[int, ...], rows: list[tuple[int, ...]]) -> float:
    """How far apart two rows are, in shares of the whole range of time and of bytes."""
    ticks = [sum(row[:2]) for row in rows]
    held = [row[4] + max(row[2:4]) for row in rows]
    time = abs(sum(one[:2]) - sum(other[:2])) / max(1, max(ticks) - min(ticks))
    space = abs(one[4] + max(one[2:4]) - other[4] - max(other[2:4])) / max(1, max(held) - min(held))
    return time + space
