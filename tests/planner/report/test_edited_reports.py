"""Verification refuses a report in which any single field was edited."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from graph.errors import BadGraph
from planner.errors import BadRequest, IllegalPlan
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.request.plan_request import parse_request
from tests.app.conftest import chain
from tests.planner.formulation.test_execution_check import chain as tanhs

SECTIONS = ["plan", "timeline", "layout", "explain", "source", "graph"]
#: Kinds of reports: document and request fields.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "within a budget": (chain(6), {"budget": "70%", "share_buffers": True}),
    "lowest peak": (chain(5), {"budget": 0, "return": ["plan", "timeline", "layout", "source"]}),
    "over budget": (chain(5), {"budget": "10%", "return": ["plan", "explain", "source"], "layout": "none"}),
    "within a time": (chain(5), {"max_overhead": 0.3, "counts": "activations", "reserve": 100}),
    "given order": (chain(8), {"budget": "60%", "order": "given", "return": ["plan", "source"], "layout": "none"}),
    "executed": (
        json.loads(tanhs(4)),
        {
            "budget": "90%",
            "execute": "yes",
            "return": ["plan", "source", "layout"],
            "differentiate": {"of": ["h6"], "with_respect_to": ["h0"]},
        },
    ),
}
#: Fields that may say something else, each with the reason.
FREE = {
    "elapsed": "seconds that passed",
    "warnings": "texts; those that follow from figures may not be left out",
    "plan.planner": "the name of who found the order",
    **{
        f"plan.bound.certificate.claims.{k}.{part}": "another proof of the same claim, at another step, proves it too"
        for k in (0, 1)
        for part in ("proof", "moments")
    },
    "plan.bound.certificate.claims.1.budget_bytes": "a claim proven for a looser budget holds for this one",
    "executed.gradients": "the function that was differentiated is not in the file",
}

Path = tuple[str | int, ...]


@cache
def report(kind: str) -> dict[str, Any]:
    document, fields = KINDS[kind]
    request = parse_request({"iterations": 5, "return": SECTIONS, **fields})
    return dict(json.loads(json.dumps(solve(json.dumps(document).encode(), request).report)))


def leaves(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, value) of all numbers, strings and booleans that are not free."""
    if ".".join(map(str, path)) in FREE:
        return
    if isinstance(data, dict | list):
        for name, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(inner, (*path, name))
    elif data is not None:
        yield path, data


def edits(kind: str) -> list[tuple[str, Path, Any]]:
    """(kind, path, another value of the same type) for every field of a report."""
    found: list[tuple[str, Path, Any]] = []
    for path, value in leaves(report(kind)):
        if isinstance(value, bool):
            others: list[Any] = [not value]
        elif isinstance(value, int | float):
            others = [value + 1, value - 1] if isinstance(value, int) else [value * 1.01 + 1e-3, value / 2 - 1e-3]
        else:
            others = [word for word in ("proven", "found", "over_budget") if path == ("plan", "status")]
            others = [word for word in (*others, "certified", value + "x") if word != value]
        found += [(kind, path, other) for other in others]
    return found


def edited(kind: str, path: Path, to: Any) -> dict[str, Any]:
    whole = copy.deepcopy(report(kind))
    inner: Any = whole
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return whole


@pytest.mark.parametrize("kind", KINDS)
def test_reports_verify_as_they_were_written(kind: str) -> None:
    assert saved_report.verify(report(kind))["valid"]


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.heavy)])
def test_an_edited_report_is_refused(count: int) -> None:
    every = [edit for kind in KINDS for edit in edits(kind)]
    figures = [edit for edit in every if edit[1][0] in ("plan", "fits", "baseline", "reference", "checked", "executed")]
    figures = [edit for edit in figures if edit[1][:2] != ("plan", "order")]
    accepted = []
    for chosen in (figures, every):
        for kind, path, to in chosen[:: -(-2 * len(chosen) // count)]:
            try:
                saved_report.verify(edited(kind, path, to))
            except (BadGraph, BadRequest, IllegalPlan):
                continue
            accepted.append((kind, path, to))
    assert not accepted
