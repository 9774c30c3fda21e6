"""Self-contained HTML report of a batch: a row a model with its budgets, one chart, and the timeline of each plan."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from app.render import svg
from app.render.text import format_bytes, format_percent, format_seconds, headline, optimality
from app.sweep.overhead_chart import overhead_chart
from app.sweep.progress import format_result
from app.sweep.results import Row
from app.sweep.table import sort_by_saved, state_text, totals_line

#: Columns whose values a row of the page has in common.
GROUPED_BY = ("model", "batch", "planner", "seed")
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


class HtmlReport:
    """The page of a batch that grows: each plan's report is read and drawn once, however often the page is written.

    `report` returns a row's report, `requested` is the number of plans in all.
    """

    def __init__(self, report: Callable[[Row], Mapping[str, Any] | None], requested: int):
        self._report, self._requested = report, requested
        self._items: dict[str, tuple[Row, dict[str, Any]]] = {}  # by the row's key
        self._numbers = itertools.count()  # for ids in pictures

    def render(self, rows: Sequence[Row]) -> str:
        """The page: one row a model, its budgets beside each other, then every plan with its picture."""
        budgets = list(dict.fromkeys(row["budget"] for row in rows))
        groups = _groups(rows)
        names = _names(groups)
        models: list[dict[str, Any]] = []
        plans: list[dict[str, Any]] = []
        for name, group in zip(names, groups, strict=True):
            items = [self._item(row) for row in sorted(group, key=lambda row: budgets.index(row["budget"]))]
            items = [item | {"place": len(plans) + place} for place, item in enumerate(items)]
            models.append({"name": name, "cells": _cells(items, budgets), "plans": items, "before": _before(group)})
            plans += items
        script, style = ((HERE / name).read_text() for name in ("html_report.js", "html_report.css"))
        return _template().render(
            models=models,
            items=plans,
            budgets=budgets,
            best=next((item for item in plans if item["row"]["saved"] is not None), None),
            counted=totals_line(rows),
            missing=self._requested - len(rows),
            count=len({row["model"] for row in rows}),
            chart=overhead_chart(list(zip(names, groups, strict=True)), budgets) if rows else None,
            created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            script=script,
            style=style,
            script_hash=_hash(script),
        )

    def _item(self, row: Row) -> dict[str, Any]:
        """What the page shows of a row; as made before for the same row."""
        known = self._items.get(row["key"])
        if known is None or known[0] is not row:
            known = self._items[row["key"]] = row, _item(row, self._report(row), f"-{next(self._numbers)}")
        return known[1]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one model, batch size, planner and seed each: most saved first, groups without a plan last."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sort_by_saved(rows):
        groups.setdefault(tuple(row[name] for name in GROUPED_BY), []).append(row)
    return list(groups.values())


def _names(groups: Sequence[Sequence[Row]]) -> list[str]:
    """Name of each group: the model, its batch size, and planner and seed where the batch has several."""
    several = {name for name in ("planner", "seed") if len({group[0][name] for group in groups}) > 1}
    names = []
    for row in (group[0] for group in groups):
        parts = [row["model"] if row["batch"] is None else f"{row['model']}, batch {row['batch']}"]
        parts += [row["planner"]] if "planner" in several else []
        parts += [f"seed {row['seed']}"] if "seed" in several else []
        names.append(", ".join(parts))
    return names


def _before(group: Sequence[Row]) -> int | None:
    """Baseline peak of a group in bytes; None without a plan."""
    return next((row["baseline_peak_bytes"] for row in group if row["baseline_peak_bytes"] is not None), None)


def _cells(items: Sequence[dict[str, Any]], budgets: Sequence[str]) -> list[dict[str, Any] | None]:
    """One item per budget; None where it has not ended."""
    by_budget = {item["row"]["budget"]: item for item in items}
    return [by_budget.get(budget) for budget in budgets]


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _item(row: Row, report: Mapping[str, Any] | None, suffix: str) -> dict[str, Any]:
    item: dict[str, Any] = {"row": row, "state": state_text(row), "result": format_result(row)}
    item |= {"picture": None, "after": 0, "headline": None, "certainty": None, "recomputed": ()}
    if row["baseline_peak_bytes"]:
        item["after"] = min(100, round(100 * row["peak_bytes"] / row["baseline_peak_bytes"]))
    if report is None:
        return item
    return item | {
        "headline": headline(report),
        "certainty": optimality(report["plan"]),
        "recomputed": report["plan"]["recomputed"],
        "warnings": report["warnings"],
        "picture": timeline_svg(report, suffix) if "timeline" in report else None,
    }


def timeline_svg(report: Mapping[str, Any], suffix: str = "") -> str:
    """The timeline as inline SVG; `suffix` makes its ids unique in the page."""
    return SVG_IDS.sub(
        lambda match: match[1] + " ".join(id + suffix for id in match[2].split()) + match[3], svg.timeline(report)
    )
