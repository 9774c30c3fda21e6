"""Which block of a model has which plan, so that the peak of the whole step is within a budget.

    all blocks as recorded ──┬── the cheapest byte first ──┬── ... ──▶ all blocks at their least
                             a block goes one level on

Levels of a block are convex, so the first n of these changes save their bytes in the least time (marginal allocation,
Fox 1966). How many are needed is searched: a recorded step gives the peak of a choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from remat.torch.blocks.levels import Level, price

MAX_BETWEEN = 6  # steps recorded for choices between none and all of the changes
CLOSE = 0.01  # of the budget: a peak so near below it ends the search


class Change(NamedTuple):
    """A block goes one level on."""

    path: str
    level: Level
    saved_bytes: int


@dataclass(frozen=True)
class Choice:
    """Levels of the blocks, the peak of the step with them, and the number of the step among those recorded."""

    levels: Mapping[str, Level]
    peak_bytes: int
    number: int


def changes_of(levels: Mapping[str, Sequence[Level]]) -> list[Change]:
    """Changes of all blocks, the cheapest byte first.

    Of equal ones that of the first block comes first: the last block runs backward while all others are held.
    """
    rows = [
        (price(before, after), number, Change(path, after, before.held_bytes - after.held_bytes))
        for number, (path, row) in enumerate(levels.items())
        for before, after in pairwise(row)
    ]
    return [change for _, _, change in sorted(rows, key=lambda row: row[:2])]


def choose(
    levels: Mapping[str, Sequence[Level]], budget_bytes: int, peak_of: Callable[[Mapping[str, Level]], int]
) -> Choice:
    """The choice of the fewest changes found with which the step is within a budget; the lowest peak if it never is.

    Parameters:
        levels: The levels of each block, by path, in the order of the forward pass.
        budget_bytes: Budget of the whole step.
        peak_of: Records a step with these levels; its peak in bytes.
    """
    changes = changes_of(levels)
    saved = [0, *accumulate(change.saved_bytes for change in changes)]
    tried = 0

    def chosen(count: int) -> Choice:
        nonlocal tried
        changed = {change.path: change.level for change in changes[:count]}
        found = {path: changed.get(path, row[0]) for path, row in levels.items()}
        tried += 1
        return Choice(found, peak_of(found), tried - 1)

    above = chosen(0)
    if above.peak_bytes <= budget_bytes or not changes:
        return above
    below = chosen(len(changes))
    if below.peak_bytes > budget_bytes:
        return min(above, below, key=lambda choice: choice.peak_bytes)
    counts = [0, len(changes)]
    for _ in range(MAX_BETWEEN):
        if counts[1] - counts[0] < 2 or below.peak_bytes > (1 - CLOSE) * budget_bytes:
            break
        share = (above.peak_bytes - budget_bytes) / (above.peak_bytes - below.peak_bytes)
        wanted = saved[counts[0]] + share * (saved[counts[1]] - saved[counts[0]])
        count = min(max(bisect_left(saved, wanted), counts[0] + 1), counts[1] - 1)
        between = chosen(count)
        if between.peak_bytes <= budget_bytes:
            counts[1], below = count, between
        else:
            counts[0], above = count, between
    return below
