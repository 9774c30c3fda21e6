"""Plans at their lower bound are reported as proven, and the search ends there."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bench.catalogue import Instance
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
