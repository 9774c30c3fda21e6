"""Gradients of ops with nested nets, in the form of Caffe2."""

from __future__ import annotations

import json
from typing import Any

from graph.formats.caffe2.compat.gradients import GradientOp, add_gradient_operators
from graph.formats.readers import load
from graph.ir import Graph


def branch(op: str) -> dict[str, Any]:
    """Captures x and w, and returns one op of them."""
    return {
        "inputs": [],
        "captures": {"x": "x", "w": "w"},
        "nodes": [{"name": "n", "op": op, "inputs": ["x", "w"], "outputs": ["y"]}],
        "outputs": ["y"],
        "values": [{"name": "y", "shape": [3], "dtype": "float32"}],
    }


def choice() -> Graph:
    """z = x * (x * w if c else x + w)."""
    bodies = {"then_branch": branch("caffe2::Mul"), "else_branch": branch("caffe2::Add")}
    value = {"shape": [3], "dtype": "float32"}
    document = {
        "format": "remat/1",
        "naming": "mutable",
        "values": [
            {"name": "x", "role": "input", **value},
            {"name": "w", "role": "parameter", **value},
            {"name": "c", "role": "input", "shape": [], "dtype": "bool"},
            {"name": "y", **value},
            {"name": "z", **value},
        ],
        "nodes": [
            {"name": "if", "op": "If", "inputs": ["c"], "outputs": ["y"], "bodies": bodies},
            {"name": "m", "op": "caffe2::Mul", "inputs": ["y", "x"], "outputs": ["z"]},
        ],
        "outputs": ["z"],
    }
    return load(json.dumps(document).encode())


def test_a_gradient_if_lists_its_branches_and_the_values_they_capture() -> None:
    (found,) = [op for op in add_gradient_operators(choice(), ["z"]).ops if op.type == "If"]
    assert found.inputs == ["c", "y_grad", "x", "w"]
    part = "_x_grad_autosplit_0"  # a term of a sum: renamed inside the branches too
    assert found.outputs == [part, "w_grad"]
    assert found.branches == {
        "then_branch": [GradientOp("MulGradient", ["y_grad", "x", "w"], [part, "w_grad"])],
        "else_branch": [GradientOp("Copy", ["y_grad"], [part]), GradientOp("Copy", ["y_grad"], ["w_grad"])],
    }
