"""Verification accepts intact saved reports, and refuses damaged or overstated ones."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from planner.errors import BadRequest, IllegalPlan
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.request.plan_request import parse_request
from tests.app.conftest import chain


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    asked = {"budget": "70%", "iterations": 20, "return": ["plan", "timeline", "layout", "source"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    assert saved_report.verify(made)["valid"] and made["plan"]["recomputed"]
    return made


def changed(report: dict[str, Any], path: str, to: Any) -> dict[str, Any]:
    """The report with another entry at the path; None removes it."""
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    whole = copy.deepcopy(report)
    inner: Any = whole
    for part in outer:
        inner = inner[part]
    if to is None:
        del inner[last]
    else:
        inner[last] = to
    return whole


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("request", None),
        ("request", 5),
        ("plan", []),
        ("source", "x"),
        ("plan.order", -1),
        ("plan.order.0", True),
        ("plan.order.0.0", []),
        ("plan.order.0", ["a"]),
        ("plan.peak_bytes", "x"),
        ("plan.peak_bytes", 2**63),
        ("plan.overhead", {}),
        ("plan.arena_bytes", [[1]]),
        ("plan.planner", None),
        ("timeline", {}),
        ("timeline.step_bytes", 0.5),
        ("layout", True),
        ("layout.value", [{}]),
        ("layout.run", None),
        ("layout.offset.0", 1e308),
        ("layout.workspace", -1),
        ("layout.workspace.step", None),
        ("baseline", {}),
        ("device", 3),
        ("model.hash", None),
        ("fits", "yes"),
    ],
)
def test_a_damaged_part_is_named(report: dict[str, Any], path: str, to: Any) -> None:
    for reader in (saved_report.verify, saved_report.explain, saved_report.certificate):
        with pytest.raises(BadRequest) as caught:
            reader(changed(report, path, to))
        (finding,) = caught.value.findings
        assert finding.code == "not_a_report"
        assert finding.path.split(".")[0].split("[")[0] in (path.split(".")[0], "report")


def test_columns_of_a_layout_have_one_length(report: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="unequal length"):
        saved_report.verify(changed(report, "layout.offset", report["layout"]["offset"][1:]))


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("baseline.peak_bytes", 10**9),
        ("baseline.seconds", 1.0),
        ("plan.saved_bytes", 10**9),
        ("plan.status", "over_budget"),
        ("plan.budget_bytes", 1),
        ("plan.overhead", 0.0),
        ("plan.order", []),
    ],
)
def test_a_figure_that_does_not_follow_is_found(report: dict[str, Any], path: str, to: Any) -> None:
    with pytest.raises(IllegalPlan, match=path.split(".")[1] if path != "plan.budget_bytes" else "status"):
        saved_report.verify(changed(report, path, to))


def test_any_other_order_is_refused_and_none_ends_otherwise(report: dict[str, Any]) -> None:
    rng = random.Random(0)
    for _ in range(60):
        order = copy.deepcopy(report["plan"]["order"])
        at, other = rng.randrange(len(order)), rng.randrange(len(order))
        kind = rng.randrange(3)
        if kind == 0:
            del order[at]
        elif kind == 1:
            order.insert(other, order[at])
        else:
            order[at], order[other] = order[other], order[at]
        if order != report["plan"]["order"]:
            with pytest.raises(IllegalPlan):
                saved_report.verify(changed(report, "plan.order", order))
