"""The time of a fit, and how it is divided among the sizes."""

from __future__ import annotations

import time

from planner.request.plan_request import Request

#: Share of the search time for finding the size; share of that for each size before bisection.
SIZE_PART, FIRST_PART = 0.8, 0.25


class SizeClock:
    """The time of the sizes of one fit, which begins now.

    `formulating`: seconds of reading and formulating the sizes tried. `part`: share of the remaining time for one size.
    """

    def __init__(self, request: Request):
        self.request, self.started = request, time.monotonic()
        self.formulating, self.part = 0.0, FIRST_PART

    def seconds_left(self) -> float:
        """Seconds left of the search time."""
        return self.request.search_seconds - (time.monotonic() - self.started)

    def trial_seconds(self) -> float:
        """Share of the remaining time for one size; not above 0 once that is over."""
        return (self.seconds_left() - (1 - SIZE_PART) * self.request.search_seconds) * self.part

    def is_over(self) -> bool:
        """Whether the time of the sizes is over, of which reading and formulating them took less than half."""
        elapsed = time.monotonic() - self.started
        is_over = elapsed > SIZE_PART * self.request.search_seconds and 2 * self.formulating < elapsed
        return self.request.iterations is None and is_over
