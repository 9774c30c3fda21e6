"""Training steps of equal residual layers, for tests of blocks."""

from __future__ import annotations

from planner.problem import BACKWARD, FORWARD, Problem
from tests.planner.drawn import problem_of

#: Bytes and ticks of the values and tasks inside a layer.
INSIDE = ((8, 1), (30, 2), (30, 9), (16, 3), (4, 1), (40, 5), (40, 2), (12, 7), (8, 4))


def stack(layers: int, odd: int = -1, saved: tuple[int, ...] = (0, 2, 3, 5, 6, 8)) -> Problem:
    """`layers` layers, of which layer `odd` has one dearer task; gradients read what `saved` lists.

    x ──▶ 0 ──▶ 1 ──▶ ... ──▶ 8 ──▶ + ──▶ x        the sum is read by the next layer alone, and by its own gradient
    ╰───────────────────────────────╯
    """
    reads: list[list[int]] = [[]]
    writes, cost, phase, size = [[0]], [1], [FORWARD], [8]

    def task(reading: list[int], ticks: int, of: int, size_bytes: int) -> int:
        reads.append(reading)
        writes.append([len(size)])
        cost.append(ticks)
        phase.append(of)
        size.append(size_bytes)
        return len(size) - 1

    x, made = 0, []
    for layer in range(layers):
        values, h = [], x
        for i, (size_bytes, ticks) in enumerate(INSIDE):
            h = task([h], ticks + 5 * (layer == odd and i == 4), FORWARD, size_bytes)
            values.append(h)
        made.append((x, values))
        x = task([x, h], 2, FORWARD, 8)
    gradient = task([x], 1, BACKWARD, 8)
    for x, values in reversed(made):
        down = gradient
        for i in reversed(range(len(INSIDE))):
            used = [values[i]] if i in saved else []
            down = task([down, *used], 2 * INSIDE[i][1], BACKWARD, INSIDE[i - 1][0] if i else 8)
        gradient = task([gradient, down, x], 2, BACKWARD, 8)
    return problem_of(reads, writes, len(size), cost=cost, phase=phase, size=size)
