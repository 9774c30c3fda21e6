"""Regression check: a saved plan replayed on the current model; drift, growth by value, and blame."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from graph.formats.native import writer
from planner.errors import BadRequest, IllegalPlan
from planner.pipeline.solve import solve
from planner.report.regression import drift
from planner.request.plan_request import parse_request
from tests.app.conftest import chain
from tests.strategies import random_graph

Document = dict[str, Any]


def report(document: Document | bytes, **fields: Any) -> Document:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    request = parse_request(
        {"budget": "70%", "iterations": 30, "planner": "greedy", "return": ["plan", "source"], **fields}
    )
    found: Document = json.loads(json.dumps(solve(data, request).report))
    return found


def checked(plan: Document, document: Document, most: float = 0.02) -> Document:
    return drift(plan, json.dumps(document).encode(), most).document


def growth(found: Document) -> dict[str, float | None]:
    return {row["what"]: row["drift"] for row in found["figures"]}


def test_a_model_that_did_not_change_has_not_drifted_at_all() -> None:
    plan = report(chain(6))
    assert plan["plan"]["recomputed"]
    found = checked(plan, chain(6), 0.0)
    assert found["within"] and set(growth(found).values()) == {0.0}
    assert found["replay"] == {"runs": True, "why": "", "came": [], "went": []}
    assert found["figures"][2]["was"] == plan["plan"]["peak_bytes"]
    assert found["warnings"] == [] and found["blame"] == []


@pytest.mark.parametrize("seed", range(20))
def test_random_models_do_not_drift_from_themselves(seed: int) -> None:
    chance = random.Random(seed)
    data = writer.dump(random_graph(chance, 30))
    goal = chance.choice([{"budget": "60%"}, {"budget": 0}, {"budget": None, "max_overhead": 0.5}])
    plan = report(data, **goal, counts=chance.choice(["everything", "activations"]))
    found = drift(plan, data, 0.0).document
    assert found["replay"]["runs"] and set(growth(found).values()) == {0.0}
    over = plan["plan"]["status"] == "over_budget"
    assert (found["within"], found["over_budget"]) == (not over, over)


def test_a_value_that_grew_is_blamed_on_its_maker() -> None:
    plan, now = report(chain(6)), chain(6)
    next(value for value in now["values"] if value["name"] == "h2")["shape"] = [128, 64]
    found = checked(plan, now)
    assert found["blame"] == ["f2"]
    assert growth(found)["baseline.peak_bytes"] == pytest.approx(1 / 8)
    assert found["over_budget"] and not found["within"]
    (row,) = found["holds_more"]["baseline"]
    assert (row["value"], row["bytes"], row["why"]) == ("h2", 64 * 64 * 4, "grew")


def test_drift_within_the_limit_passes_and_shrinking_is_no_drift() -> None:
    plan, now = report(chain(6), budget="90%"), chain(6)
    now["values"][3]["shape"] = [66, 64]
    assert checked(plan, now, 0.05)["within"]
    assert not checked(plan, now, 0.001)["within"]
    now["values"][3]["shape"] = [16, 64]
    found = checked(plan, now, 0.0)
    assert found["within"] and (growth(found)["baseline.peak_bytes"] or 0) < 0


def test_a_plan_that_stays_below_the_limit_may_still_pass_its_budget() -> None:
    plan, now = report(chain(6), budget=81920), chain(6)
    assert plan["plan"]["peak_bytes"] == 81920
    now["values"][3]["shape"] = [65, 64]
    found = checked(plan, now, 0.5)
    assert (found["drifted"], found["over_budget"], found["within"]) == ([], True, False)
    assert found["blame"] == ["f2"]


def with_node(document: Document, after: str, reader: str) -> Document:
    """The chain with one more op between a node and its reader, which makes the value `more`."""
    names = [node["name"] for node in document["nodes"]]
    source = document["nodes"][names.index(after)]["outputs"][0]
    document["values"].append({"name": "more", "shape": [64, 64], "dtype": "float32"})
    inputs = document["nodes"][names.index(reader)]["inputs"]
    inputs[inputs.index(source)] = "more"
    node = {"name": "drop", "op": "own::Drop", "inputs": [source], "outputs": ["more"]}
    document["nodes"].insert(names.index(after) + 1, node)
    return document


def test_a_node_that_came_runs_behind_the_one_it_stands_behind() -> None:
    plan = report(chain(6))
    found = drift(plan, json.dumps(with_node(chain(6), "f2", "f3")).encode(), 0.02)
    assert found.document["replay"] == {"runs": True, "why": "", "came": ["drop"], "went": []}
    assert found.document["blame"] == ["drop"]
    assert found.after.plan is not None
    lowered = found.after.formulation.lowered
    names = [lowered.name_of_task(task) for task in found.after.plan.order.tolist()]
    assert names.index("drop") == names.index("f2") + 1
    assert [name for name in names if name != "drop"] == [name for name, _ in plan["plan"]["order"]]


def test_a_node_that_went_is_left_out() -> None:
    plan = report(with_node(chain(6), "f2", "f3"), budget="100%")
    found = checked(plan, chain(6))
    assert found["replay"]["went"] == ["drop"] and found["within"]


def test_a_first_run_follows_its_new_inputs_without_an_extra_run() -> None:
    #   b reads a; the plan runs c before a, and now b and c read each other's neighbours:  c ── now reads ── a
    def document(reads: str) -> Document:
        values = [{"name": name, "bytes": 100} for name in ("a", "b", "c")]
        nodes = [
            {"name": "A", "op": "own::A", "inputs": [], "outputs": ["a"], "cost": {"seconds": 1}},
            {"name": "B", "op": "own::B", "inputs": ["a"], "outputs": ["b"], "cost": {"seconds": 1}},
            {"name": "C", "op": "own::C", "inputs": [reads] if reads else [], "outputs": ["c"], "cost": {"seconds": 1}},
        ]
        return {"format": "remat/1", "values": values, "nodes": nodes, "outputs": ["b", "c"]}

    plan = report(document(""), planner="as_given", budget="100%")
    plan["plan"]["order"] = [["C", 0], ["A", 0], ["B", 0]]
    found = drift(plan, json.dumps(document("a")).encode(), 10.0)
    assert found.after.plan is not None and found.after.plan.order.tolist() == [0, 2, 1]
    assert growth(found.document)["plan.seconds"] == 0.0


def test_a_plan_that_cannot_run_any_more_says_why() -> None:
    plan, now = report(chain(6)), chain(6)
    for node in now["nodes"]:
        node["recompute"] = "never"
    found = checked(plan, now)
    assert not found["within"] and not found["replay"]["runs"]
    assert "may run once only" in found["replay"]["why"]
    assert growth(found)["plan.peak_bytes"] is None and growth(found)["baseline.peak_bytes"] == 0.0


def test_a_slower_node_is_blamed_for_the_time() -> None:
    plan, now = report(chain(6)), chain(6)
    now["nodes"][4]["cost"] = {"seconds": 1.0}
    found = checked(plan, now)
    assert found["drifted"] == ["baseline.seconds", "plan.seconds"] and found["blame"] == ["f4"]


def test_the_model_is_read_with_the_plans_own_request() -> None:
    model = {
        "format": "remat/1",
        "opset": {"": 21},
        "values": [
            {"name": "x", "shape": ["N", 16], "dtype": "float32", "role": "input"},
            {"name": "w", "shape": [16, 4], "dtype": "float32", "role": "parameter"},
        ],
        "nodes": [
            {"name": "fc", "op": "MatMul", "inputs": ["x", "w"], "outputs": ["h"]},
            {"name": "mean", "op": "ReduceMean", "inputs": ["h"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
        ],
        "outputs": ["loss"],
    }
    plan = report(model, dims={"N": 32}, loss="loss", fraction_of="reducible")
    found = checked(plan, model, 0.0)
    assert found["within"] and found["was"]["hash"] == found["now"]["hash"]
    model["values"][1]["shape"] = [16, 8]  # type: ignore[index]
    assert "w" in checked(plan, model)["blame"]


def test_figures_of_another_version_are_warned_of() -> None:
    plan = report(chain(6))
    plan["baseline"]["seconds"] *= 2
    (said,) = checked(plan, chain(6))["warnings"]
    assert "baseline.seconds: the report says" in said


def without(name: str) -> Callable[[Document], object]:
    return lambda plan: plan.pop(name)


BAD: list[tuple[Callable[[Document], object], type[Exception]]] = [
    (without("source"), BadRequest),
    (without("request"), BadRequest),
    (without("plan"), BadRequest),
    (lambda plan: plan["plan"].pop("order"), BadRequest),
    (lambda plan: plan["plan"]["order"].reverse(), IllegalPlan),
    (lambda plan: plan["plan"]["order"].pop(), IllegalPlan),
    (lambda plan: plan["plan"]["order"].append(["nobody", 0]), IllegalPlan),
    (lambda plan: plan["request"].update(wishes=1), BadRequest),
    (lambda plan: plan["request"].update(keep=["nothing"]), BadRequest),
]


@pytest.mark.parametrize(("damage", "error"), BAD, ids=range(len(BAD)))
def test_a_document_that_is_no_plan_is_refused(damage: Callable[[Document], object], error: type[Exception]) -> None:
    plan = report(chain(6))
    damage(plan)
    with pytest.raises(error):
        checked(plan, chain(6))
