"""Ops defined by their decomposition, read from ONNX files, in a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graph.errors import NoGradient
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.formats.writers import dump
from graph.ir import Graph, Phase, Role
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry import work
from graph.ops.registry.registry import make_call
from graph.training.step import training_step

MICROSOFT = "com.microsoft"
_CHANCE = np.random.default_rng(3)


def model(op: str, inputs: dict[str, np.ndarray], given: tuple[str, ...], opset: int = 25, **more: Any) -> bytes:
    """x ── op ── ReduceSumSquare ── loss; inputs that are not `given` are initialisers."""
    domain = more.pop("domain", "")
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}

    nodes = [
        helper.make_node(op, list(inputs), ["y"], name="node", domain=domain, **more),
        helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "one op",
        [helper.make_tensor_value_info(name, kinds[name], inputs[name].shape) for name in given],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in inputs.items() if name not in given],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return proto.SerializeToString()  # type: ignore[no-any-return]


def read(data: bytes) -> Graph:
    return load(data, Limits(), ShapeOverrides({}))


def real(*shape: int) -> np.ndarray:
    return _CHANCE.uniform(-1, 1, shape).astype(np.float32)


def roles(graph: Graph) -> dict[str, Role]:
    return {value.name: value.role for value in graph.values}


def test_attention_trains_as_one_node_that_saves_no_scores() -> None:
    q, k, v = real(2, 4, 5, 8), real(2, 2, 5, 8), real(2, 2, 5, 8)
    graph = read(model("Attention", {"q": q, "k": k, "v": v}, ("q",), is_causal=1))
    step, _ = training_step(graph, "loss")
    ops = [node.op for node in step.nodes]
    assert ops.count("remat::FusedAttention") == ops.count("remat::FusedAttentionGrad") == 1
    assert not {"Attention", "Softmax"} & set(ops)
    backward = [step.values[v].type for n in step.nodes if n.phase is Phase.BACKWARD for v in n.reads]
    assert (2, 4, 5, 5) not in {type.shape for type in backward if type is not None}


def test_attention_counts_the_flops_of_its_two_products() -> None:
    q, k, v = real(1, 4, 64, 32), real(1, 2, 128, 32), real(1, 2, 128, 32)
    graph = read(model("Attention", {"q": q, "k": k, "v": v}, ("q", "k", "v")))
    products = 2 * 2 * 4 * 64 * 128 * 32
    assert products <= work(make_call(graph, graph.nodes[0])).flops <= 1.2 * products


def test_an_inference_graph_keeps_the_op_and_writes_it() -> None:
    data = model("BiasGelu", {"x": real(2, 3), "b": real(3)}, ("x",), domain=MICROSOFT)
    graph = read(data)
    assert [node.op for node in graph.nodes] == ["com.microsoft::BiasGelu", "ReduceSumSquare"]
    assert [node.op for node in read(dump(graph, "onnx")).nodes] == [node.op for node in graph.nodes]


def test_linear_attention_is_differentiated_through_the_loop_of_its_definition() -> None:
    x = {name: real(2, 4, 6) for name in "qkv"}
    graph = read(model("LinearAttention", x, ("q",), 27, q_num_heads=2, kv_num_heads=2, update_rule="linear"))
    step, _ = training_step(graph, "loss")
    weights = {name: array for name, array in x.items() if name in roles(step)}
    found = execute(step, weights).outputs
    gradients = {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}
    assert set(gradients) == {"k", "v"}
    for name, gradient in gradients.items():
        towards = real(2, 4, 6)
        up, down = (execute(graph, {**weights, name: x[name] + s * towards}).outputs["loss"] for s in (1e-2, -1e-2))
        assert float((gradient * towards).sum()) == pytest.approx(float(up - down) / 2e-2, rel=2e-2, abs=1e-2)


def test_an_option_without_a_decomposition_is_named_where_a_gradient_is_needed() -> None:
    inputs = {"x": real(2, 3, 8), "p": np.zeros((2, 3), np.int64), "cos": real(3, 2), "sin": real(3, 2)}
    data = model("RotaryEmbedding", inputs, ("p",), domain=MICROSOFT, scale=2.0)
    proto = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 8])
    graph = read(with_type(data, proto))
    with pytest.raises(NoGradient, match="scale are not supported"):
        training_step(graph, "loss")


def with_type(data: bytes, info: Any) -> bytes:
    from onnx import ModelProto

    proto = ModelProto.FromString(data)
    proto.graph.value_info.append(info)
    return proto.SerializeToString()  # type: ignore[no-any-return]


def test_caches_of_rotary_embeddings_are_constants() -> None:
    inputs = {"x": real(2, 4, 3, 8), "cos": real(2, 3, 4), "sin": real(2, 3, 4)}
    found = roles(read(model("RotaryEmbedding", inputs, ("x",))))
    assert found["cos"] is found["sin"] is Role.CONSTANT
