"""The check of a step's gradients finds wrong and missing ones, and passes over what gradients leave out on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph.autodiff.gradients.registry import GRADIENT_RULES, GradientRule
from graph.autodiff.objective import NotCompared, Objective
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.ir import Graph, Role, TensorType
from graph.ops.control_flow.interface import MAX_LENGTH
from graph.training.gradient_check import AGREE, DIFFERENT, GradientCheck, GradientProbe
from graph.training.step import training_step

Tail = Callable[[Builder, int], int]


def checked(graph: Graph, **options: Any) -> GradientCheck:
    """The check of the training step of `graph`, whose output is the loss."""
    found: list[Objective] = []
    step, _ = training_step(graph, graph.values[graph.outputs[0]].name, on_objective=found.append, **options)
    probe = GradientProbe(step, found[0], seed=0, directions=2)
    feeds = {step.values[v].name: array for v, array in sample_arrays(step, 0).items()}
    execute(step, feeds, watch=probe.watch)
    return probe.compare(feeds)


def layers(*ops: str, dtype: str = "float32", tail: Tail | None = None, **fields: Any) -> Graph:
    """x ──▶ MatMul w0 ──▶ op ──▶ MatMul w1 ──▶ op ... ──▶ tail ──▶ mean of squares"""
    builder = Builder("layers", opset={"": 21})
    h = builder.value("x", TensorType(dtype, (4, 8)), Role.INPUT)
    for k, op in enumerate(ops):
        w = builder.value(f"w{k}", TensorType(dtype, (8, 8)), Role.PARAMETER)
        (h,) = builder.node("MatMul", [h, w], name=f"fc{k}")
        (h,) = builder.node(op, [h], name=f"act{k}", outputs=[f"h{k}"], **(fields if k == 0 else {}))
    h = h if tail is None else tail(builder, h)
    (h,) = builder.node("Mul", [h, h], name="square")
    (loss,) = builder.node("ReduceMean", [h], name="mean", attributes={"keepdims": 0}, outputs=["loss"])
    return builder.build([loss])


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-6), ("float32", 1e-4), ("float16", 5e-2)])
def test_right_gradients_agree_within_the_rounding_of_their_type(dtype: str, error: float) -> None:
    found = checked(layers("Tanh", "Sigmoid", dtype=dtype))
    assert (found.status, found.directions) == (AGREE, 2)
    assert found.error is not None and found.error <= error


def test_a_wrong_rule_is_found_and_the_parameter_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GRADIENT_RULES["Tanh"].rule

    def doubled(emit, node, dz):  # type: ignore[no-untyped-def]
        return right(emit, node, emit.add(dz, dz))

    monkeypatch.setitem(GRADIENT_RULES, "Tanh", GradientRule(doubled, zeros=False))
    found = checked(layers("Tanh", *("Sin",) * 15))
    assert found.status == DIFFERENT and "'w0'" in found.why


def test_a_parameter_that_gets_no_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(emit, node, dz):  # type: ignore[no-untyped-def]
        return (None,)

    monkeypatch.setitem(GRADIENT_RULES, "Tanh", GradientRule(nothing, zeros=False))
    assert checked(layers("Tanh", "Sigmoid")).status == DIFFERENT


def test_values_that_stop_gradients_are_held() -> None:
    stopped = layers("Tanh", "remat::StopGradient", "Sigmoid")
    assert checked(stopped).status == AGREE
    assert checked(layers("Tanh", "Sigmoid", "Sin"), no_gradient=["h0"]).status == AGREE
    assert checked(layers("Tanh", "Sigmoid", "Sin"), skip=["act1"]).status == AGREE
    assert checked(layers("Tanh", "Round", "Sin")).status == AGREE


def test_dropout_draws_the_same_mask_in_float64() -> None:
    def dropout(builder: Builder, h: int) -> int:
        ratio, training = builder.constant(np.float32(0.5)), builder.constant(np.asarray(True))
        return builder.node("Dropout", [h, ratio, training], name="drop")[0]

    assert checked(layers("Tanh", "Sin", tail=dropout)).status == AGREE


def test_types_in_attributes_are_widened() -> None:
    def through_half(builder: Builder, h: int) -> int:
        (half,) = builder.node("Cast", [h], attributes={"to": 10})
        return builder.node("Cast", [half], attributes={"to": 1})[0]

    assert checked(layers("Tanh", "Sin", tail=through_half)).status == AGREE


def test_element_types_that_a_node_leaves_to_the_default_are_widened() -> None:
    def zeros(builder: Builder, h: int) -> int:
        (filled,) = builder.node("ConstantOfShape", [builder.constant(np.array([4, 8]))])
        return builder.node("Add", [h, filled])[0]

    assert checked(layers("Tanh", "Sin", tail=zeros)).status == AGREE


def test_the_values_picked_by_nonzero_are_as_many_as_in_the_step() -> None:
    def positive(builder: Builder, h: int) -> int:
        (mask,) = builder.node("Greater", [h, builder.constant(np.float32(0))])
        (places,) = builder.node("NonZero", [mask], annotations={MAX_LENGTH: 32}, types=[TensorType("int64", (2, 32))])
        (rows,) = builder.node("Transpose", [places], attributes={"perm": [1, 0]})
        return builder.node("GatherND", [h, rows])[0]

    assert checked(layers("Tanh", "Sin", tail=positive)).status == AGREE


def test_head_gradients_weigh_their_targets() -> None:
    heads = {"loss": -3.0, "h0": 0.5}
    assert checked(layers("Tanh", "Sin"), of=["h0"], head_gradients=heads).status == AGREE


def test_a_loss_whose_slope_depends_on_rounding_is_not_compared() -> None:
    def jumps(builder: Builder, h: int) -> int:
        steep = builder.constant(np.full(8, 1e9, np.float32))
        (many,) = builder.node("Mul", [h, steep])
        return builder.node("Sin", [many])[0]

    with pytest.raises(NotCompared, match="rounding"):
        checked(layers("Tanh", "Sin", tail=jumps))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
def test_a_sum_that_cancels_is_as_exact_as_its_terms(op: str) -> None:
    #   x ──▶ MatMul w ──▶ softmax ──▶ - 1/8 ──▶ sum = 0: gradient and difference are rounding
    builder = Builder("cancels", opset={"": 21})
    x = builder.value("x", TensorType("float32", (4, 8)), Role.INPUT)
    w = builder.value("w", TensorType("float32", (8, 8)), Role.PARAMETER)
    (h,) = builder.node("Softmax", builder.node("MatMul", [x, w]))
    (h,) = builder.node("Sub", [h, builder.constant(np.float32(0.125))])
    builder.node(op, [h], attributes={"keepdims": 0}, outputs=["loss"])
    assert checked(builder.build([builder.nodes[-1].outputs[0]])).status == AGREE


def test_gradients_that_are_no_derivatives_are_not_compared() -> None:
    def quantized(builder: Builder, h: int) -> int:
        scale, zero = builder.constant(np.float32(0.1)), builder.constant(np.asarray(0, np.int8))
        (q,) = builder.node("QuantizeLinear", [h, scale, zero])
        return builder.node("DequantizeLinear", [q, scale, zero])[0]

    with pytest.raises(NotCompared, match="QuantizeLinear"):
        checked(layers("Tanh", tail=quantized))
    with pytest.raises(NotCompared, match="micro-batches"):
        checked(layers("Tanh"), recipe={"accumulate": 2})
