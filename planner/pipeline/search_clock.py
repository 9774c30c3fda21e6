"""Clock of a solve: when the search time ends, and what a search of a large graph leaves to the steps outside it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from planner.formulation.formulation import Formulation
from planner.formulation.proven_bound import first_of_set_arcs
from planner.problem.monitor import Monitor

#: With so many tasks, a search that has a plan within the budget leaves up to such a share of its time to what is done
#: outside it: what follows the addresses takes AFTER_PART of what precedes the first bound, beside the slow sections of
#: the report; FREE_SECONDS are for all.
MIN_OUTSIDE_TASKS, MAX_OUTSIDE_PART, AFTER_PART, FREE_SECONDS = 5_000, 0.6, 0.35, 0.1
#: Seconds to verify the certificate of a bound, per task and read of the problem.
VERIFY_SECONDS = 1e-5
#: Seconds to verify that of a tree: so many times those of one bound, and not more than these, since the leaves of a
#: tree are fewer in a larger problem; in at most so large a part of the time kept for bounds.
VERIFIED_LEAVES, TREE_VERIFY_SECONDS, VERIFY_PART = 60, 0.2, 0.4
#: Seconds to find the bound over a set of tasks, and to verify it, for each arc of its networks.
SET_SECONDS, SET_VERIFY_SECONDS = 4e-6, 2e-6


@dataclass(slots=True)
class SearchClock:
    """The search time, which covers all from the first bound to the last address. All times are in seconds."""

    seconds: float = 0.0  # `search_seconds`, once their clock runs
    until: float = math.inf  # end of `search_seconds` on the monotonic clock, once that runs
    outside: float = 0.0  # to be left to reading, rewriting and the report by a search with a plan within the budget
    left_outside: float = 0.0  # of these, what the last search has left

    def start(self, formulation: Formulation, lowered_after: float, of_sections: float) -> None:
        """Start the time of the goal. The graph was formulated `lowered_after` seconds from the begin of the solve.

        The slow sections of its report will take `of_sections` seconds.
        """
        self.seconds = formulation.goal.seconds
        self.until = time.monotonic() + self.seconds
        if formulation.lowered.problem.tasks >= MIN_OUTSIDE_TASKS:
            outside = (1 + AFTER_PART) * lowered_after + of_sections - FREE_SECONDS
            self.outside = min(MAX_OUTSIDE_PART * self.seconds, max(0.0, outside))

    def shorten(self, share: float) -> None:
        """End after a share of the search time."""
        self.until -= (1 - share) * self.seconds
        self.seconds *= share

    def lengthen(self, seconds: float, share: float) -> None:
        """End as if the search time had not been shortened: it was `seconds`, and got a `share` of them."""
        self.until += (1 - share) * seconds
        self.seconds = seconds

    def seconds_left(self, kept: float = 0.0) -> float:
        """Seconds until the end, less those `kept` for what follows; at least 0."""
        return max(0.0, self.until - time.monotonic() - kept)

    def leave_outside(self, monitor: Monitor) -> None:
        """Take time from a search that has a plan within the budget, once, for what is done outside it."""
        if self.outside and not self.left_outside:
            self.left_outside = min(self.outside, MAX_OUTSIDE_PART * monitor.seconds)
            self.until -= self.left_outside
            monitor.seconds -= self.left_outside

    def take_back(self) -> None:
        """Give the next search the time that the last one left."""
        self.until, self.left_outside = self.until + self.left_outside, 0.0


def verify_seconds(formulation: Formulation) -> float:
    """Seconds to verify a bound."""
    problem = formulation.lowered.problem
    return VERIFY_SECONDS * (problem.tasks + len(problem.reads.index))


def set_seconds(formulation: Formulation) -> tuple[float, float]:
    """(seconds to find the bound over a set of tasks, seconds to verify it); 0 where there is no set."""
    arcs = first_of_set_arcs(formulation)
    return SET_SECONDS * arcs, SET_VERIFY_SECONDS * arcs


def tree_verify_seconds(formulation: Formulation, kept: float) -> float:
    """Seconds that a tree of bounds takes to verify beyond `verify_seconds`, if `kept` seconds are for bounds."""
    of_bound = verify_seconds(formulation)
    return max(0.0, min(VERIFIED_LEAVES * of_bound, TREE_VERIFY_SECONDS, VERIFY_PART * kept) - of_bound)
