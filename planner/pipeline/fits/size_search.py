"""Search over the sizes of a fit.

    size   1 ─── baseline fits ───┬── a plan is found ──┬── no plan is found ──┬── a bound proves there is none
           ╰ measured             ╰ predicted, measured ╰ bisected             ╰ predicted, measured

Bytes grow almost linearly with the size. From two sizes follow the size at which the baseline stops fitting, and the
size at which the lower bound exceeds the memory. Between them each trial is read, differentiated and planned; plans of
other sizes are replayed first, because they often fit. Every size reported as fitting has a checked plan.
"""

from __future__ import annotations

from dataclasses import replace

from planner.errors import BadRequest
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import without_copies
from planner.pipeline.fits.size_clock import SIZE_PART
from planner.pipeline.fits.size_trials import SizeTrial, SizeTrials
from planner.request.plan_request import Request

MAX_TRIALS, MAX_SIZE = 40, 2**31 - 1


class SizeSearch:
    """Search for the largest size that fits."""

    def __init__(self, trials: SizeTrials):
        self.trials, self.clock = trials, trials.clock
        self.notes: list[str] = []  # for the document

    def largest(self) -> SizeTrial | None:
        """Trial of the largest size found to fit; None if size 1 does not fit."""
        first = self.trials.at(1, must_read=True)
        if not first.fits:
            return None
        low, high = self._bracket(first, self.trials.at(2))
        while high - low > 1 and self._has_trials_left():
            self.clock.part = 1 / (high - low).bit_length()  # at most this many bisections are left
            middle = (low + high) // 2
            low, high = (middle, high) if self.trials.at(middle).fits else (low, middle)
        if high - low > 1:
            self.notes.append(f"the search ended before sizes {low + 1} to {high - 1} were tried")
        return self.trials.tried[low]

    def _bracket(self, first: SizeTrial, second: SizeTrial) -> tuple[int, int]:
        """(size that fits, larger size that does not); the latter is MAX_SIZE + 1 while none is known."""
        if not second.fits:
            return 1, 2
        assert first.formulation is not None and second.formulation is not None
        if first.formulation.lowered.problem.size.tolist() == second.formulation.lowered.problem.size.tolist():
            raise BadRequest.one(
                "does_not_grow",
                "grow",
                f"{self.trials.fit_request.grow!r}, at 1 as large as at 2",
                "something that changes sizes",
                "grow a dimension the model has left open",
            )
        low, high = 2, MAX_SIZE + 1
        for size in self._predicted_sizes(first.formulation, second.formulation):
            if low < size < high and self._has_trials_left():
                low, high = (size, high) if self.trials.at(size).fits else (low, size)
        while high > MAX_SIZE and low < MAX_SIZE and self._has_trials_left():
            size = min(2 * low, MAX_SIZE)
            low, high = (size, high) if self.trials.at(size).fits else (low, size)
        return low, high

    def _predicted_sizes(self, one: Formulation, two: Formulation) -> list[int]:
        """Linear predictions: largest size whose baseline fits, and smallest size whose peak bound does not."""
        budget = one.goal.budget_bytes or 0
        given = _crossing(one.baseline.score.peak_bytes, two.baseline.score.peak_bytes, budget)
        least = _crossing(one.bound.peak_bytes, two.bound.peak_bytes, budget)
        return [given, least + 1]

    def _has_trials_left(self) -> bool:
        is_over = self.clock.is_over() or self.trials.stages.cancel.is_set()
        return len(self.trials.tried) < MAX_TRIALS and not is_over

    def final_request(self, best: SizeTrial) -> Request:
        """Request of the final solve, as if it were a plan request for that size alone."""
        request = self.trials.request_at(best.size)
        if best.small_host:
            request = without_copies(request)
        given = {name: sent for name, sent in request.given.items() if name not in ("grow", "max_overhead")}
        given |= {"batch": best.size} if self.trials.dimension is None else {"dims": dict(request.dims)}
        if request.iterations is None:
            reading = self.clock.formulating / len(self.trials.tried)  # the size is read once more
            return replace(request, given=given, search_seconds=max(1e-3, self.clock.seconds_left() - reading))
        return replace(request, given=given, iterations=max(1, round(request.iterations * (1 - SIZE_PART))))


def _crossing(at_one: int, at_two: int, limit: int) -> int:
    """Largest size at which the line through the values at sizes 1 and 2 is at most `limit`."""
    slope = at_two - at_one
    return MAX_SIZE if slope <= 0 else min(MAX_SIZE, 1 + max(0, (limit - at_one) // slope))
