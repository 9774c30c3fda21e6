"""A report as a notebook shows it: the answer, what it is about, and memory before and after."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from app.render import svg
from app.render.text import headline, optimality, plan_lines


def report_html(report: Mapping[str, Any]) -> str:
    """The report as HTML that may stand among other HTML; whatever it names is text."""
    model = report["model"].get("name") or "model"
    picture = svg.timeline(report) if "timeline" in report else ""
    said = escape("\n".join(plan_lines(report)))
    return (
        f'<div class="remat-report"><p><strong>{escape(model)}</strong>: {escape(headline(report))}; '
        f"{escape(optimality(report['plan']))}.</p>{picture}"
        f"<details><summary>figures</summary><pre>{said}</pre></details></div>"
    )
