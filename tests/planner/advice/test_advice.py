"""Advice: worth of recomputations and of techniques; every figure is that of a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bench.generators import unet
from graph.builder.builder import Builder
from graph.ir import Graph
from planner import layout
from planner.advice import advice as advised
from planner.advice.advice import recompute_worth
from planner.advice.techniques import TECHNIQUE_PART, TECHNIQUES
from planner.formulation import formulation
from planner.formulation import training_graph as source
from planner.formulation.formulate import formulate
from planner.formulation.training_graph import load_model, training_graph
from planner.layout import place
from planner.pipeline import solve as pipeline
from planner.problem import liveness
from planner.request.budget import Budget
from planner.request.plan_request import Request, parse_request
from tests.app.conftest import chain

pytestmark = pytest.mark.usefixtures("quick_bounds")

DECODER = (Path(__file__).parents[2] / "models" / "decoder.onnx").read_bytes()
FAST = {"like": "a100-80gb", "host_bandwidth": 2e12, "kernel_seconds": 0}
SHAPES = {"batch": 8, "dims": {"sequence": 8}}


BATCH_STATISTICS = {
    "format": "remat/1",
    "values": [
        {"name": "x", "shape": [8, 3, 4], "dtype": "float32", "role": "input"},
        *({"name": n, "shape": [3], "dtype": "float32", "role": "parameter"} for n in ("scale", "bias", "mean", "var")),
    ],
    "nodes": [
        {"name": "norm", "op": "BatchNormalization", "inputs": ["x", "scale", "bias", "mean", "var"], "outputs": ["y"]},
        {"name": "act", "op": "Sigmoid", "inputs": ["y"], "outputs": ["z"]},
        {"name": "loss", "op": "ReduceMean", "inputs": ["z"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
    ],
    "outputs": ["loss"],
}


def advice(**fields: Any) -> dict[str, Any]:
    asked = {"budget": "80%", "iterations": 20, "layout": "none", "advise": True, **SHAPES, **fields}
    advice: dict[str, Any] = pipeline.solve(DECODER, parse_request(asked)).report["advice"]
    return advice


def lever(found: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in found["levers"] if row["lever"] == name]
    return row


def left_out(found: dict[str, Any], name: str) -> str:
    (row,) = [row for row in found["left_out"] if row["lever"] == name]
    return str(row["why"])


def test_without_its_repeats_a_node_costs_bytes_and_saves_time():
    request = Request(budget=Budget(bytes=0), iterations=20, layout="none")
    model = json.dumps(unet(3)).encode()
    question = formulate(training_graph(model, load_model(model, request), request)[0], request)
    outcome = pipeline.solve(model, request)
    plan, problem = outcome.plan, question.lowered.problem
    rows = recompute_worth(question, plan)
    assert rows
    for row in rows:
        (task,) = [t for t in range(problem.tasks) if question.lowered.name_of_task(t) == row["node"]]
        first = int(np.flatnonzero(plan.order == task)[0])
        alone = np.array([t for step, t in enumerate(plan.order.tolist()) if t != task or step == first])
        kept = row["if_kept"]
        assert kept["seconds"] <= liveness.cost(problem, alone) * problem.tick < plan.score.cost * problem.tick
        if kept["seconds"] == liveness.cost(problem, alone) * problem.tick:
            assert kept["peak_bytes"] == liveness.peak(problem, alone)
    assert max(row["if_kept"]["peak_bytes"] for row in rows) > plan.score.peak_bytes


def test_micro_batches_are_planned_and_can_be_requested():
    row = lever(advice(), "micro_batches")
    assert row["parts"] == 2
    assert row["request"]["inputs"]["ids"] == [4, 8] and row["request"]["recipe"] == {"accumulate": 2}
    asked = {**row["request"], "iterations": int(20 * TECHNIQUE_PART), "layout": "none"}
    whole = pipeline.solve(DECODER, parse_request({"budget": "80%", "iterations": 20, "layout": "none", **SHAPES}))
    budget = whole.report["plan"]["budget_bytes"]
    alone = pipeline.solve(DECODER, parse_request({**asked, "budget": budget})).report
    assert alone["plan"]["peak_bytes"] == row["peak_bytes"] <= budget
    assert row["fits"] and row["seconds"] == pytest.approx(2 * alone["plan"]["seconds"])
    assert row["overhead"] == pytest.approx(row["seconds"] / whole.report["baseline"]["seconds"] - 1)


def test_what_fits_is_decided_by_the_memory_that_addresses_need(monkeypatch: pytest.MonkeyPatch):
    waste = 1 << 20

    def wasteful(find: Callable[..., tuple[np.ndarray, int]], *given: Any) -> tuple[np.ndarray, int]:
        offsets, arena_bytes = find(*given)
        return offsets, arena_bytes + waste

    monkeypatch.setattr(formulation, "place", partial(wasteful, place))
    monkeypatch.setattr(formulation, "place_by_sweeps", partial(wasteful, layout.place_by_sweeps))
    monkeypatch.setattr(formulation, "place_again", lambda *given: None)
    asked = {"budget": "80%", "iterations": 20, "advise": True, "return": ["plan", "explain"], **SHAPES}
    report = pipeline.solve(DECODER, parse_request(asked)).report
    row, budget = lever(report["advice"], "micro_batches"), report["plan"]["budget_bytes"]
    assert row["peak_bytes"] <= budget < row["needed_bytes"] and not row["fits"]
    assert not any(kept["if_kept"]["fits"] for kept in report["explain"]["recomputed"])


def test_addresses_of_plans_without_a_recomputation_are_found_by_few_repairs(monkeypatch: pytest.MonkeyPatch):
    model = json.dumps(unet(3)).encode()
    tight, loose = (Request(budget=Budget(fraction=share), iterations=20) for share in (0.6, 0.99))
    plan = pipeline.solve(model, tight).plan
    roomy = formulate(training_graph(model, load_model(model, loose), loose)[0], loose)
    tried = []

    def place_again(*given: Any) -> tuple[np.ndarray, int] | None:
        tried.append(given)
        return layout.place_again(*given)

    def wasteful(*given: Any) -> tuple[np.ndarray, int]:
        offsets, arena_bytes = layout.place_by_sweeps(*given)
        return np.where(offsets < 0, offsets, offsets + roomy.budget_bytes), arena_bytes + roomy.budget_bytes

    monkeypatch.setattr(formulation, "place_again", place_again)
    monkeypatch.setattr(formulation, "place_by_sweeps", wasteful)
    kept = [row["if_kept"] for row in recompute_worth(roomy, plan)]
    within = [row for row in kept if row["peak_bytes"] <= roomy.budget_bytes]
    assert within and len(tried) == len(within) and all(row["fits"] for row in within)
    monkeypatch.setattr(formulation, "place_again", lambda *given: None)
    assert not any(row["if_kept"]["fits"] for row in recompute_worth(roomy, plan))
    monkeypatch.setattr(formulation, "place_again", place_again)
    monkeypatch.setattr(advised, "MAX_REPAIRED", 2 * len(plan.order) ** 2)
    fits = [row["if_kept"]["fits"] for row in recompute_worth(roomy, plan)]
    assert fits.count(True) == 2 and fits.count(None) == len(within) - 2 > 0


def test_the_update_runs_once_for_all_micro_batches():
    row = lever(advice(recipe={"optimizer": "adam"}), "micro_batches")
    asked = {**row["request"], "iterations": int(20 * TECHNIQUE_PART), "layout": "none", "return": ["plan", "source"]}
    report = pipeline.solve(DECODER, parse_request({**asked, "budget": row["peak_bytes"]})).report
    assert row["seconds"] < 2 * report["plan"]["seconds"]


def test_updates_as_soon_as_ready_hold_fewer_gradients():
    found = advice(recipe={"optimizer": "adam"}, budget=0)
    row = lever(found, "update_as_ready")
    assert row["request"]["recipe"]["update"] == "as_ready"
    done = advice(recipe={"optimizer": "adam", "update": "as_ready"})
    assert left_out(done, "update_as_ready") == "already applied"
    clipped = advice(recipe={"optimizer": "adam", "clip": 1.0})
    assert "clipping" in left_out(clipped, "update_as_ready")


@pytest.mark.parametrize(
    ("name", "field"), [("chunked_loss", {"loss_chunks": 4}), ("fused_attention", {"fuse_attention": True})]
)
def test_a_rewritten_graph_is_planned_and_can_be_requested(name: str, field: dict[str, Any]):
    row = lever(advice(), name)
    assert row["request"] == field and row["executed"]["status"] == "not executed"
    whole = pipeline.solve(DECODER, parse_request({"budget": "80%", "iterations": 20, "layout": "none", **SHAPES}))
    budget = whole.report["plan"]["budget_bytes"]
    asked = {
        **field,
        **SHAPES,
        "iterations": int(20 * TECHNIQUE_PART),
        "execute": "yes",
        "budget": budget,
        "layout": "none",
    }
    alone = pipeline.solve(DECODER, parse_request(asked)).report
    assert alone["executed"]["status"] == "equal"
    assert "against the unchanged step: within 0.0001" in alone["executed"]["how"]
    assert alone["plan"]["peak_bytes"] == row["peak_bytes"] <= budget and row["fits"]
    assert row["seconds"] == pytest.approx(alone["plan"]["seconds"])


def test_techniques_that_change_the_graph_are_executed_against_the_unchanged_step():
    found = advice(execute="auto", recipe={"optimizer": "adam"})
    for name in ("micro_batches", "chunked_loss", "fused_attention"):
        ran = lever(found, name)["executed"]
        assert ran["status"] == "equal" and "largest difference" in ran["how"], ran
    assert "another order" in lever(found, "update_as_ready")["executed"]["why"]


def test_a_rewrite_that_computes_something_else_is_our_defect(monkeypatch: pytest.MonkeyPatch):
    def doubled(graph: Graph, chunks: int) -> Graph:
        b = Builder.from_graph(graph)
        loss = next(v for v, value in enumerate(b.values) if value.name == "loss")
        b.nodes = [
            replace(node, outputs=(b.value("half", b.values[loss].type),)) if loss in node.outputs else node
            for node in b.nodes
        ]
        b.node("Add", [len(b.values) - 1, len(b.values) - 1], name="twice", outputs=[loss])
        return b.build(graph.outputs) if chunks > 1 else graph

    monkeypatch.setattr(source, "with_chunked_loss", doubled)
    asked = {"budget": "90%", "iterations": 5, "execute": "yes", "loss": "loss", "loss_chunks": 2, **SHAPES}
    outcome = pipeline.solve(DECODER, parse_request(asked))
    assert outcome.report["executed"]["status"] == "different" and outcome.exit_code == 4


def test_offload_lowers_a_peak_that_recomputation_cannot():
    #   x ── a ── b ── c ── loss ── way back, and nothing may run twice
    document = json.loads(json.dumps(chain(6)))
    for node in document["nodes"]:
        node["recompute"] = "never"
    asked = {"budget": "80%", "iterations": 200, "advise": True, "layout": "none"}
    model = json.dumps(document).encode()
    report = pipeline.solve(model, parse_request({**asked, "device": FAST})).report
    row = lever(report["advice"], "offload")
    assert row["fits"] and row["peak_bytes"] < report["plan"]["peak_bytes"]
    assert row["offloaded"] and set(row["offloaded"]) <= {value["name"] for value in document["values"]}
    assert row["request"] == {"offload": True} and row["executed"]["status"] == "not executed"
    applied = pipeline.solve(model, parse_request({**asked, **row["request"], "device": FAST})).report
    assert applied["plan"]["seconds"] <= row["seconds"] and applied["plan"]["within_budget"]
    assert left_out(applied["advice"], "offload") == "already applied"


def test_micro_batches_of_a_model_with_batch_statistics_are_reported_as_different():
    #   x ── BatchNormalization ── ReduceMean: statistics of a part are others than those of the whole
    found = pipeline.solve(
        json.dumps(BATCH_STATISTICS).encode(),
        parse_request({"loss": "loss", "advise": True, "execute": "yes", "iterations": 5, "budget": 0}),
    ).report["advice"]
    assert lever(found, "micro_batches")["executed"]["status"] == "different"


def test_a_technique_that_does_not_apply_states_why():
    asked = {"budget": "80%", "iterations": 200, "advise": True, "layout": "none", "device": FAST}
    found = pipeline.solve(json.dumps(chain()).encode(), parse_request(asked)).report["advice"]
    assert [row["lever"] for row in found["levers"]] == ["offload"]
    assert [row["lever"] for row in found["left_out"]] == list(TECHNIQUES)
    odd = advice(batch=7)
    assert "divided" in left_out(odd, "micro_batches")
    assert "tpu-v4" in left_out(advice(device="tpu-v4"), "offload")
    assert "budget" in left_out(advice(budget=None, max_overhead="10%"), "offload")


def test_the_floor_without_its_node_is_lower():
    binding = advice()["binding"]
    assert binding["node"] and binding["next_node"] != binding["node"]
    assert 0 < binding["next_bytes"] <= binding["bytes"]
