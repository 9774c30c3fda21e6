"""Scales are round, and no column hides a peak."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.render.axes import (
    FINE_DIGITS,
    byte_label,
    byte_step,
    column_maxima,
    drawn_budget,
    printable,
    round_up,
    series_of,
    ticks,
    unit_of,
)
from tests.app.pictures import report

NUMBERS = st.lists(st.integers(0, 2**50), min_size=1, max_size=400)


@given(NUMBERS, st.integers(1, 120), st.integers(0, 900))
def test_every_step_is_in_one_column_and_a_column_is_the_highest_of_its_steps(
    values: list[int], columns: int, whole: int
) -> None:
    heights = column_maxima(values, columns, whole)
    whole = max(whole, len(values))
    count = min(columns, whole)
    column = [((step + 1) * count - 1) // whole for step in range(len(values))]
    assert heights == [max(v for v, c in zip(values, column, strict=True) if c == k) for k in range(column[-1] + 1)]


def test_a_single_high_step_of_a_hundred_thousand_is_kept() -> None:
    for at in (0, 1, 49_999, 99_999):
        steps = [7] * 100_000
        steps[at] = 8
        assert column_maxima(steps, 70).count(8) == 1


@given(st.floats(1e-9, 1e18))
def test_a_round_number_is_at_most_a_third_above_with_fine_digits(least: float) -> None:
    found = round_up(least, FINE_DIGITS)
    assert least * (1 - 1e-9) <= found <= least * 4 / 3 * (1 + 1e-9)


@given(st.integers(1, 2**60), st.integers(1, 20))
def test_so_many_steps_of_a_scale_reach_its_top(top: int, most: int) -> None:
    step = byte_step(top, most)
    assert step * most >= top * (1 - 1e-9)
    assert unit_of(top)[0] > 1 or step == int(step)


def test_ticks_are_the_multiples_within() -> None:
    assert ticks(0, 10, 2.5) == [0, 2.5, 5, 7.5, 10]
    assert ticks(3, 9, 4) == [4, 8]
    assert [byte_label(count, 3 * 2**30) for count in (0, 2**29, 2**30)] == ["0", "0.5 GiB", "1 GiB"]


def test_a_budget_far_above_is_left_out_so_that_it_flattens_nothing() -> None:
    assert [drawn_budget(budget, 100) for budget in (None, 0, 100, 125, 126)] == [None, None, 100, 125, None]


def test_the_first_of_equal_peaks_is_named_with_its_holder() -> None:
    before, after = series_of(report([1, 9, 9], []))
    assert before.caption() == "before: peak 9 B at step 1 of 3; largest value h14, 1.00 MiB"
    assert (after.peak, after.at, after.steps) == (0, 0, [])


def test_a_name_brings_no_control_characters_and_is_cut() -> None:
    assert printable("a\x1b[31m\n\u202eb") == "a\ufffd[31m\ufffd\ufffdb"
    assert len(printable("x" * 500)) == 48
    assert math.isclose(round_up(0.03), 0.05)
