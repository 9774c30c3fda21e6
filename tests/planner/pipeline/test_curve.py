"""Curves: every point is checked, time and bound never rise with the budget, all faults are reported."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.cli.commands.curve import lines
from app.render import svg
from bench.generators import unet
from graph.formats.readers import load
from graph.ir import Graph
from planner.errors import BadRequest
from planner.formulation import execution_check
from planner.pipeline import curve_search, solve_stages
from planner.pipeline.curve import CurveResult, bound_overheads, curve, violations
from planner.problem.plan import Candidate
from planner.report import saved_report
from planner.request.curve_and_fit_request import parse_curve
from tests.app.conftest import chain
from tests.end_to_end.models import OURS

pytestmark = pytest.mark.usefixtures("bounds")

MODEL = json.dumps(unet(3)).encode()
BUDGETS = ["90%", "30%", "70%", "50%"]


def curve_of(model: bytes = MODEL, budgets: list[Any] = BUDGETS, **fields: Any) -> CurveResult:
    limit = {} if "search_seconds" in fields else {"iterations": 40}
    return curve(model, parse_curve({"budgets": budgets, **limit, **fields}))


@pytest.mark.parametrize(("order", "planner"), [("given", "auto"), ("free", "greedy")])
def test_neither_time_nor_bound_rises_with_the_budget(order: str, planner: str):
    points = curve_of(order=order, planner=planner).document["points"]
    assert [point["budget"] for point in points] == BUDGETS
    points.sort(key=lambda point: point["budget_bytes"])
    for tight, loose in itertools.pairwise(points):
        assert tight["bound_overhead"] >= loose["bound_overhead"]
        assert tight["status"] == "over_budget" or tight["overhead"] >= loose["overhead"]
    for point in points:
        met = point["peak_bytes"] <= point["budget_bytes"]
        assert met == (point["status"] != "over_budget")
        assert not met or point["overhead"] >= point["bound_overhead"]


def test_every_point_is_a_report_that_verifies():
    from graph.formats.native.writer import document

    for outcome in curve_of(budgets=["80%", 1, 0], layout="fast").outcomes:
        report = json.loads(json.dumps({**outcome.report, "source": document(outcome.source)}))
        found = saved_report.verify(report)
        assert found["valid"] and found["peak_bytes"] == report["plan"]["peak_bytes"]


def test_a_plan_is_handed_to_looser_budgets(monkeypatch: pytest.MonkeyPatch):
    """Only the tightest budget gets a real search; the looser ones find nothing and get its plan."""
    real, calls = curve_search.lexicographic.search, []

    def search(problem, goal, planner, monitor, seeds):
        calls.append(goal.budget_bytes)
        assert len(seeds) == (len(calls) > 1)
        return real(problem, goal, planner, monitor, seeds) if len(calls) == 1 else Candidate(base(problem), "as_given")

    def base(problem):
        return np.arange(problem.tasks)

    monkeypatch.setattr(curve_search.lexicographic, "search", search)
    points = curve_of(budgets=["80%", "60%", "70%"], planner="greedy").document["points"]
    assert calls[:3] == sorted(set(calls))
    assert len({point["overhead"] for point in points}) == 1
    assert all(point["status"] == "found" for point in points)


@pytest.mark.parametrize(("well", "again"), [((0, 2), 1), ((0,), 2), ((0, 1, 2), None)])
def test_a_point_above_the_line_or_above_its_bound_gets_the_extra_searches(
    monkeypatch: pytest.MonkeyPatch, well: tuple[int, ...], again: int | None
):
    """Of three budgets, tightest first, those in `well` get a real search; the others get the previous plan."""
    real, calls, seeds = curve_search.lexicographic.search, [], []

    def search(problem, goal, planner, monitor, known):
        calls.append(goal.budget_bytes)
        seeds.append(goal.seed)
        if len(calls) <= 3 and len(calls) - 1 in well:
            return real(problem, goal, planner, monitor, known)
        return Candidate(np.arange(problem.tasks), "as_given")

    monkeypatch.setattr(curve_search.lexicographic, "search", search)
    curve_of(budgets=["80%", "60%", "70%"], planner="greedy")
    first, more = calls[:3], calls[3:]
    assert len(more) == curve_search.EXTRA_SEARCHES
    if again is not None:
        assert set(more) == {first[again]}
        assert len(set(seeds[3:]) | {seeds[0]}) == curve_search.EXTRA_SEARCHES + 1  # each goes another way


@pytest.mark.parametrize(
    ("planner", "limit", "first"),
    [("auto", {"search_seconds": 20}, "neighbourhood"), ("auto", {"iterations": 9}, "auto"), ("greedy", {}, "greedy")],
)
def test_integer_programs_improve_the_worst_point_first_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, planner: str, limit: dict[str, int], first: str
):
    real, calls = curve_search.lexicographic.search, list[str]()

    def search(problem, goal, planner, monitor, known):
        calls.append(planner)
        return real(problem, goal, "segments", monitor, known)

    monkeypatch.setattr(curve_search.lexicographic, "search", search)
    curve_of(budgets=["80%", "60%", "70%"], planner=planner, **limit)
    assert calls[-curve_search.EXTRA_SEARCHES - 1 :] == [planner, first, planner, planner]


@pytest.mark.parametrize(("costs", "worst"), [((90, 20, 11, 1), 0), ((40, 39, 22, 1), 1), ((3, 3, 3, 3), 3)])
def test_the_tightest_budget_competes_by_the_gap_that_it_has_beyond_the_next(costs: tuple[int, ...], worst: int):
    """Of four budgets, evenly spaced, with plans so many ticks above one bound."""
    stages = solve_stages.SolveStages(None, threading.Event())
    base = stages.formulate(load(MODEL), parse_curve({"budgets": [0]}).request)
    search = curve_search.CurveSearch(base, "greedy", stages)
    formulations = [search._within(1000 * k) for k in range(1, 5)]
    for cost, one in zip(costs, formulations, strict=True):
        search.measured.append((one.bound.cost + cost, one.goal.budget_bytes or 0))
    search.found += [Candidate(np.arange(1), "greedy")] * len(costs)
    assert search._worst(formulations) is formulations[worst]


@pytest.mark.parametrize("iterations", [None, 40])
def test_quick_planners_search_every_budget_before_auto(monkeypatch: pytest.MonkeyPatch, iterations: int | None):
    """By the clock those of a framework as well, so that a busy machine leaves no plan slower than theirs."""
    planners = list[str]()

    def search(problem, goal, planner, monitor, seeds):
        planners.append(planner)
        return Candidate(np.arange(problem.tasks), "as_given")

    monkeypatch.setattr(curve_search.lexicographic, "search", search)
    curve_of(budgets=["80%", "90%"], iterations=iterations, search_seconds=1)
    quick = ["greedy", "min_cut"] if iterations is None else ["greedy"]
    assert planners[: 2 * len(quick) + 1] == [name for name in quick for _ in range(2)] + ["auto"]


def test_the_same_question_has_the_same_curve():
    first, second = curve_of().document, curve_of().document
    for document in (first, second):
        del document["elapsed"]
    assert first == second


def test_under_an_iteration_limit_no_search_depends_on_the_clock(monkeypatch: pytest.MonkeyPatch):
    real, seconds = curve_search.lexicographic.search, set[float]()

    def search(problem, goal, planner, monitor, seeds):
        seconds.add(goal.seconds)
        return real(problem, goal, planner, monitor, seeds)

    monkeypatch.setattr(curve_search.lexicographic, "search", search)
    curve_of()
    assert len(seconds) == 1  # bounds within a search size their effort by it


def test_shares_of_the_reducible_part_lie_above_the_lowest_peak():
    lowest = curve_of(budgets=[0]).document["points"][0]["peak_bytes"]
    document = curve_of(budgets=["100%", "50%"], fraction_of="reducible").document
    whole = document["baseline"]["peak_bytes"]
    full, half = [point["budget_bytes"] for point in document["points"]]
    assert full == whole
    assert lowest < half < whole
    assert half > whole // 2


def test_an_unreachable_budget_is_a_result():
    made = curve_of(budgets=[1, "100%"])
    low, full = made.document["points"]
    assert (low["status"], full["status"]) == ("over_budget", "proven")
    assert (full["overhead"], made.exit_code) == (0, 1)
    assert made.outcomes[0].report["plan"]["smallest_budget_bytes"] == low["peak_bytes"]


def test_a_stop_gives_every_point_a_plan():
    stop = threading.Event()
    stop.set()
    made = curve(MODEL, parse_curve({"budgets": BUDGETS}), cancel=stop)
    assert len(made.document["points"]) == len(BUDGETS)
    assert made.exit_code == 3


def test_a_point_is_executed_on_request():
    made = curve(json.dumps(chain()).encode(), parse_curve({"budgets": ["90%"], "execute": "yes", "iterations": 5}))
    assert made.outcomes[0].report["executed"]["status"] in ("equal", "not executed")
    assert made.outcomes[0].report["executed"]["why"] != "not asked for"


def test_the_source_runs_once_for_all_points(monkeypatch: pytest.MonkeyPatch):
    """The model as given and its gradients do not depend on the plan; each rewritten graph runs by itself."""
    real, runs = execution_check.execute, []

    def counted(graph: Graph, *args: Any, **options: Any) -> Any:
        runs.append(graph)
        return real(graph, *args, **options)

    monkeypatch.setattr(execution_check, "execute", counted)
    model = (OURS / "decoder.onnx").read_bytes()
    shapes = {"batch": 2, "dims": {"sequence": 4}}
    made = curve_of(model, ["80%", "60%", 0], execute="yes", layout="fast", loss="loss", **shapes)
    assert [outcome.report["executed"]["status"] for outcome in made.outcomes] == ["equal"] * 3
    sources = [graph for graph in runs if graph is made.outcomes[0].source]
    assert (len(runs), len(sources)) == (4, 1)


def test_violations_are_counted():
    def point(budget: int, needed: int, overhead: float) -> dict[str, Any]:
        status = "over_budget" if needed > budget else "found"
        return {"budget_bytes": budget, "status": status, "overhead": overhead}

    assert violations([point(3, 3, 0.0), point(2, 2, 0.1), point(1, 1, 0.2)]) == 0
    assert violations([point(3, 3, 0.3), point(2, 2, 0.1), point(1, 1, 0.2)]) == 2
    assert violations([point(3, 4, 0.0), point(2, 2, 0.1)]) == 1  # the looser budget is missed
    assert violations([point(3, 3, 0.1), point(2, 4, 0.0)]) == 0  # the tighter one is


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["budgets"]),
    ({"budgets": []}, ["budgets"]),
    ({"budgets": "90%"}, ["budgets"]),
    ({"budgets": ["1%"] * 65}, ["budgets"]),
    ({"budgets": ["50%", 0.5, "101%", -1]}, ["budgets[1]", "budgets[2]", "budgets[3]"]),
    ({"budgets": ["50%"], "budget": "50%", "fits": 3}, ["budget", "fits"]),
    ({"budgets": ["50%"], "return": ["graph"], "seed": -1}, ["return", "seed"]),
    ({"budgets": ["50%", "50%"], "bugdets": 3, "planner": "none"}, ["bugdets", "planner", "budgets[1]"]),
]


@pytest.mark.parametrize(("fields", "paths"), BAD)
def test_all_faults_are_reported_with_place_and_remedy(fields: dict[str, Any], paths: list[str]):
    with pytest.raises(BadRequest) as caught:
        parse_curve(fields)
    assert [finding.path for finding in caught.value.findings] == paths
    assert all(finding.found and finding.expected and finding.remedy for finding in caught.value.findings)


@pytest.mark.parametrize(("tight_budget", "status"), [("50%", "found"), (1, "over_budget")])
def test_a_bound_of_a_looser_budget_holds_for_tighter_ones(
    monkeypatch: pytest.MonkeyPatch, tight_budget: str | int, status: str
):
    """The bound at 90% is the tightest; a tighter budget inherits it, also if no plan meets that budget."""

    def with_bound(question, quick):
        assert quick
        ticks = 1 + question.goal.budget_bytes // 1000  # more at a looser budget, which no proof could mean
        return replace(question, bound=replace(question.bound, cost=question.bound.single_run_cost + ticks))

    monkeypatch.setattr(solve_stages, "with_lower_bound", with_bound)
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda question, plan: question)
    loose, tight = curve_of(budgets=["90%", tight_budget], planner="greedy").document["points"]
    assert tight["status"] == status
    assert tight["bound_overhead"] == loose["bound_overhead"] > 0


def test_the_bound_of_a_point_over_its_budget_is_that_of_the_next_looser_budget():
    bounds = {40: 0.0, 90: 0.1, 10: 0.0, 70: 0.3}  # budget -> bound of the plan; at 40 and 10 no plan is found
    plans = [{"budget_bytes": budget, "bound": {"overhead": bound}} for budget, bound in bounds.items()]
    assert bound_overheads(plans) == [0.3, 0.1, 0.3, 0.3]


def test_a_curve_with_offload_has_the_plans_with_copies_beside_those_without() -> None:
    device = {"like": "a100-80gb", "host_bandwidth": 1e11}
    made = curve_of(budgets=["80%", "60%", 0], device=device, offload=True).document
    plain = curve_of(budgets=["80%", "60%", 0], device=device).document
    assert [point["overhead"] for point in made["points"]] == [point["overhead"] for point in plain["points"]]
    loose, tight, lowest = (point["copied"] for point in made["points"])
    assert lowest is None and any("no copies to the host: a budget above 0" in text for text in made["warnings"])
    assert tight["offloaded"] and tight["within_budget"] and loose["overhead"] <= tight["overhead"]
    assert tight["overhead"] < made["points"][1]["overhead"] or not tight["overhead"]
    text = "\n".join(lines(made))
    assert "with copies" in text and "on the host" in text and "with copies to the host" in svg.curve(made)
    assert all("copied" not in point for point in plain["points"])


def test_a_curve_with_offload_needs_a_link() -> None:
    with pytest.raises(BadRequest, match="host_bandwidth"):
        curve_of(device={"bandwidth": 1e12, "flops": 1e13}, offload=True)
