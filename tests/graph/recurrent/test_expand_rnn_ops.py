"""LSTM, GRU and RNN as Scans compute the same, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import ABSENT, FLOAT_DTYPES, Graph, Role, TensorType
from graph.ops.registry.onnx_fallback import type_of_array
from graph.ops.rnn.rnn import GATES
from graph.recurrent.expand_rnn_ops import expand_rnns
from tests.contracts.gradient_examples import EXAMPLES, Example, real
from tests.contracts.op_examples import MORE

USES = [example for example in (*EXAMPLES, *MORE) if example.op in GATES]


def graph_of(example: Example) -> tuple[Graph, dict[str, np.ndarray], list[str]]:
    """(the op alone, its inputs, its floating outputs)."""
    builder, given, ids = Builder("one op"), {}, []
    for i, array in enumerate(example.inputs):
        if array is None:
            ids.append(ABSENT)
            continue
        given[f"x{i}"] = array
        ids.append(builder.value(f"x{i}", type_of_array(array), Role.PARAMETER))
    slots = [f"y{i}" if wanted else None for i, wanted in enumerate(example.outputs)]
    made = builder.node(example.op, ids, name="cell", outputs=slots, attributes=example.attributes)
    outputs = [v for v in made if v != ABSENT]
    return builder.build(outputs), given, [builder.values[v].name for v in outputs]


@pytest.mark.parametrize("example", USES, ids=str)
def test_an_expanded_op_is_equal_forward_and_backward(example):
    graph, given, targets = graph_of(example)
    wanted = [name for name, array in given.items() if type_of_array(array).dtype in FLOAT_DTYPES]
    plain, scans = (differentiate(g, targets, wanted) for g in (graph, expand_rnns(graph)))
    gone = {*GATES, *(f"remat::{op}Grad" for op in GATES)}
    assert not gone.intersection(node.op for node in scans.nodes)
    assert any(node.op == "Scan" for node in scans.nodes)
    a, b = (execute(g, given).outputs for g in (plain, scans))
    for name in targets:
        np.testing.assert_allclose(b[name], a[name], rtol=2e-5, atol=2e-6, err_msg=name)
    for (p, g), (q, h) in zip(plain.gradients, scans.gradients, strict=True):
        owner = plain.values[p].name
        assert owner == scans.values[q].name
        expected, found = a[plain.values[g].name], b[scans.values[h].name]
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5, err_msg=owner)


@pytest.mark.parametrize(
    "name",
    ["Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus"],
)
def test_every_activation_is_the_ops(name):
    attributes = {
        "hidden_size": 2,
        "activations": ["Sigmoid", name],
        "activation_alpha": [0.6],
        "activation_beta": [0.4],
        "clip": 1.5,
    }
    test_an_expanded_op_is_equal_forward_and_backward(
        Example("GRU", (real(4, 3, 2), real(1, 6, 2), real(1, 6, 2), real(1, 12)), attributes, (True, True))
    )


def test_a_peephole_lstm_that_couples_its_gates_is_equal():
    inputs = (real(3, 2, 2), real(1, 8, 2), real(1, 8, 2), real(1, 16), None, real(1, 2, 2), real(1, 2, 2), real(1, 6))
    test_an_expanded_op_is_equal_forward_and_backward(
        Example("LSTM", inputs, {"hidden_size": 2, "input_forget": 1}, (True, True, True))
    )


def test_a_graph_without_such_ops_stays_the_same():
    builder = Builder("plain")
    x = builder.value("x", TensorType("float32", (2,)), Role.INPUT)
    graph = builder.build(builder.node("Tanh", [x]))
    assert expand_rnns(graph) is graph
