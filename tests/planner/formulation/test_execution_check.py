"""Execution check: the report has the measured peak of the rewritten graph; null for a smaller batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graph.autodiff.gradients.registry import GRADIENT_RULES, ForwardNode, GradientRule, InputGradients
from graph.builder.emit import Emit
from graph.ir import Val
from planner.formulation import execution_check
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

LAYERS = 6


def chain(batch: int | str, layers: int = LAYERS) -> bytes:
    shape: list[int | str] = [batch, 64]
    values: list[dict[str, Any]] = [{"name": "h0", "shape": shape, "dtype": "float32", "role": "input"}]
    values += [{"name": f"h{k}", "shape": shape, "dtype": "float32"} for k in range(1, layers + 1)]
    nodes = [{"name": f"n{k}", "op": "Tanh", "inputs": [f"h{k}"], "outputs": [f"h{k + 1}"]} for k in range(layers)]
    document = {"format": "remat/1", "name": "chain", "values": values, "nodes": nodes, "outputs": [f"h{layers}"]}
    return json.dumps(document).encode()


def report(batch: int | str, /, **fields: Any) -> dict[str, Any]:
    asked = {"budget": "90%", "planner": "greedy", "iterations": 20, "execute": "auto", **fields}
    asked["differentiate"] = {"of": [f"h{LAYERS}"], "with_respect_to": ["h0"]}
    return solve(chain(batch), parse_request(asked)).report


@pytest.mark.parametrize("counts", ["everything", "activations"])
def test_the_measured_peak_equals_the_planned_peak(counts: str) -> None:
    found = report(4, counts=counts)
    assert found["executed"]["status"] == "equal", found["executed"]
    assert found["executed"]["peak_bytes"] == found["plan"]["peak_bytes"] > 0


def test_a_smaller_run_says_nothing_of_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_check, "MAX_RUN_BYTES", 1 << 20)
    ran = report(2**12)["executed"]
    assert "batch cut to" in ran["how"] and ran["peak_bytes"] is None


def test_a_named_batch_is_cut_like_a_given_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_check, "MAX_RUN_BYTES", 1 << 20)
    by_name, by_batch = report("batch", dims={"batch": 2**12}), report("batch", batch=2**12)
    assert "batch cut to" in by_name["executed"]["how"], by_name["executed"]
    assert by_name["executed"] == by_batch["executed"]


def test_without_a_run_there_is_no_figure() -> None:
    assert report(4, execute="no")["executed"]["peak_bytes"] is None


def test_gradients_are_compared_with_finite_differences() -> None:
    found = report(4)["executed"]
    assert found["gradients"]["status"] == "agree" and found["gradients"]["directions"] == 2
    assert found["gradients"]["error"] < 1e-4 < found["gradients"]["tolerance"]
    assert found["compared"].startswith(
        "rewritten = training graph, bit for bit; gradients beside finite differences on 2 directions (relative error "
    )
    smaller = report(2**12, execute="no")["executed"]
    assert (smaller["compared"], smaller["gradients"]) == ("", None)


def test_a_wrong_gradient_is_a_warning_and_leaves_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = GRADIENT_RULES["Tanh"].rule

    def halved(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
        return rule(emit, node, emit.mul(dz, emit.scalar_like(0.5, dz)))

    monkeypatch.setitem(GRADIENT_RULES, "Tanh", GradientRule(halved, zeros=False))
    found = report(4)
    assert found["executed"]["status"] == "equal" and found["executed"]["gradients"]["status"] == "different"
    assert any("most for 'h0'" in warning for warning in found["warnings"])


def test_gradients_that_came_with_the_model_are_not_compared() -> None:
    found = solve(chain(4), parse_request({"budget": "90%", "iterations": 20, "execute": "auto"})).report["executed"]
    assert found["status"] == "equal" and found["gradients"]["status"] == "not compared"
    assert "not differentiated here" in found["compared"]


def test_a_forward_pass_above_the_limits_is_not_run_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = report(4)["baseline"]["peak_bytes"]
    monkeypatch.setattr(execution_check, "MAX_RUN_BYTES", 5 * peak // 2)  # both runs fit
    found = report(4)["executed"]
    assert found["status"] == "equal" and "exceeds" in found["gradients"]["why"]
