"""Minimum cut between two sides of a small network.

Source: Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation",
Soviet Math. Doklady 11, 1970: blocking flows on level graphs. O(V² E) time, far less here; no recursion.
"""

from __future__ import annotations

from collections import deque

#: More than any sum of finite capacities: an arc that is never cut.
UNCUT = 1 << 160


class Network:
    """Arcs with capacities between nodes 0 .. n - 1; node 0 is the source, node 1 the sink."""

    def __init__(self, nodes: int):
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]  # node -> arcs that leave it, reversed ones too
        self.head: list[int] = []
        self.left: list[int] = []  # capacity left; arc i ^ 1 is arc i reversed
        self.flow = 0  # capacity of the cut, once it is found

    def arc(self, tail: int, head: int, capacity: int) -> None:
        """Add an arc."""
        self.arcs[tail].append(len(self.head))
        self.arcs[head].append(len(self.head) + 1)
        self.head += [head, tail]
        self.left += [capacity, 0]

    def source_side(self) -> list[bool]:
        """Per node whether a minimum cut leaves it with the source: the smallest such side. Uses the network up."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return [depth >= 0 for depth in level]
            place = [0] * len(self.arcs)
            while self._push(level, place):
                pass

    def _levels(self) -> list[int]:
        """Arcs from the source to each node along arcs with capacity left; -1 where there is no way."""
        level = [-1] * len(self.arcs)
        level[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for arc in self.arcs[node]:
                if self.left[arc] > 0 and level[self.head[arc]] < 0:
                    level[self.head[arc]] = level[node] + 1
                    waiting.append(self.head[arc])
        return level

    def _push(self, level: list[int], place: list[int]) -> bool:
        """Send flow along one path that goes a level deeper with every arc; False when there is none."""
        path: list[int] = []
        node = 0
        while node != 1:
            while place[node] < len(self.arcs[node]):
                arc = self.arcs[node][place[node]]
                if self.left[arc] > 0 and level[self.head[arc]] == level[node] + 1:
                    break
                place[node] += 1
            else:
                if not path:
                    return False
                node = self.head[path.pop() ^ 1]
                place[node] += 1
                continue
            path.append(arc)
            node = self.head[arc]
        flow = min(self.left[arc] for arc in path)
        self.flow += flow
        for arc in path:
            self.left[arc] -= flow
            self.left[arc ^ 1] += flow
        return True
