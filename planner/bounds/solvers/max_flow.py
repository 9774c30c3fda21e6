"""Minimum cut between two sides of a network, by OR-Tools' push-relabel in whole numbers.

Source: Goldberg, Tarjan, "A New Approach to the Maximum-Flow Problem", J. ACM 35(4), 1988.
"""

from __future__ import annotations

import numpy as np

#: More than any sum of finite capacities: an arc that is never cut.
UNCUTTABLE = 1 << 160
#: Of all finite capacities together, as the solver counts; larger ones are told in larger units, rounded up.
MAX_BITS = 48


class FlowNetwork:
    """Arcs with capacities between nodes 0 .. n - 1; node 0 is the source, node 1 the sink."""

    def __init__(self, nodes: int):
        self.nodes = nodes
        self.tail: list[int] = []
        self.head: list[int] = []
        self.capacity: list[int] = []
        self.flow = 0  # capacity of the cut, once it is found

    def arc(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc."""
        self.tail.append(tail)
        self.head.append(head)
        self.capacity.append(capacity)

    def source_side(self) -> list[bool]:
        """Per node whether a minimum cut leaves it with the source: the smallest such side."""
        shift = max(0, sum(c for c in self.capacity if c < UNCUTTABLE).bit_length() - MAX_BITS)
        told = [-(-c >> shift) if c < UNCUTTABLE else 0 for c in self.capacity]
        uncut = sum(told) + 1
        told = [uncut if c >= UNCUTTABLE else new for c, new in zip(self.capacity, told, strict=True)]
        side = source_side(self.nodes, np.array(self.tail), np.array(self.head), np.array(told))
        cut = [c for t, h, c in zip(self.tail, self.head, self.capacity, strict=True) if side[t] and not side[h]]
        self.flow = sum(cut)
        return [bool(each) for each in side]


def source_side(nodes: int, tail: np.ndarray, head: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """bool[nodes]: the smallest source side of a minimum cut; int64[arcs] each, capacities below 2^62 together."""
    from ortools.graph.python import max_flow  # heavy: imported by those who solve

    side = np.zeros(nodes, bool)
    side[0] = True
    inside = (head != 0) & (tail != 1) & (head != tail)
    if not inside.any():
        return side
    flow = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(tail[inside], head[inside], capacity[inside])
    status = flow.solve(0, 1)
    assert status == flow.OPTIMAL, status
    side[flow.get_source_side_min_cut()] = True
    return side
