"""Plans at their lower bound are reported as proven, and the search ends there."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from bench.catalogue import Instance
from planner.errors import IllegalPlan
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.request.plan_request import parse_request
from planner.warm import warm

SECONDS = 60.0


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("vgg16_b32", 0.8),
        ("vgg16_b32", 0.9),
        ("layered_n100_s1", 0.7),
        pytest.param("unet_b4", 0.9, marks=pytest.mark.heavy),
        pytest.param("chain40", 0.8, marks=pytest.mark.heavy),
        pytest.param("layered_n100_s1", 0.6, marks=pytest.mark.heavy),
    ],
)
def test_an_optimal_plan_is_proven_before_the_time_is_over(name: str, budget: float) -> None:
    request = {"budget": budget, "search_seconds": SECONDS, "layout": "none", "return": ["plan", "source"]}
    warm()  # what compiles the kernels is no search
    began = time.monotonic()
    report: dict[str, Any] = solve(Instance(name).bytes, parse_request(request)).report
    assert time.monotonic() - began < SECONDS / 2
    assert (report["plan"]["status"], report["plan"]["gap"]) == ("proven", 0.0)
    assert saved_report.verify(report)["valid"] and saved_report.certificate(report)


@pytest.mark.parametrize(("layout", "alignment"), [("none", None), ("fast", 64)])
def test_a_claim_on_the_time_is_about_the_arena_of_a_plan_with_addresses(layout: str, alignment: int | None) -> None:
    limits = {"planner": "greedy", "search_seconds": 0.2, "iterations": 1, "execute": "no"}
    request = {"budget": 0.8, "layout": layout, "return": ["plan", "source"], **limits}
    report: dict[str, Any] = solve(Instance("chain40").bytes, parse_request(request)).report
    claim = report["plan"]["bound"]["certificate"]["claims"][1]
    assert claim.get("alignment") == alignment
    assert saved_report.verify(report)["valid"] and saved_report.certificate(report)
    for other in (128, 32):
        with pytest.raises(IllegalPlan, match=r"claims\[1\]"):
            saved_report.verify(with_claim(report, {**claim, "alignment": other}))


def with_claim(report: dict[str, Any], claim: dict[str, Any]) -> dict[str, Any]:
    """The report with another claim on the time."""
    changed = copy.deepcopy(report)
    changed["plan"]["bound"]["certificate"]["claims"][1] = claim
    return changed
