"""Plans with copies to the host: from the request to the report, its verification and its execution."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from app.cli.commands.explain import lines
from app.render.plan.trace import TRACKS, trace
from app.render.text import headline
from graph.builder.builder import Builder
from graph.ir import Body, Graph, Role, TensorType
from planner.errors import BadRequest, IllegalPlan
from planner.formulation import formulation
from planner.formulation.formulation import Formulation
from planner.pipeline.solve import Outcome, solve
from planner.problem.plan import Plan
from planner.report.regression import drift
from planner.report.saved_report import explain_with_graph, verify
from planner.request.plan_request import parse_request

MODEL = Path("tests/models/gpt.onnx")
DEVICE = {"like": "cpu-reference", "host_bandwidth": 5e8}


def planned(**fields: Any) -> Outcome:
    asked = {
        "budget": "70%",
        "dims": {"batch": 8, "sequence": 32},
        "counts": "activations",
        "offload": True,
        "device": DEVICE,
        "iterations": 100,
        "return": ["plan", "timeline", "layout", "source", "graph"],
        **fields,
    }
    return solve(MODEL.read_bytes(), parse_request(asked))


@pytest.mark.parametrize("link", ["duplex", "shared"])
def test_a_plan_with_copies_is_verified_and_runs_bit_equal_in_two_arenas(link: str) -> None:
    outcome = planned(device=DEVICE | {"host_link": link}, execute="yes")
    report = json.loads(json.dumps(outcome.report))
    plan, copies = report["plan"], report["copies"]
    assert plan["offloaded"] and plan["within_budget"] and plan["bound"]["covers"] == "compute"
    assert {f"{word}:{value}" for value in plan["offloaded"] for word in ("offload", "fetch")} <= {
        name for name, _ in plan["order"]
    }
    assert report["executed"]["status"] == "equal", report["executed"]
    assert report["executed"]["peak_bytes"] == plan["peak_bytes"]
    assert copies["compute_seconds"] + copies["waiting_seconds"] == pytest.approx(plan["seconds"])
    assert max(report["timeline"]["host_step_bytes"]) == copies["host_peak_bytes"] > 0
    assert set(report["timeline"]["engines"]["engine"]) == {"compute", "to_host", "from_host"}
    assert verify(report)["valid"]
    slices = {event["name"]: event for event in trace(report)["traceEvents"] if event["ph"] == "X"}
    assert TRACKS[slices[f"offload:{plan['offloaded'][0]}"]["tid"] - 1] == "to_host"
    assert max(event["ts"] + event["dur"] for event in slices.values()) <= plan["seconds"] * 1e6 + 0.01


def test_a_plan_with_copies_is_explained_and_not_replayed() -> None:
    report = json.loads(json.dumps(planned().report))
    explained, graph = explain_with_graph(report)
    held = {row["value"] for row in explained["holders"]}
    assert held and not any(value.startswith("host:") for value in held)
    assert "live at the peak after" in "\n".join(lines(report, explained, graph, 30))
    with pytest.raises(BadRequest, match="copies to the host"):
        drift(report, MODEL.read_bytes(), 0.02)


def test_copies_beat_recomputation_where_the_link_is_fast() -> None:
    plain = planned(offload=False).report["plan"]
    assert planned().report["plan"]["overhead"] < plain["overhead"]


def matmul_sin_chain(layers: int) -> bytes:
    """x ── MatMul w ── Sin ── … ── ReduceSum, all matrices 1024 × 1024."""
    names, square = ["x", *(f"w{i}" for i in range(layers))], {"shape": [1024, 1024], "dtype": "float32"}
    values: list[dict[str, Any]] = [{"name": name, "role": "parameter", **square} for name in names]
    nodes: list[dict[str, Any]] = []
    last = "x"
    for i in range(layers):
        values += [{"name": f"{kind}{i}", **square} for kind in "ms"]
        nodes.append({"name": f"matmul{i}", "op": "MatMul", "inputs": [last, f"w{i}"], "outputs": [f"m{i}"]})
        nodes.append({"name": f"sin{i}", "op": "Sin", "inputs": [f"m{i}"], "outputs": [f"s{i}"]})
        last = f"s{i}"
    values.append({"name": "loss", "shape": [], "dtype": "float32"})
    nodes.append(
        {"name": "sum", "op": "ReduceSum", "inputs": [last], "outputs": ["loss"], "attributes": {"keepdims": 0}}
    )
    values[0]["role"] = "input"
    document = {"format": "remat/1", "name": "chain", "values": values, "nodes": nodes, "outputs": ["loss"]}
    return json.dumps(document).encode()


@pytest.mark.parametrize(("bandwidth", "recomputations"), [(1e10, 5), (1e11, 0)])
def test_copies_replace_recomputations_of_a_plan_that_fits(bandwidth: float, recomputations: int) -> None:
    device = {"like": "a100-80gb", "host_bandwidth": bandwidth, "kernel_seconds": 0}
    asked = {"budget": "60%", "counts": "activations", "device": device, "iterations": 60, "loss": "loss"}
    plain, copied = (solve(matmul_sin_chain(8), parse_request(asked | {"offload": o})).report for o in (False, True))
    assert plain["plan"]["status"] == "proven" and len(plain["plan"]["recomputed"]) == 6
    assert copied["plan"]["within_budget"] and len(copied["plan"]["recomputed"]) == recomputations
    assert copied["copies"]["waiting_seconds"] == 0


def scans_in_a_row(scans: int, layers: int = 4, width: int = 64) -> Graph:
    """x ── Scan over w0 ── Scan over w1 ── … ── ReduceSum; a body is Tanh(x · w)."""
    b, square = Builder("scans in a row"), TensorType("float32", (width, width))
    last = b.value("x", square, Role.INPUT)
    for i in range(scans):
        weights = b.value(f"w{i}", TensorType("float32", (layers, width, width)), Role.PARAMETER)
        layer = Builder("layer")
        state, weight = (layer.value(name, square, Role.INPUT) for name in "xw")
        (product,) = layer.node("MatMul", [state, weight])
        (out,) = layer.node("Tanh", [product])
        body = Body(Graph("layer", tuple(layer.values), tuple(layer.nodes), (out,), (state, weight), layer.opset))
        (last,) = b.node(
            "Scan",
            [last, weights],
            outputs=[f"y{i}"],
            types=[square],
            attributes={"num_scan_inputs": 1},
            bodies=MappingProxyType({"body": body}),
        )
    (loss,) = b.node("ReduceSum", [last], outputs=["loss"], attributes={"keepdims": 0})
    return b.build([loss])


def test_copies_beside_planned_bodies_are_verified_and_run_bit_equal() -> None:
    """Values that only a body plan stores are copied as others are."""
    link = DEVICE | {"host_bandwidth": 1e11}
    asked = {"budget": "60%", "counts": "activations", "device": link, "iterations": 40, "offload": True}
    asked |= {"differentiate": True, "execute": "yes", "return": ["plan", "timeline", "layout", "source"]}
    copied = json.loads(json.dumps(solve(scans_in_a_row(4), parse_request(asked)).report))
    assert copied["plan"]["offloaded"] and any(row["alternative"] for row in copied["plan"]["choices"])
    assert copied["executed"]["status"] == "equal" and verify(copied)["valid"]
    assert copied["executed"]["peak_bytes"] == copied["plan"]["peak_bytes"]
    assert any("/kept/" in value for value in copied["plan"]["offloaded"])


def test_host_memory_limits_the_copies() -> None:
    copies = planned(host_memory=2 * 65536).report["copies"]
    assert copies["host_peak_bytes"] <= 2 * 65536


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_plan_whose_host_arena_exceeds_the_host_memory_is_packed_or_over_budget(
    is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_host_addresses, sweeps = Formulation.with_host_addresses, formulation.place_by_sweeps
    limit = 12 * 65536

    def wasteful(*given: Any) -> tuple[Any, int]:
        return sweeps(*given)[0], limit + 64

    def placed(planned: Formulation, plan: Plan) -> Plan:
        with monkeypatch.context() as patch:
            patch.setattr(formulation, "place_by_sweeps", wasteful)
            if not is_packed:
                patch.setattr(formulation, "place_within", lambda *given: None)
            return with_host_addresses(planned, plan)

    monkeypatch.setattr(Formulation, "with_host_addresses", placed)
    device = DEVICE | {"host_bandwidth": 1e11}
    outcome = planned(budget="26%", host_memory=limit, device=device)  # no plan without copies fits
    report = json.loads(json.dumps(outcome.report))
    plan, copies, exceeds = report["plan"], report["copies"], not is_packed
    assert plan["offloaded"] and plan["needed_bytes"] <= plan["budget_bytes"]
    assert (copies["host_arena_bytes"] > limit, plan["within_budget"], outcome.exit_code) == (
        exceeds,
        is_packed,
        exceeds,
    )
    assert any("copies need 64 bytes more" in text for text in report["warnings"]) == exceeds
    assert ("not the host memory" in headline(report)) == exceeds
    assert verify(report)["valid"] and (plan["smallest_budget_bytes"] is None)


def test_an_edited_report_is_refused() -> None:
    report = json.loads(json.dumps(planned().report))
    order = report["plan"]["order"]
    place = next(k for k, (name, _) in enumerate(order) if name.startswith("fetch:"))
    del order[place]
    with pytest.raises(IllegalPlan):
        verify(report)


def test_where_copies_cannot_be_had_the_plan_has_none_and_says_so() -> None:
    for fields, why in (({"runtime": "ort"}, "runtime ort"), ({"budget": None, "max_overhead": "10%"}, "budget")):
        report = planned(iterations=10, **fields).report
        assert "copies" not in report and any(why in text for text in report["warnings"])


def test_a_link_that_no_part_of_the_request_uses_is_reported() -> None:
    for fields, is_unused in (({"offload": False}, True), ({}, False), ({"offload": False, "advise": True}, False)):
        warnings = planned(iterations=1, **fields).report["warnings"]
        assert any("device.host_bandwidth: not used" in text for text in warnings) == is_unused


def test_a_planner_that_does_not_search_copies_is_reported() -> None:
    for fields, is_reported in (
        ({"planner": "greedy"}, True),
        ({}, False),
        ({"planner": "greedy", "offload": False}, False),
    ):
        warnings = planned(iterations=5, **fields).report["warnings"]
        assert any("planner greedy: used for the plan in line" in text for text in warnings) == is_reported


def test_too_little_host_memory_is_refused_with_the_bytes_that_a_copy_needs() -> None:
    with pytest.raises(BadRequest, match="host_memory: found 10 bytes, expected at least 1,024") as refused:
        planned(host_memory=10)
    assert "give more host memory, or leave out offload" in str(refused.value)


@pytest.mark.parametrize("device", ["mi250x", "cpu-reference", {"bandwidth": 1e12, "flops": 1e13}])
def test_a_device_without_a_known_link_is_refused_before_the_model_is_read(device: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_request({"offload": True, "device": device})
    (finding,) = refused.value.findings
    assert (finding.code, finding.path) == ("no_host_link", "device.host_bandwidth")
    assert "host_bandwidth" in finding.remedy and "leave out offload" in finding.remedy
    assert parse_request({"device": device}).device == device
    assert parse_request({"offload": True, "device": device, "runtime": "ort"}).offload  # runs no copies, says so
