"""Free time of a copy engine: the earliest free slot after one tick, the latest before another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class LinkSlots:
    """Busy ranges of one engine, in ticks."""

    def __init__(self) -> None:
        self._begin: list[int] = []
        self._end: list[int] = []

    def earliest(self, after: int, length: int) -> int:
        """Begin of the first free range of `length` ticks that begins at `after` or later."""
        begin = after
        for at in range(bisect_right(self._end, after), len(self._begin)):
            if self._begin[at] - begin >= length:
                break
            begin = self._end[at]
        return begin

    def latest(self, before: int, length: int) -> int:
        """Begin of the last free range of `length` ticks that ends at `before` or earlier; below 0 if there is none."""
        end = before
        for at in range(bisect_left(self._begin, before) - 1, -1, -1):
            if end - self._end[at] >= length:
                break
            end = self._begin[at]
        return end - length

    def take(self, begin: int, length: int) -> None:
        """Mark a free range as busy."""
        insort(self._begin, begin)
        insort(self._end, begin + length)
