"""Time of a step over that of another one, on a machine whose speed changes within seconds.

    base   other   base   other   base ...
    ╰───── ratio ─────╯
            ╰───── ratio ─────╯  is no ratio: only runs of the other step are compared with their neighbours

Each run of the other step is compared with the mean of the two runs of the base step beside it, so a speed that drifts
cancels out. The median over the runs counts, which an outlier does not move, with a standard error from the median
absolute deviation.

Source of the correction for few runs: Croux, Rousseeuw, "Time-efficient algorithms for two highly robust estimators of
scale", COMPSTAT 1992, section 2.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_RUNS = 5  # of the other step, whatever they take: one slow run of the base step moves two ratios
MIN_SETTLED_RUNS = 9  # of the other step before a small standard error ends them: of few runs it may be small by chance
MAX_SECONDS = 12.0  # after which no more runs begin
MAX_ERROR = 0.005  # standard error of the ratio at which no more runs are needed
NORMAL_SPREAD = 1.4826  # standard deviation of normal noise over its median absolute deviation
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, for normal noise
#: Correction of the median absolute deviation of so many figures; `n / (n - 0.8)` for more.
SMALL_SAMPLES = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.2, 7: 1.14, 8: 1.129, 9: 1.107}
#: Standard error over that of independent ratios: neighbours share a run of the base step, a correlation of 1/6 where
#: both steps have the same noise.
SHARED_RUNS = math.sqrt(1 + 2 / 6)


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """Time of a step over that of the base step."""

    ratio: float
    error: float | None  # standard error of `ratio`; None: a single run
    base_seconds: float  # median of a run
    other_seconds: float  # median of a run
    runs: int  # of the other step; the base step has one more


def time_ratio(
    base: Callable[[], float],
    other: Callable[[], float],
    *,
    runs: int | None = None,
    max_seconds: float = MAX_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> TimeRatio:
    """Run two steps in turns until the standard error of the ratio of their times is half a point, or time is over.

    Parameters:
        base, other: Run the step once and return its seconds, above 0.
        runs: Number of runs of `other`, at least 1; None: until the standard error is at most `MAX_ERROR`, and at least
            `MIN_SETTLED_RUNS`.
        max_seconds: No run begins after so many seconds of `clock`, once there are `MIN_RUNS` (or `runs`, if fewer).
        clock: Seconds for `max_seconds`.

    Raises:
        What a step raises; the runs before it are dropped.
    """
    base_seconds, other_seconds, ratios = [], [], []
    began = clock()
    base_seconds.append(base())
    while True:
        other_seconds.append(other())
        base_seconds.append(base())
        ratios.append(2 * other_seconds[-1] / (base_seconds[-2] + base_seconds[-1]))
        count, error = len(ratios), standard_error(ratios)
        is_out_of_time = count >= MIN_RUNS and clock() - began >= max_seconds
        is_settled = count >= MIN_SETTLED_RUNS and error is not None and error <= MAX_ERROR
        if is_out_of_time or (is_settled if runs is None else count >= runs):
            break
    return TimeRatio(
        statistics.median(ratios), error, statistics.median(base_seconds), statistics.median(other_seconds), count
    )


def standard_error(ratios: Sequence[float]) -> float | None:
    """Standard error of the median of ratios in the order of their runs, little moved by outliers; None for one."""
    count = len(ratios)
    if count < 2:
        return None
    middle = statistics.median(ratios)
    deviation = statistics.median(abs(ratio - middle) for ratio in ratios)
    spread = NORMAL_SPREAD * SMALL_SAMPLES.get(count, count / (count - 0.8)) * deviation
    return SHARED_RUNS * MEDIAN_ERROR * spread / math.sqrt(count)
