"""Gradients through quantization: rounding counts as the identity, saturation as constant."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.ir import Graph, Phase, Role
from graph.ops.registry import find_op
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array
from tests.graph.evaluate import evaluate

X = np.array([[0.24, -0.7, 3.1, 900.0], [1.26, -40.0, -900.0, 0.0]], np.float32)
DY = np.array([[1.0, 2, -3, 4], [0.5, -1, 2, 3]], np.float32)


def pair(
    x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, moved: bool = False, **attributes: int
) -> tuple[Graph, dict[str, np.ndarray]]:
    """x ─▶ QuantizeLinear ─▶ DequantizeLinear ─▶ y, with a transposition there and back between them if `moved`."""
    builder = Builder("pair", {"": 25})
    given = {"x": x, "scale": scale}
    values = [builder.value(name, type_of_array(array), Role.PARAMETER) for name, array in given.items()]
    shift = builder.constant(zero_point)
    (q,) = builder.node("QuantizeLinear", [*values, shift], attributes=attributes)
    for _ in range(2 * moved):
        (q,) = builder.node("Transpose", [q])
    (y,) = builder.node("DequantizeLinear", [q, values[1], shift], outputs=["y"], attributes=attributes)
    builder.value("dy", builder.values[y].type, Role.INPUT)
    return builder.build([y]), given


def gradients_of(graph: Graph, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    step = differentiate(graph, ["y"], head_gradients={"y": "dy"})
    found = evaluate(step, {**given, "dy": DY})
    return {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}


def level(x: np.ndarray, scale: np.ndarray, zero_point: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x / scale, its quantized level without the zero point, inside the range of int8)."""
    real = x / scale
    whole = np.rint(real) + zero_point
    return real, np.clip(whole, -128, 127) - zero_point, (whole >= -128) & (whole <= 127)


@pytest.mark.parametrize("moved", [False, True])
def test_the_gradient_passes_where_the_quantized_value_is_not_saturated(moved: bool):
    graph, given = pair(X, np.float32(0.5), np.int8(3), moved)
    found = gradients_of(graph, given)
    _, _, inside = level(X, np.float32(0.5), 3)
    assert 0 < inside.sum() < X.size
    np.testing.assert_allclose(found["x"], np.where(inside, DY, 0), rtol=1e-6)
    assert found["x"].dtype == np.float32


def expected_scale(scale: np.ndarray, zero_point: int) -> np.ndarray:
    """Learned step size: the rounding error inside the range, the bound outside, times dy."""
    real, whole, inside = level(X, scale, zero_point)
    return np.asarray(DY * np.where(inside, whole - real, whole))


def test_the_gradient_of_a_scale_is_that_of_a_learned_step_size():
    graph, given = pair(X, np.float32(0.5), np.int8(3))
    found = gradients_of(graph, given)["scale"]
    np.testing.assert_allclose(found, expected_scale(np.float32(0.5), 3).sum(), rtol=1e-5)


def test_scales_of_slices_and_of_blocks_sum_their_own_elements():
    scale = np.array([0.5, 0.25, 0.1, 8.0], np.float32)
    graph, given = pair(X, scale, np.zeros(4, np.int8), axis=1)
    np.testing.assert_allclose(gradients_of(graph, given)["scale"], expected_scale(scale, 0).sum(0), rtol=1e-5)
    blocks = np.array([[0.5, 0.25], [0.1, 8.0]], np.float32)
    graph, given = pair(X, blocks, np.zeros((2, 2), np.int8), axis=1, block_size=2)
    each = expected_scale(np.repeat(blocks, 2, axis=1), 0)
    np.testing.assert_allclose(gradients_of(graph, given)["scale"], each.reshape(2, 2, 2).sum(2), rtol=1e-5)


def test_a_float8_saturates_at_its_largest_number():
    x = np.array([[0.3, 400.0, 500.0, -1000.0], [1.0, 2.0, -448.0, 0.0]], np.float32)
    graph, given = pair(x, np.float32(1), np.zeros((), numpy_dtype("float8e4m3fn")))
    np.testing.assert_array_equal(gradients_of(graph, given)["x"], np.where(np.abs(x) <= 448, DY, 0))


def test_a_value_dequantized_twice_gets_the_sum_of_both_gradients():
    builder = Builder("fan out", {"": 25})
    x = builder.value("x", type_of_array(X), Role.PARAMETER)
    scale = builder.constant(np.float32(0.5))
    (q,) = builder.node("QuantizeLinear", [x, scale], attributes={"output_dtype": 3})
    parts = [builder.node("DequantizeLinear", [q, scale])[0] for _ in range(2)]
    (y,) = builder.node("Sub", [parts[0], builder.node("Neg", [parts[1]])[0]], outputs=["y"])
    builder.value("dy", builder.values[y].type, Role.INPUT)
    found = gradients_of(builder.build([y]), {"x": X})
    np.testing.assert_array_equal(found["x"], np.where(level(X, np.float32(0.5), 0)[2], 2 * DY, 0))


def test_a_pair_reads_what_the_op_table_says():
    graph, _ = pair(X, np.ones(4, np.float32), np.zeros(4, np.int8))
    step = differentiate(graph, ["y"], head_gradients={"y": "dy"})
    read = {v for node in step.nodes if node.phase is Phase.BACKWARD for v in node.reads}
    for node in step.nodes[:2]:
        record = find_op(node.op)
        assert record is not None
        assert set(record.gradient_reads) == {f"i{i}" for i, v in enumerate(node.inputs) if v in read}


def test_every_parameter_of_a_network_with_fake_quantization_gets_a_gradient():
    builder = Builder("quantization-aware training", {"": 21})
    chance = np.random.default_rng(0)
    h = builder.value("x", type_of_array(chance.standard_normal((3, 4)).astype(np.float32)), Role.INPUT)
    scale, zero = builder.constant(np.float32(0.1)), builder.constant(np.int8(0))
    for layer in range(2):
        w = builder.value(f"w{layer}", type_of_array(np.zeros((4, 4), np.float32)), Role.PARAMETER)
        b = builder.value(f"b{layer}", type_of_array(np.zeros(4, np.float32)), Role.PARAMETER)
        quantized = [builder.node("QuantizeLinear", [v, scale, zero])[0] for v in (h, w)]
        left, right = (builder.node("DequantizeLinear", [q, scale, zero])[0] for q in quantized)
        (h,) = builder.node("Add", [builder.node("MatMul", [left, right])[0], b])
    (loss,) = builder.node("ReduceSum", [h], outputs=["loss"], attributes={"keepdims": 0})
    step = differentiate(builder.build([loss]), ["loss"])
    assert {step.values[v].name for v, _ in step.gradients} == {"w0", "b0", "w1", "b1"}
