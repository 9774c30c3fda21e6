"""`remat info`: the summary of a model that has no loss."""

from __future__ import annotations

import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import Graph, Role, TensorType
from planner.report.model_summary import info
from planner.request.plan_request import parse_request


def dense() -> Graph:
    """x ── Mul by w ── scores [2,3,4,4]: no scalar, and no class scores by their shape."""
    builder = Builder("dense")
    x = builder.value("x", TensorType("float32", (2, 3, 4, 4)), Role.INPUT)
    w = builder.value("w", TensorType("float32", (4,)), Role.PARAMETER)
    return builder.build(builder.node("Mul", [x, w], name="scale", outputs=["scores"]))


def test_a_model_without_a_loss_is_summarized_as_it_stands() -> None:
    found = info(dense(), parse_request({"differentiate": True}))
    assert found["nodes_by_phase"] == {"forward": 1, "backward": 0, "update": 0}
    assert "cross_entropy:OUTPUT" in found["warnings"][0]
    assert found["binding"] == {"type": "float32[2,3,4,4]", "op": "Mul", "module": None}
    described = {row["value"]: (row["op"], row["type"]) for row in found["holders"]}
    assert described["x"] == (None, "float32[2,3,4,4]") and described["scores"] == ("Mul", "float32[2,3,4,4]")
    with_loss = info(dense(), parse_request({"loss": "cross_entropy:scores"}))
    assert with_loss["nodes_by_phase"]["backward"] > 0


def test_a_loss_that_is_missing_is_an_error() -> None:
    with pytest.raises(BadGraph, match="'nothing'"):
        info(dense(), parse_request({"loss": "nothing"}))
