"""Reports, curves and fits as notebook HTML: headline, picture, figures. All names are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from app.render import svg
from app.render.text import format_bytes, format_percent, headline, optimality, plan_lines

#: Scheme -> places in JupyterLab and VS Code, whose theme may differ from the system's.
THEMED_PLACES = {
    "light": ('[data-jp-theme-light="true"]', ".vscode-light"),
    "dark": ('[data-jp-theme-light="false"]', ".vscode-dark"),
}
STYLE = "\n".join(
    svg.rules_within(place, scheme == "dark") for scheme, places in THEMED_PLACES.items() for place in places
)


def report_html(report: Mapping[str, Any]) -> str:
    """The report as an HTML fragment."""
    model = report["model"].get("name") or "model"
    picture = _picture(svg.timeline(report)) if "timeline" in report else ""
    figures = escape("\n".join(plan_lines(report)))
    return (
        f'<div class="remat-report"><p><strong>{escape(model)}</strong>: {escape(headline(report))}; '
        f"{escape(optimality(report['plan']))}.</p>{picture}"
        f"<details><summary>figures</summary><pre>{figures}</pre></details></div>"
    )


def curve_html(curve: Mapping[str, Any]) -> str:
    """The curve as an HTML fragment: picture, and a row per budget."""
    rows = [
        (
            str(point["budget"]),
            point["status"].replace("_", " "),
            format_bytes(point["peak_bytes"]),
            format_bytes(point.get("needed_bytes")),
            format_percent(point["overhead"]),
            format_percent(point["bound_overhead"]),
        )
        for point in curve["points"]
    ]
    head = (
        f"<strong>{_name(curve)}</strong>: peak {format_bytes(curve['baseline']['peak_bytes'])} without recomputation."
    )
    columns = ("budget", "status", "peak", "memory needed", "overhead", "proven minimum")
    return f'<div class="remat-curve"><p>{head}</p>{_picture(svg.curve(curve))}{_table(columns, rows)}</div>'


def fit_html(fit: Mapping[str, Any]) -> str:
    """The fit as an HTML fragment: the largest size, and a row per size tried."""
    what, size = fit["dimension"] or fit["grow"], fit["size"]
    limit = f"{format_bytes(fit['budget_bytes'])} with at most {format_percent(fit['max_overhead'])} overhead"
    found = f"no {what} fits {limit}" if size is None else f"{what} {size} fits {limit}"
    rows = [
        (
            str(row["size"]),
            "fits" if row["fits"] else row["said"] or "does not fit",
            *(format_bytes(row[name]) if row.get(name) is not None else "" for name in ("peak_bytes", "needed_bytes")),
            format_percent(row["overhead"]) if row.get("overhead") is not None else "",
        )
        for row in fit["tried"]
    ]
    columns = (what, "outcome", "peak", "memory needed", "overhead")
    return f'<div class="remat-fit"><p><strong>{_name(fit)}</strong>: {escape(found)}.</p>{_table(columns, rows)}</div>'


HTML = {"remat-report/1": report_html, "remat-curve/1": curve_html, "remat-fit/1": fit_html}


def document_html(document: Mapping[str, Any]) -> str | None:
    """The document as an HTML fragment, by its `format`; None for another one."""
    shown = HTML.get(document.get("format", ""))
    return None if shown is None else shown(document)


def _picture(drawn: str) -> str:
    """The picture in the theme of the notebook; without one that is known, in that of the system."""
    return f"<style>{STYLE}</style>{drawn}"


def _name(document: Mapping[str, Any]) -> str:
    return escape((document["model"] or {}).get("name") or "model")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
