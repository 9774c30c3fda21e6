"""Real models in; plans that are legal, checked and executed equal bit for bit in their arena out."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from graph.training.gradient_check import NOT_COMPARED, GradientCheck
from planner.algorithms import PLANNERS
from planner.formulation import execution_check
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.end_to_end.models import MODELS, QUICK

NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in MODELS]
#: Models whose steps take seconds to execute are planned by few planners; all others by all.
FEW, LARGE = ("greedy", "blocks", "mirror", "segments"), ("anneal", "cp_sat")
TAKE_LONG = ("zfnet512", "bvlc_alexnet", "resnet50", "densenet121", "inception_v2")
#: Planned by every planner in every run of the tests; the other quick ones only by those of FEW.
FIRST = "encoder"
PAIRS = [
    pytest.param(planner, name, marks=() if name == FIRST or (name in QUICK and planner in FEW) else pytest.mark.heavy)
    for planner in PLANNERS
    for name in MODELS
    if planner in FEW or name not in ("vgg19", *TAKE_LONG) or (planner in LARGE and name != "vgg19")
]


@pytest.fixture(autouse=True)
def gradients_compared_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of a model do not depend on its plan: they are compared with differences for one planner."""
    if request.node.callspec.params.get("planner", "greedy") != "greedy":
        once = GradientCheck(NOT_COMPARED, why="compared for another planner")
        monkeypatch.setattr(execution_check, "_gradient_probe", lambda planned, request: once)


@cache
def planned(name: str, planner: str) -> Outcome:
    path, fields = MODELS[name]
    request: dict[str, Any] = {**fields, "planner": planner, "budget": "80%", "search_seconds": 1, "execute": "yes"}
    return solve(path.read_bytes(), parse_request(request))


@pytest.mark.parametrize(("planner", "name"), PAIRS)
def test_every_plan_is_checked_and_executed_equal(name: str, planner: str) -> None:
    outcome = planned(name, planner)
    assert outcome.report["checked"]
    ran, plan = outcome.report["executed"], outcome.report["plan"]
    assert (ran["status"], ran["how"], ran["why"]) == ("equal", "arena", "")
    assert ran["peak_bytes"] == plan["peak_bytes"]  # counted by the run, which knows no plan


@pytest.mark.parametrize("name", NAMES)
def test_some_planner_gets_below_the_baseline_wherever_a_bound_allows_it(name: str) -> None:
    reports = [planned(name, planner).report for planner in ("greedy", "mirror", "segments")]
    peak = min(report["plan"]["peak_bytes"] for report in reports)
    baseline, floor = reports[0]["baseline"]["peak_bytes"], reports[0]["plan"]["bound"]["peak_bytes"]
    assert peak < baseline or floor == baseline


@pytest.mark.parametrize("name", NAMES)
def test_the_rewritten_graph_planned_again_has_the_predicted_peak(name: str) -> None:
    outcome = planned(name, "greedy")
    again = solve(outcome.graph, parse_request({"planner": "as_given", "differentiate": False}))
    assert again.report["plan"]["peak_bytes"] == outcome.report["plan"]["peak_bytes"]
