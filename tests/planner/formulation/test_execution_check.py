"""Execution check: the report has the measured peak of the rewritten graph; null for a smaller batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
