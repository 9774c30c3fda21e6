"""A report as notebook HTML: headline, memory timeline, figures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from app.render import svg
from app.render.text import headline, optimality, plan_lines


def report_html(report: Mapping[str, Any]) -> str:
    """The report as an HTML fragment; all names are escaped."""
    model = report["model"].get("name") or "model"
    picture = svg.timeline(report) if "timeline" in report else ""
    figures = escape("\n".join(plan_lines(report)))
    return (
        f'<div class="remat-report"><p><strong>{escape(model)}</strong>: {escape(headline(report))}; '
        f"{escape(optimality(report['plan']))}.</p>{picture}"
        f"<details><summary>figures</summary><pre>{figures}</pre></details></div>"
    )
