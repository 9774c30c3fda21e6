"""One plan for a decoder at several lengths, end to end: checked, executed and reported under each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph.errors import BadGraph
from graph.formats.readers import load
from planner.errors import BadRequest
from planner.formulation.formulate import formulate
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.report.regression import drift
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request
from planner.verify.checker import check
from tests.planner.pipeline.fits.test_largest_fit import layers, seconds_of_layouts

pytestmark = pytest.mark.usefixtures("bounds")

DECODER = (Path(__file__).parents[2] / "models" / "decoder.onnx").read_bytes()
LENGTHS = [{"dims": {"sequence": 16}}, {"dims": {"sequence": 48}}]


def solved(model: bytes, shapes: list[dict[str, Any]], **fields: Any) -> Outcome:
    return solve(model, parse_request({"iterations": 20, "shapes": shapes, **fields}))


def test_a_decoder_at_two_lengths_has_one_plan_that_is_run_at_both():
    #   a mask of 16 × 16 is computed ahead, one of 48 × 48 is a node: it is a node in both
    outcome = solved(DECODER, LENGTHS, batch=2, budget="70%", execute="yes")
    report = outcome.report
    section = report["shapes"]
    rows = section["sets"]
    assert [row["inputs"]["ids"] for row in rows] == [[2, 16], [2, 48]]
    assert section["within"] and section["worst"] == 1 and report["plan"]["status"] == "found"
    highest = max(row["baseline"]["needed_bytes"] for row in rows)
    assert {row["budget_bytes"] for row in rows} == {-(-highest * 7 // 10)}
    assert all(row["peak_bytes"] <= row["budget_bytes"] for row in rows)
    assert report["plan"]["peak_bytes"] == section["peak_bytes"] == rows[1]["peak_bytes"]
    assert section["overhead"] == max(row["overhead"] for row in rows) >= section["bound_overhead"]
    assert [row["executed"]["status"] for row in rows] == ["equal", "equal"]
    assert rows[0]["model"]["nodes"] == rows[1]["model"]["nodes"]
    assert report["plan"]["recomputed"]


@pytest.mark.heavy
def test_a_saved_plan_for_several_shapes_is_verified_and_followed():
    outcome = solved(DECODER, LENGTHS, batch=2, budget="70%", **{"return": ["plan", "source", "layout"]})
    report = json.loads(json.dumps(outcome.report))
    assert saved_report.verify(report)["valid"]
    saved_report.certificate(report)
    document = drift(report, DECODER, 0.0).document
    assert not document["drifted"] and document["replay"]["runs"]


@pytest.mark.heavy
def test_the_plan_of_each_set_can_be_had_from_the_order_alone():
    shapes = [{"batch": 24, "dims": {"sequence": 8}}, {"batch": 2, "dims": {"sequence": 64}}]
    request = parse_request({"iterations": 20, "shapes": shapes, "budget": "80%"})
    report = solve(DECODER, request).report
    rows = report["shapes"]["sets"]
    names = set().union(*({n.name for n in load_model(DECODER, request.under(one)).nodes} for one in request.shapes))
    for one, row in zip(request.shapes, rows, strict=True):
        alone = request.under(one)
        source, _ = training_graph(DECODER, load_model(DECODER, alone, None, names), alone)
        question = formulate(source, parse_request({"budget": row["budget_bytes"]}))
        order = np.array(saved_report.parse_order(question, row["order"] or report["plan"]["order"]), np.int64)
        plan = question.evaluated(order, "replayed")
        check(question.lowered.problem, question.goal, plan)
        assert plan.score.bytes_over_budget == 0 and plan.score.peak_bytes == row["peak_bytes"]


@pytest.mark.parametrize(
    ("fields", "within"),
    [
        ({"budget": 0}, True),
        ({"max_overhead": "30%"}, True),
        ({"fits": "1MiB"}, True),
        ({"budget": "1KiB"}, False),
        ({"budget": "80%", "fraction_of": "reducible"}, True),
        ({"budget": "90%", "counts": "activations"}, True),
    ],
)
def test_every_goal_holds_in_every_set(fields: dict[str, Any], within: bool):
    outcome = solved(layers(), [{"batch": 4}, {"batch": 64}, {"inputs": {"x": "16x16"}}], **fields)
    section = outcome.report["shapes"]
    rows = section["sets"]
    assert section["within"] == within and section["worst"] == 1
    assert outcome.exit_code == (0 if within else 1)
    assert outcome.report["plan"]["peak_bytes"] == max(row["peak_bytes"] for row in rows)
    assert len({row["budget_bytes"] for row in rows}) == 1
    if "max_overhead" in fields:
        assert section["overhead"] <= 0.3


def test_the_addresses_of_all_sets_share_the_time(monkeypatch: pytest.MonkeyPatch):
    given = seconds_of_layouts(monkeypatch)
    shapes = [{"batch": 4}, {"batch": 64}]
    solve(layers(), parse_request({"shapes": shapes, "budget": "100%", "planner": "as_given", "search_seconds": 40}))
    assert len(given) == 2 and given[0] < 20 < given[1] < 40


def test_the_same_iterations_give_the_same_report():
    reports = [solved(layers(), [{"batch": 4}, {"batch": 64}], budget="70%").report for _ in range(2)]
    for report in reports:
        del report["elapsed"]
    assert reports[0] == reports[1]


def test_sets_that_make_other_graphs_are_refused():
    document = {
        "format": "remat/1",
        "values": [
            {"name": "x", "shape": ["N", 4], "dtype": "float32", "role": "input"},
            {"name": "w", "shape": [1, 4], "dtype": "float32", "role": "parameter"},
        ],
        "nodes": [
            {"name": "add", "op": "Add", "inputs": ["x", "w"], "outputs": ["y"]},
            {"name": "mean", "op": "ReduceMean", "inputs": ["y"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
        ],
        "outputs": ["loss"],
    }
    with pytest.raises(BadRequest, match=r"shapes\[1\].*plan that set by itself"):  # with N = 8 w is added to each row
        solved(json.dumps(document).encode(), [{"dims": {"N": 8}}, {"dims": {"N": 1}}], loss="loss")


def test_a_graph_that_has_its_shapes_is_refused():
    with pytest.raises(BadRequest, match="give the bytes"):
        solve(load(layers(lead=4)), parse_request({"shapes": [{"batch": 4}]}))


@pytest.mark.parametrize(
    "shapes", [{}, [4], [{}], [{"length": 4}], [{"batch": 0}], [{"inputs": {"x": "4x-1"}}], [{"batch": 1}] * 17]
)
def test_wrong_sets_are_named(shapes: object):
    with pytest.raises(BadRequest) as caught:
        parse_request({"shapes": shapes})
    assert caught.value.findings[0].path.startswith("shapes")


def test_a_fault_names_its_set_of_shapes():
    with pytest.raises(BadGraph) as own:
        solved(DECODER, [LENGTHS[0], {"inputs": {"zz": [1, 2]}, **LENGTHS[1]}], batch=2, budget="70%")
    assert [finding.path for finding in own.value.findings] == ["shapes[1].inputs.zz"]
    with pytest.raises(BadGraph) as of_all:
        solved(DECODER, LENGTHS, inputs={"zz": [1, 2]}, batch=2, budget="70%")
    assert [finding.path for finding in of_all.value.findings] == ["inputs.zz"]
    with pytest.raises(BadGraph) as longer:
        solved(DECODER, [{"inputs": {"ids": [2, 16]}, **LENGTHS[0]}, LENGTHS[1]], inputs={"ids_2": [1, 2]}, batch=2)
    assert [finding.path for finding in longer.value.findings] == ["inputs.ids_2"]


def test_fields_about_one_model_are_refused_with_several_shapes():
    for name in ("advise", "advise_checkpoints"):
        with pytest.raises(BadRequest, match="several sets of shapes"):
            parse_request({"shapes": [{"batch": 4}], name: True})
    with pytest.raises(BadRequest, match="no such field in a curve"):
        parse_curve({"budgets": ["50%"], "shapes": [{"batch": 4}]})
    with pytest.raises(BadRequest, match="no such field"):
        parse_fit({"budget": "1GiB", "shapes": [{"batch": 4}]})
