"""Times of two steps compared on a clock that tests make up: drift, outliers, noise, and when the runs end."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator

import pytest

from remat.torch.time_ratio import MAX_ERROR, MIN_RUNS, MIN_SETTLED_RUNS, TimeRatio, standard_error, time_ratio


class Machine:
    """Runs steps on a clock of its own: run n takes `slowness(n)` times what its step takes on a quiet machine."""

    def __init__(self, slowness: Callable[[int], float]):
        self.slowness = slowness
        self.now = 0.0
        self.runs = 0

    def step(self, seconds: float) -> Callable[[], float]:
        def run() -> float:
            taken = seconds * self.slowness(self.runs)
            self.runs += 1
            self.now += taken
            return taken

        return run

    def compared(self, ratio: float = 1.25, **bounds: float) -> TimeRatio:
        return time_ratio(self.step(1.0), self.step(ratio), clock=lambda: self.now, **bounds)  # type: ignore[arg-type]


def test_steady_times_have_no_standard_error() -> None:
    assert Machine(lambda run: 1.0).compared(max_seconds=1000) == TimeRatio(1.25, 0.0, 1.0, 1.25, MIN_SETTLED_RUNS)


def test_a_machine_that_becomes_slower_moves_no_ratio() -> None:
    """Each run takes .1 longer than the one before it: a run of 1.25 is beside two runs with its mean slowness."""
    found = Machine(lambda run: 1.0 + 0.1 * run).compared(max_seconds=1000)
    assert found.ratio == pytest.approx(1.25) and found.error == pytest.approx(0.0)
    apart = statistics.median(1.25 * (2.0 + 0.1 * run) for run in range(9)) / statistics.median(
        1.0 + 0.1 * run for run in range(10)
    )
    assert abs(apart - 1.25) > 0.1  # all runs of one step after all of the other


def test_a_speed_that_changes_in_the_middle_moves_no_ratio() -> None:
    assert Machine(lambda run: 1.0 if run < 10 else 1.6).compared(max_seconds=1000).ratio == 1.25


@pytest.mark.parametrize("outlier", range(2 * MIN_RUNS + 1))
def test_one_outlier_moves_no_ratio_and_no_standard_error(outlier: int) -> None:
    """Also where time is over as soon as may be."""
    found = Machine(lambda run: 50.0 if run == outlier else 1.0).compared(max_seconds=0.0)
    assert (found.ratio, found.error) == (1.25, 0.0)
    assert (found.base_seconds, found.other_seconds) == (1.0, 1.25)


def test_noisy_steps_run_until_the_standard_error_is_half_a_point() -> None:
    draw = random.Random(0)
    found = Machine(lambda run: draw.gauss(1.0, 0.03)).compared(max_seconds=10_000)
    assert found.error is not None and found.error <= MAX_ERROR
    assert found.runs > 3 * MIN_SETTLED_RUNS and abs(found.ratio - 1.25) < 4 * MAX_ERROR


def test_a_bound_on_time_ends_the_runs_of_a_noisy_machine() -> None:
    draw = random.Random(0)
    machine = Machine(lambda run: draw.uniform(0.5, 1.5))
    found = machine.compared(max_seconds=100.0)
    assert found.error is not None and found.error > MAX_ERROR
    assert 100.0 <= machine.now < 100.0 + 1.5 * (1.25 + 1.0)  # the last run and the one beside it began before


def test_long_steps_run_five_times_whatever_the_time() -> None:
    found = Machine(lambda run: 100.0).compared(max_seconds=0.0)
    assert (found.runs, found.error) == (5, 0.0)


@pytest.mark.parametrize(("runs", "error"), [(1, None), (2, 0.0), (20, 0.0)])
def test_a_number_of_runs_is_kept(runs: int, error: float | None) -> None:
    machine = Machine(lambda run: 1.0)
    found = machine.compared(runs=runs, max_seconds=float("inf"))
    assert (found.runs, found.error, machine.runs) == (runs, error, 2 * runs + 1)


def test_a_step_that_fails_in_the_middle_ends_the_comparison() -> None:
    def slowness(run: int) -> float:
        if run == 5:
            raise MemoryError("of the sixth run")
        return 1.0

    machine = Machine(slowness)
    with pytest.raises(MemoryError, match="of the sixth run"):
        machine.compared()
    assert machine.runs == 5


def noisy_ratios(draw: random.Random, count: int) -> Iterator[float]:
    """Ratios of runs with normal noise of 2%, neighbours over one run of the base step."""
    base = [draw.gauss(1.0, 0.02) for _ in range(count + 1)]
    for before, after in itertools.pairwise(base):
        yield 2 * 1.3 * draw.gauss(1.0, 0.02) / (before + after)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9, 15, 30])
def test_the_standard_error_is_the_spread_of_repeated_comparisons(count: int) -> None:
    draw = random.Random(count)
    drawn = [list(noisy_ratios(draw, count)) for _ in range(2000)]
    spread = statistics.stdev(statistics.median(ratios) for ratios in drawn)
    estimated = statistics.mean(error for ratios in drawn if (error := standard_error(ratios)) is not None)
    assert 0.95 * spread < estimated < 1.3 * spread
