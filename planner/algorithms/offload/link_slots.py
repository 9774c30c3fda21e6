"""Free time of a copy engine: the earliest free slot after one tick, the latest before another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class LinkSlots:
    """Busy ranges of one engine, in ticks; those that touch are one."""

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
        at, end = bisect_left(self._begin, begin), begin + length
        if at < len(self._begin) and self._begin[at] == end:
            self._begin[at] = begin
        else:
            self._begin.insert(at, begin)
            self._end.insert(at, end)
        if at and self._end[at - 1] == begin:
            del self._begin[at], self._end[at - 1]
