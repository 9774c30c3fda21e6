"""Terminal charts of memory over steps and of time over budgets: 40 to 200 columns, block characters or ASCII.

4 GiB ┤      ▼                 a row is a round number of bytes, labelled at its upper edge;
      │    ▄██▆                a column shows the maximum of its steps, so that no peak is lost
2 GiB ┤╌╌╌▟████▖╌╌╌╌╌ budget
      └┬──────────┬──
  step 0         100
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from app.render import axes
from app.render.axes import MemorySeries
from app.render.text import format_bytes, line_width

MAX_ROWS, MIN_PLOT_COLUMNS = 8, 10


class Glyphs(NamedTuple):
    """Characters of a chart; `eighths`: nine fill levels from empty to full."""

    eighths: str
    side: str
    tick: str
    corner: str
    floor: str
    mark: str
    line: str
    peak: str
    gap: str
    found: str
    proven: str
    missed: str


BLOCKS = Glyphs(" ▁▂▃▄▅▆▇█", "│", "┤", "└", "─", "┬", "╌", "▼", "░", "●", "◆", "×")
PLAIN = Glyphs(" ....:::#", "|", "+", "+", "-", "+", "-", "v", "~", "o", "*", "x")
COLOURS = {"frame": "2", "budget": "33", "over": "31", "peak": "1", "gap": "36", "point": "1", "": ""}
Cells = list[list[tuple[str, str]]]  # rows from the top; (character, colour name)


class ChartStyle(NamedTuple):
    """Width in columns, characters, and whether to use colour."""

    columns: int
    glyphs: Glyphs = BLOCKS
    colour: bool = False


def chart_style(draw: bool | None = None, stream: IO[str] | None = None) -> ChartStyle | None:
    """Style for a stream (default: standard output); None: no chart. `draw` None: draw on a terminal."""
    stream = stream or sys.stdout
    is_terminal = stream.isatty()
    if not (is_terminal if draw is None else draw):
        return None
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return ChartStyle(line_width(), glyphs(stream), is_terminal and not plain)


def glyphs(stream: IO[str]) -> Glyphs:
    """Characters that the stream's encoding supports."""
    try:
        "".join(BLOCKS).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def timeline(report: Mapping[str, Any], look: ChartStyle) -> list[str]:
    """Lines of the memory chart, before and after on the same scales, with peaks and budget."""
    drawn = [series for series in axes.series_of(report) if series.steps]
    if not drawn:
        return ["no chart: the plan has no steps"]
    top = max(*(series.peak for series in drawn), 1)
    budget = axes.drawn_budget(report["plan"]["budget_bytes"], top)
    scale = _Scale(max(top, budget or 0), max(len(series.steps) for series in drawn), look)
    lines = [*_wrapped(f"memory over steps; {scale.caption()}", look)]
    for series in drawn:
        lines += [*_wrapped(series.caption(), look), *scale.panel(series, budget, last=series is drawn[-1])]
    if budget_bytes := report["plan"]["budget_bytes"]:
        above = "" if budget else ", above the chart"
        lines += _wrapped(f"{look.glyphs.line * 2} budget {format_bytes(budget_bytes)}{above}", look)
    return lines


class _Scale:
    """Scale shared by the panels of a chart: bytes per row, steps per column, and labels."""

    def __init__(self, top: int, steps: int, look: ChartStyle):
        self.look, self.steps = look, steps
        self.row = axes.byte_step(top, MAX_ROWS, axes.FINE_DIGITS)
        self.rows = max(1, math.ceil(top / self.row))
        self.labels = _row_labels(self.rows, lambda r: axes.byte_label(self.row * (r + 1), top))
        self.left = max(len("step"), *map(len, self.labels))
        available = max(MIN_PLOT_COLUMNS, look.columns - self.left - 2)
        self.wide = max(1, available // steps)  # columns per step
        self.plot = min(available, steps * self.wide)

    def caption(self) -> str:
        """Steps per column, as text."""
        if self.plot == self.steps:
            return "1 step per column"
        if self.plot > self.steps:
            return f"{self.wide} columns per step"
        return f"each column is the maximum of up to {-(-self.steps // self.plot)} steps"

    def column(self, step: int) -> int:
        """Middle column of a step."""
        if self.plot < self.steps:
            return ((step + 1) * self.plot - 1) // self.steps
        return step * self.wide + self.wide // 2

    def panel(self, series: MemorySeries, budget: int | None, last: bool) -> list[str]:
        """Lines of one series; only the last panel has step labels."""
        glyphs, row = self.look.glyphs, self.row
        heights = [math.ceil(8 * high / row) for high in axes.column_maxima(series.steps, self.plot, self.steps)]
        if self.plot > self.steps:
            heights = [height for height in heights for _ in range(self.wide)]
        limit = math.ceil(budget / row) - 1 if budget else self.rows
        cells: Cells = []
        for r in reversed(range(self.rows + 1)):
            filled = [min(8, max(0, height - 8 * r)) for height in heights]
            style = "over" if r > limit else ""
            line = [(glyphs.eighths[eighths], style) for eighths in filled]
            line += [(" ", "")] * (self.plot - len(line))
            if r == limit < self.rows:
                line = [(glyphs.line, "budget") if cell[0] == " " else cell for cell in line]
            cells.append(line)
        peak_row = math.ceil(series.peak / row)
        cells[self.rows - peak_row][self.column(series.at)] = (glyphs.peak, "peak")
        if all(char == " " for char, _ in cells[0]):
            del cells[0]  # empty row above the highest bar
        marks = {self.column(int(step)): f"{step:,.0f}" for step in self._ticks()} if last else {}
        return _framed(cells, self.labels, self.left, marks, "step", self.look)

    def _ticks(self) -> list[float]:
        count = max(1, self.plot // 12)
        return axes.ticks(0, self.steps - 1, max(1, math.ceil(axes.round_up(max(1, self.steps - 1) / count))))


def curve(document: Mapping[str, Any], look: ChartStyle) -> list[str]:
    """Lines of the curve chart: overhead of the plans found, and its lower bound, over the budget.

    Both are step functions between the budgets: a plan is feasible for every looser budget, and a lower bound holds
    for every tighter one.
    """
    points = sorted(document["points"], key=axes.budget_of)
    met = [point for point in points if point["status"] != "over_budget"]
    if not met:
        return _wrapped("no chart: no budget was reached", look)
    glyphs, scale = look.glyphs, _CurveScale(points, met, look)
    legend = f"{glyphs.proven} proven optimal  {glyphs.found} found  {glyphs.eighths[8]} lower bound"
    legend += f"  {glyphs.gap} gap" + (f"  {glyphs.missed} not reached" if len(met) < len(points) else "")
    return [
        *_wrapped(f"overhead over budget, {axes.share_label(scale.row)} per row", look),
        *_framed(scale.cells(), scale.labels, scale.left, scale.marks(), "budget", look),
        *_wrapped(legend, look),
    ]


class _CurveScale:
    """Scale of a curve chart: overhead per row, budget per column, and labels."""

    def __init__(self, points: Sequence[Mapping[str, Any]], met: Sequence[Mapping[str, Any]], look: ChartStyle):
        self.points, self.met, self.glyphs = points, met, look.glyphs
        top = max(0.0, *(point["overhead"] for point in met)) or 0.01
        self.row = axes.round_up(top / MAX_ROWS, axes.FINE_DIGITS)
        self.rows = max(1, math.ceil(top / self.row - 1e-9))
        self.labels = _row_labels(self.rows, lambda r: axes.share_label(self.row * (r + 1)))
        self.left = max(len("budget"), *map(len, self.labels))
        self.plot = max(MIN_PLOT_COLUMNS, look.columns - self.left - 2)
        self.low, self.high = axes.budget_of(points[0]), axes.budget_of(points[-1])

    def column(self, budget: float) -> int:
        """Column of a budget."""
        if self.high == self.low:
            return self.plot // 2
        return round((self.plot - 1) * (budget - self.low) / (self.high - self.low))

    def eighths(self, overhead: float) -> int:
        """Height of an overhead in eighths of a row, rounded up."""
        return math.ceil(8 * overhead / self.row - 1e-6)

    def cells(self) -> Cells:
        """The chart: lower bound as area, gap above it, one mark per point."""
        cells: Cells = [[(" ", "")] * self.plot for _ in range(self.rows)]
        at = [self.column(axes.budget_of(point)) for point in self.met]
        for c in range(self.plot):
            found = self.eighths(self.met[bisect_right(at, c) - 1]["overhead"]) if c >= at[0] else 0
            bound = self.eighths(self.met[bisect_left(at, c)]["bound_overhead"]) if c <= at[-1] else 0
            for r in range(self.rows):
                filled = min(8, max(0, bound - 8 * r))
                if filled or found > 8 * r:
                    cell = (self.glyphs.eighths[filled], "") if filled else (self.glyphs.gap, "gap")
                    cells[self.rows - 1 - r][c] = cell
        for point in sorted(self.points, key=lambda point: point["status"] == "over_budget"):
            row, cell = self._mark(point)
            cells[row][self.column(axes.budget_of(point))] = cell
        return cells

    def _mark(self, point: Mapping[str, Any]) -> tuple[int, tuple[str, str]]:
        """Row of a point from the top, and its cell; a missed budget is at the top: no time suffices."""
        if point["status"] == "over_budget":
            return 0, (self.glyphs.missed, "over")
        r = max(0, math.ceil(point["overhead"] / self.row - 1e-6) - 1)
        return self.rows - 1 - r, (self.glyphs.proven if point["status"] == "proven" else self.glyphs.found, "point")

    def marks(self) -> dict[int, str]:
        """Column -> budget label."""
        step = axes.byte_step(max(self.high - self.low, 1), max(1, self.plot // 16))
        marks = {self.column(x): axes.byte_label(x, self.high) for x in axes.ticks(self.low, self.high, step)}
        return marks or {self.column(self.low): axes.byte_label(self.low, self.high)}


def _row_labels(rows: int, label: Callable[[int], str]) -> list[str]:
    """Labels of the rows from the bottom: every second row, or all of fewer than three."""
    return [label(r) if r % 2 or rows < 3 else "" for r in range(rows)]


def _framed(
    cells: Cells, labels: Sequence[str], left: int, marks: Mapping[int, str], title: str, look: ChartStyle
) -> list[str]:
    """The cells with row labels on the left and, if there are marks, column labels below."""
    glyphs, plot = look.glyphs, len(cells[0])
    row_labels = [*[""] * (len(cells) - len(labels)), *reversed(labels)]
    lines = []
    for label, line in zip(row_labels, cells, strict=True):
        side = glyphs.tick if label else glyphs.side
        lines.append(_painted([(f"{label:>{left}} {side}", "frame"), *line], look.colour))
    placed, below = _spread(marks, left + 2, left + 2 + plot)
    floor = "".join(glyphs.mark if c in placed else glyphs.floor for c in range(plot))
    lines.append(_painted([(" " * left + f" {glyphs.corner}{floor}", "frame")], look.colour))
    if placed:
        lines.append(_painted([(f"{title:>{left}}  {below}".rstrip(), "frame")], look.colour))
    return lines


def _spread(marks: Mapping[int, str], start: int, columns: int) -> tuple[set[int], str]:
    """Marks that fit without overlap, and their line, from column `start` to `columns`."""
    placed: set[int] = set()
    line = ""
    for column, text in sorted(marks.items()):
        begin = max(0, min(column - len(text) // 2, columns - start - len(text)))
        if begin >= len(line) + (2 if line else 0):
            line = line.ljust(begin) + text
            placed.add(column)
    return placed, line


def _painted(cells: Iterable[tuple[str, str]], colour: bool) -> str:
    """The characters, right-stripped, with ANSI colours if `colour`."""
    line, now = "", ""
    for text, style in cells:
        if colour and style != now and text != " ":
            line += ("\x1b[0m" if now else "") + (f"\x1b[{COLOURS[style]}m" if style else "")
            now = style
        line += text
    return line.rstrip() + ("\x1b[0m" if now else "")


def _wrapped(text: str, look: ChartStyle) -> list[str]:
    return textwrap.wrap(text, look.columns, subsequent_indent="  ", break_long_words=True)
