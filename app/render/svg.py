"""Charts of a plan and of a curve as SVG, and as PNG if the extra `png` is installed.

An SVG has a title and description for screen readers, follows the light or dark scheme, and needs no other file. A PNG
is the same chart in the light scheme, in the bundled font.
"""

from __future__ import annotations

import importlib.util
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from app.atomic_files import write_atomic
from app.errors import BadUsage
from app.render import axes
from app.render.axes import MemorySeries
from app.render.text import best_found, format_bytes, format_percent

# Imports inside functions: resvg is an extra.

FONT = Path(__file__).parents[1] / "pages" / "vendor" / "dejavu" / "DejaVuSans-subset.ttf"
FAMILY = "DejaVu Sans"
PNG_ZOOM = 2.0
LIGHT = """
text{font:12px 'DejaVu Sans',Verdana,sans-serif;fill:#333}.head{font-size:15px}.small{font-size:10px}
.end{text-anchor:end}.middle{text-anchor:middle}.paper{fill:#fff}
.frame{stroke:#888;fill:none}.grid{stroke:#e4e4e4}.before{stroke:#999;fill:#999;fill-opacity:.18}
.after{stroke:#1769aa;fill:#1769aa;fill-opacity:.25}.budget{stroke:#b35900;fill:none;stroke-dasharray:7 4}
.found{stroke:#1769aa;fill:none}.bound{stroke:#777;fill:#777;fill-opacity:.18;stroke-dasharray:5 3}
.dot{stroke:#1769aa;fill:#fff}.proven{stroke:#1769aa;fill:#1769aa}.missed{stroke:#c0392b;fill:none}
.wall{stroke:#c0392b;stroke-dasharray:2 3}
.found,.bound,.before,.after,.budget,.dot,.proven,.missed,.wall{stroke-width:1.5}
"""
DARK = """
text{fill:#ddd}.paper{fill:#16181c}.frame{stroke:#888}.grid{stroke:#33363c}
.before{stroke:#8a8a8a;fill:#8a8a8a}.after{stroke:#5eb3f0;fill:#5eb3f0}.budget{stroke:#f0a050}
.found{stroke:#5eb3f0}.bound{stroke:#aaa;fill:#aaa}.dot{stroke:#5eb3f0;fill:#16181c}
.proven{stroke:#5eb3f0;fill:#5eb3f0}.missed,.wall{stroke:#ff7a6b}
"""


def _scoped(rules: str) -> str:
    """CSS rules limited to `svg.remat`, so that they do not affect a page with the SVG inline."""
    return re.sub(r"(?<![^,}\s])(?=[.a-z][^,{}]*[,{])", "svg.remat ", rules.strip())


def rules_within(place: str, dark: bool) -> str:
    """CSS rules of one scheme for charts within `place`, such as `.dark`, whatever the scheme of the system."""
    return re.sub(r"(?=svg\.remat )", f"{place} ", _scoped(LIGHT + DARK if dark else LIGHT))


STYLE = f"\n{_scoped(LIGHT)}\n@media (prefers-color-scheme:dark){{\n{_scoped(DARK)}\n}}\n"


def demand_picture_path(path: Path) -> None:
    """Return if the extension is .svg, or .png with the extra `png` installed. Raises BadUsage."""
    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise BadUsage(f"{path}: unknown extension; use .svg or .png", code="unknown_extension")
    if suffix == ".png" and importlib.util.find_spec("resvg_py") is None:
        message = f"{path}: PNG needs the extra `png`; run pip install 'remat[png]', or use .svg"
        raise BadUsage(message, code="missing_extra")


def write(path: Path, svg: str) -> None:
    """Write the chart atomically in the format of the file's extension. Raises BadUsage, CannotWrite."""
    demand_picture_path(path)
    write_atomic(path, svg.encode() if path.suffix.lower() == ".svg" else png(svg))


def png(svg: str) -> bytes:
    """The chart as PNG, the same bytes on every machine. Needs the extra `png`."""
    import resvg_py

    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            zoom=PNG_ZOOM,
            skip_system_fonts=True,
            font_files=[str(FONT)],
            font_family=FAMILY,
            sans_serif_family=FAMILY,
        )
    )


class Panel(NamedTuple):
    """Corner and extent of a panel in pixels, and the data range: x from `low` to `right`, y from 0 to `top`."""

    x: float
    y: float
    wide: float
    high: float
    low: float
    right: float
    top: float

    def x_of(self, value: float) -> float:
        """Pixel position of a value on the horizontal axis."""
        span = self.right - self.low
        return round(self.x + self.wide * ((value - self.low) / span if span else 0.5), 1)

    def up(self, value: float) -> float:
        """Pixel position of a value on the vertical axis."""
        return round(self.y + self.high * (1 - value / self.top), 1)

    def drawn(
        self,
        columns: Mapping[float, str],
        rows: Mapping[float, str],
        across: str = "",
        up: str = "",
        small: bool = False,
    ) -> list[str]:
        """SVG elements of the frame, grid, tick labels and axis titles."""
        size = " small" if small else ""
        bottom, parts = self.y + self.high, []
        for value, text in rows.items():
            y = self.up(value)
            parts.append(_line("grid", self.x, y, self.x + self.wide, y))
            parts.append(label(text, self.x - 6, y + 4, "end" + size))
        for value, text in columns.items():
            x = self.x_of(value)
            parts.append(_line("frame", x, bottom, x, bottom + 4))
            parts.append(label(text, x, bottom + (14 if small else 18), "middle" + size))
        parts.append(tag("path", None, class_="frame", d=f"M{self.x} {self.y}V{bottom}H{self.x + self.wide}"))
        if up:
            parts.append(label(up, self.x, self.y - 8, size.strip()))
        if across:
            parts.append(label(across, self.x + self.wide, bottom + 34, "end" + size))
        return parts


def timeline(report: Mapping[str, Any]) -> str:
    """SVG of memory before and after, of a report with a timeline."""
    drawn, plan = axes.series_of(report), report["plan"]
    top = max(*(series.peak for series in drawn), 1)
    budget_bytes = plan["budget_bytes"]
    budget = axes.drawn_budget(budget_bytes, top)
    high = max(top, budget or 0) * 1.06
    steps = max(1, *(len(series.steps) for series in drawn))
    frame = Panel(86, 122, 846, 282, 0, steps, high)
    name = axes.printable(report["model"].get("name") or "model")
    title = f"{name}: memory over steps"
    legend = [series.caption() for series in drawn if series.steps]
    if budget_bytes:
        legend.append(f"budget {format_bytes(budget_bytes)}" + ("" if budget else ", above the chart"))
    parts = frame.drawn(axes.step_labels(steps), axes.byte_labels(0, high, 6), "step", "bytes live")
    for series, style in zip(drawn, ("before", "after"), strict=True):
        parts += _area(frame, series, style)
    if budget:
        y = frame.up(budget)
        parts.append(_line("budget", frame.x, y, frame.x + frame.wide, y))
    parts += _timeline_legend(frame, legend)
    parts += [part for series in drawn for part in _peak(frame, series)]
    return picture(960, 450, title, "; ".join(legend) or "no steps", parts)


def _timeline_legend(frame: Panel, texts: Sequence[str]) -> list[str]:
    """One line per text; its first word is the style of the sample: before, after or budget."""
    parts = []
    for line, text in enumerate(texts):
        style = text.partition(":")[0].partition(" ")[0]
        outline = "h18" if style == "budget" else "v-4h18v8h-18z"
        shape = tag("path", None, class_=style, d=f"M{frame.x} {49 + 17 * line}{outline}")
        parts += [shape, label(text, frame.x + 26, 53 + 17 * line)]
    return parts


def _area(frame: Panel, series: MemorySeries, style: str) -> list[str]:
    """Path of the series as a step function; each pixel shows the maximum of its steps."""
    steps = int(frame.right)
    heights = axes.column_maxima(series.steps, int(frame.wide), steps)
    if not heights:
        return []
    count = min(int(frame.wide), steps)
    path, now = f"M{frame.x} {frame.up(0)}", frame.up(0)
    for column, height in enumerate(heights):
        if (y := frame.up(height)) != now:
            path += f"H{frame.x + frame.wide * column / count:.1f}V{y}"
            now = y
    path += f"H{frame.x + frame.wide * len(heights) / count:.1f}V{frame.up(0)}z"
    return [tag("path", None, class_=style, d=path)]


def _peak(frame: Panel, series: MemorySeries) -> list[str]:
    """Mark at the first peak step, labelled with its bytes."""
    if not series.steps:
        return []
    x, y = frame.x_of(series.at + 0.5), frame.up(series.peak)
    side = "end" if x > frame.x + frame.wide * 0.8 else ""
    dot = tag("circle", f"<title>{escape(series.caption())}</title>", class_="dot", cx=x, cy=y, r=4)
    return [dot, label(format_bytes(series.peak), x + (-8 if side else 8), y - 7, side)]


class CurveSize(NamedTuple):
    """Extent of a curve's picture in pixels, room left of its panel, and number of ticks across."""

    wide: int
    high: int
    left: int
    ticks: int

    def panel(self, y: float, low: float, high: float, top: float) -> Panel:
        """The panel from `y` down, over budgets from `low` to `high` bytes and overheads from 0 to `top`."""
        edge = 0.03 * (high - low) or 0.5
        return Panel(self.left, y, self.wide - self.left - 28, self.high - 52 - y, low - edge, high + edge, top)

    def title(self, name: str | None) -> str:
        """Title of a model's curve; on a narrow picture without the name, which the page says."""
        return "overhead over budget" if self is NARROW else f"{axes.printable(name or 'model')}: overhead over budget"


WIDE, NARROW = CurveSize(960, 450, 86, 8), CurveSize(400, 340, 56, 4)


def curve(document: Mapping[str, Any], size: CurveSize = WIDE) -> str:
    """SVG of a curve document of `remat curve` or `POST /v1/curves`."""
    points, model = sorted(document["points"], key=axes.budget_of), document["model"]
    low, high = axes.budget_of(points[0]), axes.budget_of(points[-1])
    missed = any(point["status"] == "over_budget" for point in points)
    copied = axes.copied_points(points)
    shown = {"missed": missed, "copied": bool(copied)}
    legend = [entry for entry in LEGEND if shown.get(entry[0], True)]
    per_line = (size.wide - size.left) // LEGEND_PX
    top = 1.08 * _top([*points, *copied])
    frame = size.panel(92 + LEGEND_LINE_PX * ((len(legend) - 1) // per_line), low, high, top)
    parts = frame.drawn(axes.byte_labels(low, high, size.ticks), axes.share_labels(top, 6), "budget", "overhead")
    parts += curve_lines(frame, points, axes.budget_of)
    parts += _copied_line(frame, copied)
    for place, (style, shape, words) in enumerate(legend):
        x, y = size.left + 6 + LEGEND_PX * (place % per_line), 52 + LEGEND_LINE_PX * (place // per_line)
        parts += _legend_entry(x, y, style, shape, words)
    description = "; ".join(_point_text(point) for point in points)
    description += "".join(f"; {_point_text(point)}, with copies to the host" for point in copied)
    rules = COPIED_RULES if copied else ("", "")
    return picture(size.wide, size.high, size.title(model.get("name")), description, parts, rules)


LEGEND_PX, LEGEND_LINE_PX = 170, 18
#: Additional CSS of a curve with copies, light and dark.
COPIED_RULES = (".copied{stroke:#b35900;fill:none;stroke-width:1.5}", ".copied{stroke:#f0a050}")
#: Legend of a curve: style, shape, text.
LEGEND = (
    ("proven", "dot", "proven optimal"),
    ("dot", "dot", "found"),
    ("found", "line", "plans found"),
    ("bound", "line", "lower bound"),
    ("copied", "line", "with copies to the host"),
    ("missed", "cross", "budget not reached"),
)


def _legend_entry(x: int, y: int, style: str, shape: str, words: str) -> list[str]:
    if shape == "line":
        return [_line(style, x - 6, y, x + 14, y), label(words, x + 20, y + 4)]
    return [_point(style, x, y), label(words, x + 12, y + 4)]


def curve_lines(
    frame: Panel, points: Sequence[Mapping[str, Any]], at: Callable[[Mapping[str, Any]], float]
) -> list[str]:
    """Plans found and bounds as step functions, and one mark per point; `at`: horizontal position of a point.

    A plan is feasible for every looser budget, and a lower bound holds for every tighter one. A missed budget is at the
    top, because no time suffices; the proven minimum peak is a wall.
    """
    points = sorted(points, key=at)
    met = [point for point in points if point["status"] != "over_budget"]
    parts: list[str] = []
    if met:
        xs, ground = [at(point) for point in met], frame.up(0)
        found, bound = f"M{frame.x_of(xs[0])} {frame.up(met[0]['overhead'])}", f"M{frame.x} {ground}"
        for k, x in enumerate(xs):
            found += f"H{frame.x_of(x)}V{frame.up(met[k]['overhead'])}"
            bound += f"V{frame.up(met[k]['bound_overhead'])}H{frame.x_of(x)}"
        parts.append(tag("path", None, class_="bound", d=f"{bound}V{ground}z"))
        parts.append(tag("path", None, class_="found", d=f"{found}H{frame.x + frame.wide}"))
    wall = max((point.get("bound_peak_bytes") or 0 for point in points), default=0)
    if frame.low < wall < frame.right:
        x, title = frame.x_of(wall), f"<title>proven minimum peak: {format_bytes(wall)}</title>"
        parts.append(tag("path", title, class_="wall", d=f"M{x} {frame.y}V{frame.up(0)}"))
    for point in points:
        style = {"proven": "proven", "over_budget": "missed"}.get(point["status"], "dot")
        y = frame.y if style == "missed" else frame.up(point["overhead"])
        parts.append(_point(style, frame.x_of(at(point)), y, _point_text(point)))
    return parts


def _copied_line(frame: Panel, points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Plans with copies as a step function with one mark per point."""
    if not points:
        return []
    at = [(frame.x_of(axes.budget_of(point)), frame.up(point["overhead"]), point) for point in points]
    line = f"M{at[0][0]} {at[0][1]}" + "".join(f"H{x}V{y}" for x, y, _ in at[1:]) + f"H{frame.x + frame.wide}"
    marks = [_point("dot", x, y, f"{_point_text(point)}, with copies to the host") for x, y, point in at]
    return [tag("path", None, class_="copied", d=line), *marks]


def _point(style: str, x: float, y: float, text: str = "") -> str:
    title = f"<title>{escape(text)}</title>" if text else None
    if style == "missed":
        return tag("path", title, class_=style, d=f"M{x - 4} {y - 4}l8 8m0 -8l-8 8")
    return tag("circle", title, class_=style, cx=x, cy=y, r=4)


def _point_text(point: Mapping[str, Any]) -> str:
    """A point of a curve as text."""
    if point["status"] == "over_budget":
        return f"{format_bytes(point['budget_bytes'])}: not reached, {best_found(point)}"
    bound = "proven optimal" if point["status"] == "proven" else f"bound {format_percent(point['bound_overhead'])}"
    return f"{format_bytes(axes.budget_of(point))}: {format_percent(point['overhead'])} slower, {bound}"


def _top(points: Sequence[Mapping[str, Any]]) -> float:
    """Largest overhead of the points within budget; 1% if there is none."""
    return max((point["overhead"] for point in points if point["status"] != "over_budget"), default=0.0) or 0.01


#: Small panel in pixels: width, height, margins left, below and above; ACROSS: panels per row.
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BELOW, ABOVE, ACROSS = 230, 150, 64, 30, 26, 3


def curves(
    named: Mapping[str, Sequence[Mapping[str, Any]]],
    title: str,
    beside: Mapping[str, Sequence[tuple[float, float, str]]] | None = None,
) -> str:
    """SVG of several curves, one panel each; budgets of points are percentages such as "50%".

    `beside` has marks to compare each curve with: (share of the peak, overhead, text).
    """
    down = -(-len(named) // ACROSS)
    parts = []
    for i, (name, points) in enumerate(named.items()):
        marks = (beside or {}).get(name, ())
        x = LEFT + i % ACROSS * (PANEL_WIDTH + LEFT)
        frame = Panel(
            x,
            62 + i // ACROSS * (PANEL_HEIGHT + BELOW + ABOVE),
            PANEL_WIDTH,
            PANEL_HEIGHT,
            0.17,
            1.03,
            1.08 * max(_top(points), *(overhead for _, overhead, _ in marks), 0.0),
        )
        columns = {share / 100: f"{share}%" for share in (20, 40, 60, 80, 100)}
        parts += frame.drawn(columns, axes.share_labels(frame.top, 4), up=name, small=True)
        parts += curve_lines(frame, points, _share_of)
        parts += [_point("missed", frame.x_of(share), frame.up(overhead), text) for share, overhead, text in marks]
    return picture(
        ACROSS * (PANEL_WIDTH + LEFT) + 20, down * (PANEL_HEIGHT + BELOW + ABOVE) + 48, title, ", ".join(named), parts
    )


def _share_of(point: Mapping[str, Any]) -> float:
    return float(point["budget"].rstrip("%")) / 100


def picture(
    wide: int, high: int, title: str, description: str, parts: Sequence[str], rules: tuple[str, str] = ("", "")
) -> str:
    """The SVG document; ids are unique per title and description. `rules`: additional CSS, light and dark."""
    more = f"{_scoped(rules[0])}\n@media (prefers-color-scheme:dark){{\n{_scoped(rules[1])}\n}}\n" if rules[0] else ""
    key = f"{zlib.crc32(f'{title} {description}'.encode(errors='replace')):08x}"
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="remat" role="img" '
            f'aria-labelledby="title-{key} desc-{key}">',
            f'<title id="title-{key}">{escape(title)}</title>',
            f'<desc id="desc-{key}">{escape(description)}</desc>',
            f"<style>{STYLE}{more}</style>",
            tag("rect", None, class_="paper", width=wide, height=high),
            label(title, 20, 26, "head"),
            *parts,
            "</svg>",
            "",
        ]
    )


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return tag("path", None, class_=style, d=f"M{x1} {y1}L{x2} {y2}")


def label(text: str, x: float, y: float, style: str = "") -> str:
    return tag("text", escape(text), class_=style, x=x, y=y)


def tag(tag: str, inside: str | None, /, **attributes: object) -> str:
    """One element; `inside` is markup. Empty attributes are omitted."""
    given = "".join(f" {name.rstrip('_')}={quoteattr(f'{v}')}" for name, v in attributes.items() if v != "")
    return f"<{tag}{given}/>" if inside is None else f"<{tag}{given}>{inside}</{tag}>"
