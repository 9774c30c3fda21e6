"""Maximum flow and minimum cut by OR-Tools' push-relabel, in integers; node 0 is the source, node 1 the sink.

Source: Goldberg, Tarjan, "A New Approach to the Maximum-Flow Problem", J. ACM 35(4), 1988.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: More than any sum of finite capacities: an arc that is never cut.
UNCUTTABLE = 1 << 160
#: Bits of the sum of all finite capacities in the solver; larger sums are scaled down, rounded up.
MAX_BITS = 48


class FlowNetwork:
    """Arcs with capacities between nodes 0 .. n - 1; capacities may exceed 64 bits."""

    def __init__(self, nodes: int):
        self.nodes = nodes
        self.tail: list[int] = []
        self.head: list[int] = []
        self.capacity: list[int] = []
        self.flow = 0  # capacity of the minimum cut, set by `source_side`

    def arc(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc."""
        self.tail.append(tail)
        self.head.append(head)
        self.capacity.append(capacity)

    def source_side(self) -> list[bool]:
        """Whether each node is on the smallest source side of a minimum cut. Sets `flow` to the capacity of the cut."""
        shift = max(0, sum(c for c in self.capacity if c < UNCUTTABLE).bit_length() - MAX_BITS)
        scaled = np.array([-(-c >> shift) if c < UNCUTTABLE else 0 for c in self.capacity])
        uncut = np.array([c >= UNCUTTABLE for c in self.capacity], bool)
        side = uncut_source_side(self.nodes, np.array(self.tail), np.array(self.head), scaled, uncut)
        cut = [c for t, h, c in zip(self.tail, self.head, self.capacity, strict=True) if side[t] and not side[h]]
        self.flow = sum(cut)
        return [bool(each) for each in side]


def uncut_source_side(
    nodes: int, tail: np.ndarray, head: np.ndarray, capacity: np.ndarray, uncut: np.ndarray
) -> np.ndarray:
    """bool[nodes]: the smallest source side of a minimum cut of arcs int64[arcs] that cuts none of `uncut`, bool[arcs].

    Capacities of the other arcs, times the number of `uncut` ones, are less than 2^62.
    """
    capacity = np.where(uncut, 0, capacity)
    capacity[uncut] = capacity.sum() + 1
    inside = (head != 0) & (tail != 1) & (head != tail)
    return source_side(nodes, solve(tail[inside], head[inside], capacity[inside]) if inside.any() else None)


def solve(tail: np.ndarray, head: np.ndarray, capacity: np.ndarray) -> Any:
    """The solved maximum flow (OR-Tools SimpleMaxFlow) of arcs int64[arcs], capacities below 2^62 in total.

    No arc enters node 0, leaves node 1 or is a loop.
    """
    from ortools.graph.python import max_flow  # heavy: imported where a network is solved

    flow = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(tail, head, capacity)
    status = flow.solve(0, 1)
    assert status == flow.OPTIMAL, status
    return flow


def source_side(nodes: int, flow: Any) -> np.ndarray:
    """bool[nodes]: the smallest source side of a minimum cut; node 0 only if `flow` is None (no arcs)."""
    side = np.zeros(nodes, bool)
    if flow is not None:
        side[flow.get_source_side_min_cut()] = True
    side[0] = True
    return side
