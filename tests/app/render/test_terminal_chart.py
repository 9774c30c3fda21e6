"""Pictures in characters are to scale, fit the terminal, and lose no peak."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.render.terminal_chart import BLOCKS, PLAIN, ChartStyle, chart_style, curve, timeline
from app.render.text import MAX_WIDTH
from tests.app.pictures import curve as drawn_curve
from tests.app.pictures import point, report

STEPS = st.lists(st.integers(0, 2**45), max_size=300)
LOOKS = st.builds(ChartStyle, st.integers(40, 200), st.sampled_from([BLOCKS, PLAIN]), st.booleans())
STATUS = st.sampled_from(["found", "proven", "over_budget"])
ESCAPES = re.compile(r"\x1b\[\d+m")


def panels(lines: list[str]) -> list[list[str]]:
    """What stands right of the frame, a list a panel, the lowest row first; peaks stand for nothing."""
    found: list[list[str]] = [[]]
    for line in lines:
        if frame := re.search(r"[│┤└](.*)$", line):
            if frame[0].startswith("└"):
                found.append([])
            else:
                found[-1].insert(0, frame[1].replace(BLOCKS.peak, " "))
    return found[:-1]


@given(STEPS, STEPS, st.none() | st.integers(0, 2**46), LOOKS)
@settings(max_examples=200, deadline=None)
def test_every_line_fits_and_says_every_peak(
    before: list[int], after: list[int], budget: int | None, at: ChartStyle
) -> None:
    lines = [ESCAPES.sub("", line) for line in timeline(report(before, after, budget), at)]
    assert all(len(line) <= at.columns for line in lines)
    marks = sum(line.count(at.glyphs.peak) for line in lines if at.glyphs is BLOCKS)
    assert marks == (bool(before) + bool(after)) * (at.glyphs is BLOCKS)


def test_a_column_is_as_high_as_its_step() -> None:
    # Rows of one byte, and both panels on one scale of steps: the longer has four, each 8 columns wide.
    before, after = panels(timeline(report([1, 8, 3], [1, 4, 3, 1]), ChartStyle(40)))

    def heights(rows: list[str]) -> list[int]:
        return [sum(row[c : c + 1] == "█" for row in rows) for c in range(32)]

    assert heights(before) == [1] * 8 + [8] * 8 + [3] * 8 + [0] * 8
    assert heights(after) == [1] * 8 + [4] * 8 + [3] * 8 + [1] * 8


def test_one_high_step_of_a_hundred_thousand_is_drawn() -> None:
    steps = [10] * 100_000
    steps[70_001] = 80
    lines = timeline(report(steps, steps[:50_000]), ChartStyle(80))
    assert sum("█" in line for line in lines) >= 8
    peak = next(line for line in lines if "▼" in line)
    assert 0.68 < (peak.index("▼") - 8) / 72 < 0.72
    assert "at step 70001 of 100000" in "\n".join(lines)
    assert "maximum of up to" in lines[0]


def test_the_budget_is_a_line_or_said_to_lie_above() -> None:
    lines = timeline(report([1, 8, 3], [1, 4, 3, 1], budget=4), ChartStyle(60))
    assert sum("╌╌╌" in line for line in lines) == 2 and lines[-1] == "╌╌ budget 4 B"
    lines = timeline(report([1, 8, 3], [1, 4, 3, 1], budget=2**36), ChartStyle(60))
    assert not any("╌╌╌" in line for line in lines)
    assert lines[-1] == "╌╌ budget 64.00 GiB, above the chart"


def test_nothing_is_drawn_of_nothing() -> None:
    assert timeline(report([], []), ChartStyle(80)) == ["no chart: the plan has no steps"]
    assert curve(drawn_curve(point(1, 0.0, 0.0, "over_budget")), ChartStyle(80))[0].endswith("no budget was reached")
    assert timeline(report([0], [0]), ChartStyle(80))[-1].strip().startswith("step")


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 3), st.floats(0, 1), STATUS), min_size=1, max_size=20), LOOKS
)
@example([(1, 5e-324, 0.0, "found")], ChartStyle(60))  # a share of it is 0
@settings(max_examples=200, deadline=None)
def test_every_curve_fits(rows: list[tuple[int, float, float, str]], at: ChartStyle) -> None:
    points = [point(budget, extra, extra * part, status) for budget, extra, part, status in rows]
    lines = [ESCAPES.sub("", line) for line in curve(drawn_curve(*points), at)]
    assert all(len(line) <= at.columns for line in lines)


def test_a_curve_shows_bound_and_gap_as_stairs() -> None:
    #  8% ●░░░        left of 200 B the plan of 100 B, and the bound of 200 B
    #  4%     ◆
    lines = curve(drawn_curve(point(100, 0.08, 0.06), point(200, 0.04, 0.04, "proven")), ChartStyle(50))
    (rows,) = panels(lines)
    assert rows[7][0] == "●" and set(rows[7][1:-1]) == {"░"}
    assert rows[3][-1] == "◆" and set(rows[3][1:-1]) == {"█"}
    assert set(rows[4][1:-1]) == {"░"} and rows[5][0] == "█"
    assert "1% per row" in lines[0]


def test_a_budget_that_is_not_reached_is_marked_at_the_top() -> None:
    lines = curve(drawn_curve(point(10, 0.5, 0, "over_budget"), point(100, 0.08, 0.0)), ChartStyle(50))
    (rows,) = panels(lines)
    assert rows[-1][0] == "×"
    assert "not reached" in lines[-1]


class Stream(io.TextIOWrapper):
    def __init__(self, living: bool, encoding: str = "utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding)
        self.living = living

    def isatty(self) -> bool:
        return self.living


@pytest.mark.parametrize(
    ("living", "asked", "drawn", "coloured"),
    [(True, None, True, True), (False, None, False, False), (False, True, True, False), (True, False, False, False)],
)
def test_it_is_drawn_on_a_terminal_or_where_asked(
    monkeypatch: pytest.MonkeyPatch, living: bool, asked: bool | None, drawn: bool, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    found = chart_style(asked, Stream(living))
    assert (found is not None) == drawn
    assert found is None or found.colour == coloured


def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "500")
    assert chart_style(None, Stream(True)) == ChartStyle(MAX_WIDTH, BLOCKS, colour=False)
    lines = timeline(report([1, 8], [1, 4], 4), ChartStyle(80, BLOCKS, colour=True))
    assert any("\x1b[33m" in line for line in lines) and all(
        line.count("\x1b[0m") == len(ESCAPES.findall(line)) / 2 for line in lines
    )


def test_a_terminal_without_block_characters_gets_plain_ones() -> None:
    found = chart_style(True, Stream(False, "latin-1"))
    assert found is not None and found.glyphs is PLAIN
    lines = timeline(report([1, 8], [1, 4], 4), found) + curve(drawn_curve(point(5, 0.1, 0.05)), found)
    assert "\n".join(lines).isascii()
