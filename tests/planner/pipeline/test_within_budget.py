"""Plans, curves, fits and several shapes that say "within the budget" need at most the budget, addresses included."""

from __future__ import annotations

import json
import random

import pytest

from bench.catalogue import FOLDER
from bench.generators import layered
from planner.pipeline.curve import curve
from planner.pipeline.fits import fit
from planner.pipeline.progress import Progress
from planner.pipeline.solve import Outcome, solve
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request
from tests.planner.pipeline.fits.test_largest_fit import layers
from tests.strategies import random_graph

QUICK = {"execute": "no", "iterations": 5}


def tells_the_truth(outcome: Outcome) -> None:
    """Status, exit code, gap and savings follow the arena."""
    report, plan = outcome.report, outcome.report["plan"]
    needed = plan["peak_bytes"] if plan["arena_bytes"] is None else plan["arena_bytes"]
    assert plan["needed_bytes"] == needed
    assert plan["within_budget"] == (needed <= plan["budget_bytes"]) == (plan["status"] != "over_budget")
    assert outcome.exit_code == (0 if plan["within_budget"] else 1)
    assert (plan["gap"] is None) == (not plan["within_budget"])
    assert plan["saved_bytes"] == report["baseline"]["needed_bytes"] - needed
    assert report["fits"] == report["fits_device"]


@pytest.mark.parametrize("seed", range(30))
def test_a_random_graph_within_the_budget_has_an_arena_within_it(seed: int) -> None:
    chance = random.Random(seed)
    graph = random_graph(chance, nodes=chance.choice([3, 8, 20]))
    budget = chance.choice(["100%", "80%", "50%", 2000])
    counts = chance.choice(["everything", "activations"])
    tells_the_truth(solve(graph, parse_request({"budget": budget, "counts": counts, **QUICK})))


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(path.stem for path in (FOLDER / "recompute").glob("*.json")))
@pytest.mark.parametrize("budget", ["100%", "80%", "50%", "30%"])
def test_an_instance_within_the_budget_has_an_arena_within_it(name: str, budget: str) -> None:
    document = (FOLDER / "recompute" / f"{name}.json").read_bytes()
    tells_the_truth(solve(document, parse_request({"budget": budget, "planner": "greedy", "execute": "no"})))


def test_points_of_a_curve_are_within_their_budgets_and_more_memory_never_costs_time() -> None:
    document = json.dumps(layered(60, seed=3)).encode()
    found = curve(document, parse_curve({"budgets": ["100%", "85%", "75%", "65%"], "planner": "greedy", **QUICK}))
    for outcome in found.outcomes:
        tells_the_truth(outcome)
    assert found.document["violations"] == 0
    assert found.document["points"][0]["bound_peak_bytes"] == found.document["points"][0]["plan"]["bound"]["peak_bytes"]


def test_the_largest_size_that_fits_has_an_arena_within_the_memory() -> None:
    found = fit(layers(), parse_fit({"budget": "64KiB", "max_overhead": "40%", **QUICK}))
    assert found.outcome is not None
    tells_the_truth(found.outcome)
    assert found.outcome.report["plan"]["within_budget"] and found.exit_code == 0


def test_an_incumbent_over_the_budget_has_no_overhead_and_no_gap() -> None:
    events: list[Progress] = []
    document = json.dumps(layered(60, seed=3)).encode()
    solve(document, parse_request({"budget": "75%", "iterations": 5, "execute": "no"}), on_progress=events.append)
    incumbents = [event for event in events if event.incumbent_peak_bytes is not None]
    assert incumbents[0].incumbent_overhead is None and incumbents[0].gap is None
    assert incumbents[-1].incumbent_overhead is not None and incumbents[-1].gap is not None
