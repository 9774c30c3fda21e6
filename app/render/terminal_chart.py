"""Memory over steps, and time over budgets, in block characters: 40 to 200 columns, plain ASCII where need be.

4 GiB ┤      ▼                 a row is a round number of bytes, its label its upper edge;
      │    ▄██▆                a column shows the highest of its steps, so that no peak is lost
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
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from app.render import axes
from app.render.axes import MemorySeries
from app.render.text import format_bytes, line_width

MAX_ROWS, MIN_PLOT_COLUMNS = 8, 10


class Glyphs(NamedTuple):
    """The characters of a picture; `eighths` are nine from empty to full."""

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
Cells = list[list[tuple[str, str]]]  # rows from the top; a character and the name of its colour


class ChartStyle(NamedTuple):
    """How wide to draw, with what, and whether in colour."""

    columns: int
    glyphs: Glyphs = BLOCKS
    colour: bool = False


def chart_style(asked: bool | None = None, stream: IO[str] | None = None) -> ChartStyle | None:
    """How to draw on the stream, standard output unless told; None where nobody asked and it is no terminal."""
    stream = stream or sys.stdout
    living = stream.isatty()
    if not (living if asked is None else asked):
        return None
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return ChartStyle(line_width(), glyphs(stream), living and not plain)


def glyphs(stream: IO[str]) -> Glyphs:
    """Characters that the stream can show."""
    try:
        "".join(BLOCKS).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def timeline(report: Mapping[str, Any], look: ChartStyle) -> list[str]:
    """Memory before and after on one scale of bytes and one of steps, with the peaks named and the budget."""
    drawn = [series for series in axes.series_of(report) if series.steps]
    if not drawn:
        return ["no steps, so no memory over steps"]
    top = max(*(series.peak for series in drawn), 1)
    budget = axes.drawn_budget(report["plan"]["budget_bytes"], top)
    scale = _Scale(max(top, budget or 0), max(len(series.steps) for series in drawn), look)
    lines = [*_wrapped(f"memory over steps; {scale.said()}", look)]
    for series in drawn:
        lines += [*_wrapped(series.said(), look), *scale.panel(series, budget, last=series is drawn[-1])]
    if asked := report["plan"]["budget_bytes"]:
        above = "" if budget else ", above the picture"
        lines += _wrapped(f"{look.glyphs.line * 2} budget {format_bytes(asked)}{above}", look)
    return lines


class _Scale:
    """What the panels of one picture share: bytes of a row, steps of a column, and the labels of both."""

    def __init__(self, top: int, steps: int, look: ChartStyle):
        self.look, self.steps = look, steps
        self.row = axes.byte_step(top, MAX_ROWS, axes.FINE_DIGITS)
        self.rows = max(1, math.ceil(top / self.row))
        self.labels = [
            axes.byte_label(self.row * (r + 1), top) if r % 2 or self.rows < 3 else "" for r in range(self.rows)
        ]
        self.left = max(len("step"), *map(len, self.labels))
        room = max(MIN_PLOT_COLUMNS, look.columns - self.left - 2)
        self.wide = max(1, room // steps)  # columns of a step
        self.plot = min(room, steps * self.wide)

    def said(self) -> str:
        """What a column is."""
        if self.plot == self.steps:
            return "a column is a step"
        if self.plot > self.steps:
            return f"a step is {self.wide} columns wide"
        return f"a column is the highest of up to {-(-self.steps // self.plot)} steps"

    def column(self, step: int) -> int:
        """Where a step stands; the middle of its columns."""
        if self.plot < self.steps:
            return ((step + 1) * self.plot - 1) // self.steps
        return step * self.wide + self.wide // 2

    def panel(self, series: MemorySeries, budget: int | None, last: bool) -> list[str]:
        """One series above its axis; only the last panel says the steps, which are those of all."""
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
            del cells[0]  # nothing stands above the highest row
        marks = {self.column(int(step)): f"{step:,.0f}" for step in self._ticks()} if last else {}
        return _framed(cells, self.labels, self.left, marks, "step", self.look)

    def _ticks(self) -> list[float]:
        most = max(1, self.plot // 12)
        return axes.ticks(0, self.steps - 1, max(1, math.ceil(axes.round_up(max(1, self.steps - 1) / most))))


def curve(document: Mapping[str, Any], look: ChartStyle) -> list[str]:
    """Extra time over budgets: what no plan takes less than, what the plans found take, and where budgets were asked.

    What fits a budget fits every looser one, and what a budget costs at least every tighter one does: so both are
    stairs between the budgets that were asked.
    """
    points = sorted(document["points"], key=axes.budget_of)
    met = [point for point in points if point["status"] != "over_budget"]
    if not met:
        return _wrapped("no budget was reached, so there is no curve", look)
    glyphs, top = look.glyphs, max(0.0, *(point["overhead"] for point in met)) or 0.01
    row = axes.round_up(top / MAX_ROWS, axes.FINE_DIGITS)
    rows = max(1, math.ceil(top / row - 1e-9))
    labels = [axes.share_label(row * (r + 1)) if r % 2 or rows < 3 else "" for r in range(rows)]
    left = max(len("budget"), *map(len, labels))
    plot = max(MIN_PLOT_COLUMNS, look.columns - left - 2)
    low, high = axes.budget_of(points[0]), axes.budget_of(points[-1])

    def column(budget: float) -> int:
        return round((plot - 1) * (budget - low) / (high - low)) if high > low else plot // 2

    cells: Cells = [[(" ", "")] * plot for _ in range(rows)]
    at = [column(axes.budget_of(point)) for point in met]
    for c in range(plot):
        found = math.ceil(8 * met[bisect_right(at, c) - 1]["overhead"] / row - 1e-6) if c >= at[0] else 0
        bound = math.ceil(8 * met[bisect_left(at, c)]["bound_overhead"] / row - 1e-6) if c <= at[-1] else 0
        for r in range(rows):
            filled = min(8, max(0, bound - 8 * r))
            if filled or found > 8 * r:
                cells[rows - 1 - r][c] = (glyphs.eighths[filled], "") if filled else (glyphs.gap, "gap")
    for point, c in zip(met, at, strict=True):
        r = max(0, math.ceil(point["overhead"] / row - 1e-6) - 1)
        cells[rows - 1 - r][c] = (glyphs.proven if point["status"] == "proven" else glyphs.found, "point")
    missed = [column(axes.budget_of(point)) for point in points if point["status"] == "over_budget"]
    for c in missed:
        cells[-1][c] = (glyphs.missed, "over")
    step = axes.byte_step(max(high - low, 1), max(1, plot // 16))
    marks = {column(x): axes.byte_label(x, high) for x in axes.ticks(low, high, step)}
    marks = marks or {column(low): axes.byte_label(low, high)}
    legend = f"{glyphs.proven} proven least  {glyphs.found} found  {glyphs.eighths[8]} no plan takes less"
    legend += f"  {glyphs.gap} up to the plan found" + (f"  {glyphs.missed} not reached" if missed else "")
    return [
        *_wrapped("extra time over budget, a row " + axes.share_label(row), look),
        *_framed(cells, labels, left, marks, "budget", look),
        *_wrapped(legend, look),
    ]


def _framed(
    cells: Cells, labels: Sequence[str], left: int, marks: Mapping[int, str], title: str, look: ChartStyle
) -> list[str]:
    """The cells with labels on the left and, where there are marks, below."""
    glyphs, plot = look.glyphs, len(cells[0])
    said = [*[""] * (len(cells) - len(labels)), *reversed(labels)]
    lines = []
    for label, line in zip(said, cells, strict=True):
        side = glyphs.tick if label else glyphs.side
        lines.append(_painted([(f"{label:>{left}} {side}", "frame"), *line], look.colour))
    placed, below = _spread(marks, left + 2, left + 2 + plot)
    floor = "".join(glyphs.mark if c in placed else glyphs.floor for c in range(plot))
    lines.append(_painted([(" " * left + f" {glyphs.corner}{floor}", "frame")], look.colour))
    if placed:
        lines.append(_painted([(f"{title:>{left}}  {below}".rstrip(), "frame")], look.colour))
    return lines


def _spread(marks: Mapping[int, str], start: int, columns: int) -> tuple[set[int], str]:
    """The marks that have room, and their line, which begins at `start`; the line ends before `columns`."""
    placed: set[int] = set()
    line = ""
    for column, text in sorted(marks.items()):
        begin = max(0, min(column - len(text) // 2, columns - start - len(text)))
        if begin >= len(line) + (2 if line else 0):
            line = line.ljust(begin) + text
            placed.add(column)
    return placed, line


def _painted(cells: Iterable[tuple[str, str]], colour: bool) -> str:
    """The characters without blanks at the end, in their colours where they are wanted."""
    line, now = "", ""
    for text, style in cells:
        if colour and style != now and text != " ":
            line += ("\x1b[0m" if now else "") + (f"\x1b[{COLOURS[style]}m" if style else "")
            now = style
        line += text
    return line.rstrip() + ("\x1b[0m" if now else "")


def _wrapped(text: str, look: ChartStyle) -> list[str]:
    return textwrap.wrap(text, look.columns, subsequent_indent="  ", break_long_words=True)
