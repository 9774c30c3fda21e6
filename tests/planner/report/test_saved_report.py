"""Verification accepts intact saved reports, and refuses damaged or overstated ones."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from bench.generators import layered
from planner.bounds import step_cut
from planner.errors import BadRequest, IllegalPlan
from planner.formulation.formulation import Formulation
from planner.pipeline.solve import solve
from planner.problem.plan import Plan
from planner.report import saved_report
from planner.report.rebuilt_report import OBSERVED, OF_THE_ARENA
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


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("plan.bound.certificate", None),
        ("plan.bound.certificate", {"claims": None}),
        ("plan.bound.certificate.claims", None),
        ("plan.bound.certificate.claims", []),
        ("plan.bound.certificate.claims", 5),
        ("plan.bound.certificate.claims", [1, 2]),
    ],
)
def test_a_report_without_its_claims_is_refused(report: dict[str, Any], path: str, to: Any) -> None:
    for reader in (saved_report.verify, saved_report.certificate):
        with pytest.raises(BadRequest, match=r"plan\.bound\.certificate"):
            reader(changed(report, path, to))


def test_columns_of_a_layout_have_one_length(report: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="unequal length"):
        saved_report.verify(changed(report, "layout.offset", report["layout"]["offset"][1:]))


def test_what_a_file_cannot_prove_is_listed() -> None:
    asked = {"budget": "50%", "fraction_of": "reducible", "iterations": 5, "return": ["plan", "source"]}
    asked |= {"advise_checkpoints": True, "checkpoints": ["a1"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    listed = ["plan.arena_bytes", *OF_THE_ARENA, *OBSERVED, "checkpoint_advice", "plan.budget_bytes"]
    assert saved_report.verify(made)["not_recomputed"] == listed


@pytest.mark.parametrize("arena_bytes", [None, 64])
@pytest.mark.parametrize("runtime", ["arena", "torch-eager"])
def test_an_arena_without_its_layout_holds_the_peak(arena_bytes: int | None, runtime: str) -> None:
    asked = {"budget": "70%", "iterations": 5, "runtime": runtime, "return": ["plan", "source"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    assert saved_report.verify(made)["valid"]
    made["plan"]["arena_bytes"] = arena_bytes
    if arena_bytes is None and runtime == "torch-eager":
        assert saved_report.verify(made)["valid"]
    else:
        with pytest.raises(IllegalPlan, match=r"plan\.arena_bytes"):
            saved_report.verify(made)


def test_what_was_observed_may_differ_and_no_time_is_negative(report: dict[str, Any]) -> None:
    edited = copy.deepcopy(report)
    edited["plan"]["planner"] = "another"
    edited["warnings"].append("another")
    edited["elapsed"] = {"plan": 1.0}
    listed = saved_report.verify(edited)["not_recomputed"]
    assert {"plan.planner", "plan.reproducible", "plan.stopped", "warnings", "elapsed"} <= set(listed)
    with pytest.raises(IllegalPlan, match="elapsed"):
        saved_report.verify(changed(report, "elapsed", {"plan": -5.0}))


def test_an_arena_is_not_left_out_beside_its_layout(report: dict[str, Any]) -> None:
    damaged = copy.deepcopy(report)
    damaged["plan"]["arena_bytes"] = None
    with pytest.raises(IllegalPlan, match=r"plan\.arena_bytes"):
        saved_report.verify(damaged)


def test_a_plan_whose_addresses_are_over_the_budget_is_not_edited_to_proven() -> None:
    document = json.dumps(layered(40, seed=1)).encode()
    asked = {"planner": "as_given", "iterations": 1, "return": ["plan", "source", "layout"]}
    first = solve(document, parse_request(asked | {"budget": "100%"})).report
    made = solve(document, parse_request(asked | {"budget": first["plan"]["peak_bytes"]})).report
    assert made["plan"]["status"] == "over_budget"
    del made["layout"]
    made["plan"] |= {"arena_bytes": None, "status": "proven", "within_budget": True}
    with pytest.raises(IllegalPlan, match=r"plan\.arena_bytes"):
        saved_report.verify(made)


def test_a_warning_that_follows_from_figures_may_not_be_left_out() -> None:
    asked = {"budget": "70%", "iterations": 5, "checkpoints": ["nowhere"], "return": ["plan", "source"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    assert saved_report.verify(made)["valid"]
    with pytest.raises(IllegalPlan, match="unknown checkpoints are ignored"):
        saved_report.verify({**made, "warnings": []})


def test_a_claim_that_the_verifier_refuses_is_dropped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = step_cut.bound

    def overstated(*asked: Any) -> step_cut.StepCut:
        cut = genuine(*asked)
        assert cut.claim is not None
        return replace(cut, claim={**cut.claim, "value": cut.claim["value"] + 10**15})

    monkeypatch.setattr(step_cut, "bound", overstated)
    asked = {"budget": "60%", "planner": "greedy", "iterations": 5, "return": ["plan", "source"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    assert any("the verifier refused it" in text for text in made["warnings"])
    assert (
        made["plan"]["bound"]["proof"] == "certified" and made["plan"]["bound"]["overhead"] < made["plan"]["overhead"]
    )
    assert saved_report.verify(made)["valid"]


@pytest.mark.parametrize("name", ["baseline", "reference", "if_kept"])
def test_plans_for_comparison_go_through_the_checker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    genuine = Formulation.check

    def check(formulation: Formulation, plan: Plan) -> None:
        checked.append(plan.planner)
        genuine(formulation, plan)

    monkeypatch.setattr(Formulation, "check", check)
    asked = {"budget": "60%", "planner": "greedy", "iterations": 5, "return": ["plan", "explain"]}
    made = solve(json.dumps(chain(6)).encode(), parse_request(asked)).report
    rows = [row for row in made["explain"]["recomputed"] if row["if_kept"]]
    expected = {"baseline": ("as_given", 1), "reference": ("mirror", 1), "if_kept": ("greedy", 1 + len(rows))}[name]
    assert rows and checked.count(expected[0]) == expected[1]


@pytest.mark.parametrize("seed", range(1, 11))
def test_an_explanation_is_verified_without_the_addresses_of_the_plan(seed: int) -> None:
    for budget in ("65%", "75%", "85%"):
        asked = {"budget": budget, "planner": "greedy", "iterations": 3, "return": ["plan", "explain", "source"]}
        made = solve(json.dumps(layered(40, seed=seed)).encode(), parse_request(asked)).report
        assert saved_report.verify(made)["valid"] and "layout" not in made


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
