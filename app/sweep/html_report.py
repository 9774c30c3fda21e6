"""Self-contained HTML report of a batch: a sortable table and the timeline of each plan."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from app.render import svg
from app.render.text import format_bytes, format_percent, format_seconds, headline, optimality
from app.sweep.progress import format_result
from app.sweep.results import Row
from app.sweep.table import sort_by_saved, state_text, totals_line

HERE = Path(__file__).parent
SVG_IDS = re.compile(r'((?: id=| aria-labelledby=)")([^"]*)(")')


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": format_bytes, "share": format_percent, "seconds": format_seconds}
    return environment.get_template("html_report.html")


def render_html(rows: Sequence[Row], report: Callable[[Row], Mapping[str, Any] | None], requested: int) -> str:
    """The page, rows by saved fraction; `report` returns a row's report, `requested` is the number of plans in all."""
    script, style = ((HERE / name).read_text() for name in ("html_report.js", "html_report.css"))
    items = [_item(place, row, report(row)) for place, row in enumerate(sort_by_saved(rows))]
    best = items[0]["row"] if items and items[0]["row"]["saved"] is not None else None
    return _template().render(
        items=items,
        best=best,
        counted=totals_line(rows),
        missing=requested - len(rows),
        models=len({row["model"] for row in rows}),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        script=script,
        style=style,
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _item(place: int, row: Row, report: Mapping[str, Any] | None) -> dict[str, Any]:
    item: dict[str, Any] = {"row": row, "place": place, "state": state_text(row), "result": format_result(row)}
    item |= {"picture": None, "headline": None, "certainty": None, "recomputed": ()}
    if report is None:
        return item
    return item | {
        "headline": headline(report),
        "certainty": optimality(report["plan"]),
        "recomputed": report["plan"]["recomputed"],
        "warnings": report["warnings"],
        "picture": timeline_svg(report, f"-{place}") if "timeline" in report else None,
    }


def timeline_svg(report: Mapping[str, Any], suffix: str = "") -> str:
    """The timeline as inline SVG; `suffix` makes its ids unique in the page."""
    return SVG_IDS.sub(
        lambda match: match[1] + " ".join(id + suffix for id in match[2].split()) + match[3], svg.timeline(report)
    )
