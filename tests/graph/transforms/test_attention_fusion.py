"""Attention fusion: the fused node equals the decomposed attention and does not save scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution import compare_outputs
from graph.execution.interpreter import execute
from graph.formats.onnx.writer import dump
from graph.formats.readers import load
from graph.ir import Graph, Role, TensorType
from graph.limits import ShapeOverrides
from graph.training.step import training_step
from graph.transforms.attention_fusion import FUSED_ATTENTION, with_fused_attention
from tests.graph.formats.onnx.onnx_runs import run

MODELS = Path(__file__).parents[2] / "models"
STACK, QUERIES, KEYS, WIDTH = (2, 3), 150, 7, 4


def attention(*between: str, dtype: str = "float32", swapped: bool = False) -> Graph:
    """Σ of softmax(between(q k)) v, over a stack; `between` names the steps from the product to the softmax."""
    b = Builder("attention")
    q = b.value("q", TensorType(dtype, (*STACK, QUERIES, WIDTH)), Role.PARAMETER)
    k = b.value("k", TensorType(dtype, (*STACK, KEYS, WIDTH)), Role.PARAMETER)
    v = b.value("v", TensorType(dtype, (*STACK, KEYS, 5)), Role.PARAMETER)
    bias = b.value("bias", TensorType(dtype, (3, 1, KEYS)), Role.PARAMETER)
    seen = b.value("seen", TensorType("bool", (QUERIES, KEYS)), Role.INPUT)
    (kt,) = b.node("Transpose", [k], name="turned", attributes={"perm": [0, 1, 3, 2]})
    (s,) = b.node("MatMul", [q, kt], name="scores")
    steps: dict[str, Any] = {
        "times": ("Mul", lambda s: [b.constant(np.array(0.5, dtype)), s]),
        "over": ("Div", lambda s: [s, b.constant(np.array([2.5], dtype))]),
        "bias": ("Add", lambda s: [bias, s] if swapped else [s, bias]),
        "mask": ("Where", lambda s: [seen, s, b.constant(np.array(-3e4, dtype))]),
        "unless": ("Where", lambda s: [seen, b.constant(np.array(-np.inf, dtype)), s]),
        "relu": ("Relu", lambda s: [s]),
    }
    for name in between:
        op, operands = steps[name]
        (s,) = b.node(op, operands(s), name=name)
    (p,) = b.node("Softmax", [s], name="softmax", attributes={"axis": 3})
    (y,) = b.node("MatMul", [p, v], name="mixed")
    (y,) = b.node("Mul", [y, y], name="squares")
    (total,) = b.node("ReduceSum", [y], name="total", outputs=["total"], attributes={"keepdims": 0})
    return b.build([total])


def steps(forward: Graph, loss: str | None = "total") -> tuple[Graph, Graph]:
    return training_step(forward, loss=loss)[0], training_step(forward, loss=loss, rewrite=with_fused_attention)[0]


def assert_agree(plain: Graph, fused: Graph, seed: int = 0) -> None:
    fed = compare_outputs.sample_feeds(plain, seed)
    expected, found = (compare_outputs.run_results(graph, fed) for graph in (plain, fused))
    assert set(found) == set(expected)
    worst = compare_outputs.worst_discrepancy(found, expected)
    assert worst.agrees, worst


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "between",
    [
        (),
        ("times",),
        ("over", "times"),
        ("bias",),
        ("times", "bias"),
        ("over", "mask"),
        ("times", "bias", "mask"),
        ("unless",),
    ],
)
def test_fused_attention_has_the_same_output_and_gradients(between: tuple[str, ...], dtype: str) -> None:
    plain, fused = steps(attention(*between, dtype=dtype))
    ops = [node.op for node in fused.nodes]
    assert FUSED_ATTENTION in ops and not {"Softmax", "Where", "remat::SoftmaxGrad"} & set(ops)
    assert_agree(plain, fused)


def test_a_bias_is_recognized_as_either_operand() -> None:
    plain, fused = steps(attention("times", "bias", swapped=True))
    (node,) = [node for node in fused.nodes if node.op == FUSED_ATTENTION]
    assert fused.values[node.inputs[3]].name == "bias"
    assert_agree(plain, fused)


@pytest.mark.parametrize(
    "between", [("relu",), ("mask", "bias"), ("bias", "times"), ("mask", "times"), ("bias", "bias")], ids="-".join
)
def test_other_patterns_are_not_fused(between: tuple[str, ...]) -> None:
    with pytest.raises(BadGraph, match="softmax"):
        with_fused_attention(attention(*between))


@pytest.mark.parametrize("name", ["scores", "softmax"])
def test_attention_with_scores_as_an_output_is_not_fused(name: str) -> None:
    graph = attention("times")
    b = Builder.from_graph(graph)
    shown = next(v for v, value in enumerate(graph.values) if value.name == name)
    with pytest.raises(BadGraph, match="have another reader"):
        with_fused_attention(b.build([*graph.outputs, shown]))


def test_no_scores_are_saved() -> None:
    plain, fused = steps(attention("times", "mask"))
    scores = (*STACK, QUERIES, KEYS)
    assert not [value for value in fused.values if value.type is not None and value.type.shape == scores]
    assert execute(fused).peak_bytes < execute(plain).peak_bytes


@pytest.mark.parametrize(("name", "loss", "layers"), [("gpt", None, 2), ("decoder", "loss", 2), ("encoder", "loss", 2)])
def test_exported_models_agree(name: str, loss: str | None, layers: int) -> None:
    forward = load((MODELS / f"{name}.onnx").read_bytes(), None, ShapeOverrides({}, 3, {"sequence": 8}))
    plain, fused = steps(forward, loss)
    assert sum(node.op == FUSED_ATTENTION for node in fused.nodes) == layers
    assert_agree(plain, fused)


def test_fused_attention_is_exported_in_standard_ops() -> None:
    _, fused = steps(attention("times", "bias", "mask"))
    fed = compare_outputs.sample_feeds(fused, 0)
    expected = execute(fused, fed).outputs
    found = run(dump(fused), fed)
    assert compare_outputs.worst_discrepancy(found, expected).agrees
