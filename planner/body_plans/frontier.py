"""Frontier of saved sets: sets of buffers to save for the backward pass, each with the fewest bytes for a time price.

A buffer that the backward pass needs is saved or recomputed; recomputation needs the buffers that its task reads. The
cheapest set for a multiplier λ (bytes per tick) is a minimum cut; λ from high to low gives the lower hull of (bytes
saved, ticks spent). Source: min-cut partition as in Zhang et al. 2023 (PyTorch's recomputing partitioner), with time
as a second price.

    source ──λ·ticks──▶ task ──bytes saved──▶ buffer ──∞──▶ tasks that read it, or the backward pass
    a task on the sink's side is recomputed; a cut arc from task to buffer is a saved buffer
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.bounds.solvers.max_flow import UNCUTTABLE, FlowNetwork
from planner.problem import BACKWARD, Problem

#: Multipliers: 2 to the power of these, times (bytes that may be saved / ticks of the forward pass).
MAX_POWER = 10
POWERS = range(-MAX_POWER, MAX_POWER + 1, 2)
#: Price of a buffer that cannot be saved.
UNSAVABLE = -1
#: Intermediate sets between two neighbouring cuts, for each order of dropping.
MAX_INTERMEDIATE = 6


@dataclass(frozen=True, slots=True)
class SaveCosts:
    """Cost of saving each buffer."""

    price: np.ndarray  # int64[m]  bytes over all iterations; UNSAVABLE, or 0 if the buffer is available anyway
    free: np.ndarray  # bool[m]  an input of the backward pass: needs no saving


def saved_sets(problem: Problem, crossing: SaveCosts, needed: Iterable[int] = ()) -> list[tuple[int, ...]]:
    """Distinct sets of buffers to save, by falling multiplier; buffers ascend within each set.

    Tasks of phase BACKWARD are the backward pass; `needed` are buffers that it outputs without reading them.
    """
    ticks = np.maximum(problem.cost, 1).tolist()
    total = sum(t for t, phase in zip(ticks, problem.phase.tolist(), strict=True) if phase != BACKWARD)
    bytes_in_all = int(crossing.price[crossing.price > 0].sum())
    found: dict[tuple[int, ...], None] = {}
    for power in sorted(POWERS, reverse=True):
        # A tick costs 2^power · bytes / total; scaling by `total << MAX_POWER` keeps all capacities integral.
        price = max(1, bytes_in_all) << (power + MAX_POWER)
        saved = _cut(problem, crossing, [price * t for t in ticks], total << MAX_POWER, needed)
        if saved is not None:
            found[saved] = None
    return list(found)


def _cut(
    problem: Problem, crossing: SaveCosts, ticks: list[int], scale: int, needed: Iterable[int]
) -> tuple[int, ...] | None:
    """Buffers saved by a minimum cut; None if a needed buffer can be neither saved nor recomputed."""
    n, m = problem.tasks, problem.buffers
    task_node, buffer_node = range(2, 2 + n), range(2 + n, 2 + n + m)
    backward, producer = (problem.phase == BACKWARD).tolist(), problem.producer().tolist()
    free, price = crossing.free.tolist(), crossing.price.tolist()
    save = [UNCUTTABLE if price[b] == UNSAVABLE else price[b] * scale for b in range(m)]
    network = FlowNetwork(2 + n + m)
    _add_forward_tasks(network, problem, ticks, save, free)
    savable = [b for b in range(m) if not free[b] and not (producer[b] >= 0 and backward[producer[b]])]
    read_backward = {*problem.reads.gather(np.flatnonzero(backward)).tolist(), *needed}
    for b in savable:
        if producer[b] < 0:
            network.arc(0, buffer_node[b], save[b])
        if b in read_backward:
            network.arc(buffer_node[b], 1, UNCUTTABLE)
    side = network.source_side()
    if network.flow >= UNCUTTABLE:
        return None
    return tuple(b for b in savable if not side[buffer_node[b]] and (producer[b] < 0 or side[task_node[producer[b]]]))


def _add_forward_tasks(
    network: FlowNetwork, problem: Problem, ticks: list[int], save: list[int], free: list[bool]
) -> None:
    """Add the arcs into and out of each task that is not in the backward pass."""
    repeatable, reads, writes = problem.repeatable().tolist(), problem.reads.lists(), problem.writes.lists()
    for t in np.flatnonzero(problem.phase != BACKWARD).tolist():
        node, first_buffer = 2 + t, 2 + problem.tasks
        network.arc(0, node, ticks[t] if repeatable[t] else UNCUTTABLE)
        for b in writes[t]:
            network.arc(node, first_buffer + b, save[b])
        for b in reads[t]:
            if not free[b]:
                network.arc(first_buffer + b, node, UNCUTTABLE)


def with_intermediate_sets(sets: list[list[int]], size: Mapping[int, int]) -> list[list[int]]:
    """The sets, each followed by sets between it and the next: drop buffers one by one, in both orders of size."""
    result = []
    for now, following in itertools.pairwise(sets):
        result.append(now)
        dropped = sorted(set(now) - set(following), key=lambda v: (size[v], v))
        for dropping in (dropped, dropped[::-1]):
            left = list(dict.fromkeys([*following, *now]))
            for v in dropping[:MAX_INTERMEDIATE]:
                left = [other for other in left if other != v]
                result.append(left)
    return [*result, *sets[-1:]]


def evenly_spaced(count: int, limit: int) -> list[int]:
    """At most `limit` (2 or more) of the numbers below `count`, evenly spaced, with the first and the last."""
    if count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / (limit - 1)) for i in range(limit)]


class AlternativeCost(NamedTuple):
    """Cost of one alternative; lower is better in each field."""

    forward_cost: int  # ticks
    backward_cost: int  # ticks
    forward_workspace: int  # bytes
    backward_workspace: int  # bytes
    saved: int  # bytes over all iterations

    @property
    def ticks(self) -> int:
        return self.forward_cost + self.backward_cost

    @property
    def held(self) -> int:
        """Bytes saved, and the larger workspace."""
        return self.saved + max(self.forward_workspace, self.backward_workspace)


def pareto(figures: list[AlternativeCost], limit: int, fixed: Collection[int] = ()) -> list[int]:
    """At most `limit` indices of `figures`: the first, and a spread of the Pareto set, with the one that saves least.

    Dominated alternatives are dropped. Above the limit, drop the alternative whose neighbours by bytes saved are
    closest in time and bytes; `fixed` ones are dropped last.
    """
    undominated = [i for i in range(len(figures)) if i == 0 or not _is_dominated(figures, i)]
    by_bytes = sorted(undominated[1:], key=lambda i: (-figures[i].held, figures[i].ticks, i))
    while len(by_bytes) + 1 > limit:
        chain = [0, *by_bytes]
        gaps = [
            (chain[k] in fixed, _distance(figures[chain[k - 1]], figures[chain[k + 1]], figures), k)
            for k in range(1, len(chain) - 1)
        ]
        del by_bytes[min(gaps)[2] - 1]
    return [0, *by_bytes]


def _is_dominated(figures: list[AlternativeCost], i: int) -> bool:
    """Whether another alternative is nowhere worse, or an earlier one is equal."""
    return any(
        j != i and all(a <= b for a, b in zip(other, figures[i], strict=True)) and (other != figures[i] or j < i)
        for j, other in enumerate(figures)
    )


def _distance(one: AlternativeCost, other: AlternativeCost, figures: list[AlternativeCost]) -> float:
    """Sum of the differences of two alternatives in time and in bytes, as shares of the range."""
    ticks, held = [each.ticks for each in figures], [each.held for each in figures]
    time = abs(one.ticks - other.ticks) / max(1, max(ticks) - min(ticks))
    return time + abs(one.held - other.held) / max(1, max(held) - min(held))
