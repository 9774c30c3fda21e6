"""Other frameworks' ops in ops of ours: what they compute, what they refuse, how they become rows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from graph.errors import BadGraph
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.document.schema import Document, ValueRow
from graph.formats.mxnet.ops import MXNET
from graph.formats.paddle.ops import PADDLE
from graph.formats.readers import load
from graph.formats.shared.op_table import OpTable, Translation
from graph.formats.shared.rows import translation_rows
from graph.ir import TensorType
from graph.ops.registry.onnx_fallback import type_of_array
from tests.graph.evaluate import evaluate

TABLES = {"mxnet": MXNET, "caffe2": CAFFE2, "paddle": PADDLE}
_chance = np.random.default_rng(3)


def real(*shape: int, dtype: str = "float32") -> np.ndarray:
    return _chance.uniform(-1, 1, shape).astype(dtype)


def computed(table: OpTable, op: str, attributes: dict[str, Any], *arrays: np.ndarray | None, outputs: int = 1) -> Any:
    types = [None if a is None else type_of_array(a) for a in arrays]
    made = table.translate(op, attributes, types, name="op", outputs=outputs)
    assert isinstance(made, Translation), f"{op} has no counterpart"
    given = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    found = evaluate(made.graph, given)
    names = [None if v is None else made.graph.values[v].name for v in (*made.outputs, *made.losses)]
    return [None if name is None else found[name] for name in names]


X, W, B = real(4, 6), real(5, 6), real(5)
IMAGE = real(2, 3, 6, 6)
PROB = np.full((3, 4), 0.25, np.float32)
LABEL = np.array([0, 2, 3], np.int32)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("table", "op", "attributes", "inputs", "expected"),
    [
        (MXNET, "FullyConnected", {"num_hidden": "5"}, [X, W, B], X @ W.T + B),
        (MXNET, "FullyConnected", {"num_hidden": "5", "no_bias": "True"}, [X.reshape(4, 2, 3), W], X @ W.T),
        (MXNET, "FullyConnected", {"flatten": False}, [X.reshape(2, 2, 6), W, B], (X @ W.T + B).reshape(2, 2, 5)),
        (MXNET, "Activation", {"act_type": "tanh"}, [X], np.tanh(X)),
        (MXNET, "reshape", {"shape": "(0, -4, 2, -1)"}, [X], X.reshape(4, 2, 3)),
        (MXNET, "slice_axis", {"axis": "1", "begin": "1", "end": "None"}, [X], X[:, 1:]),
        (MXNET, "slice", {"begin": "(None, 1)", "end": "(2, -1)"}, [X], X[:2, 1:-1]),
        (MXNET, "pick", {}, [PROB, LABEL.astype(np.float32)], np.full(3, 0.25)),
        (MXNET, "_rminus_scalar", {"scalar": "1"}, [X], 1 - X),
        (MXNET, "broadcast_greater", {}, [X, -X], (X > -X).astype(np.float32)),
        (MXNET, "sum", {"axis": "(1,)", "keepdims": "True"}, [X], X.sum(1, keepdims=True)),
        (MXNET, "mean", {}, [X], X.mean().reshape(1)),
        (MXNET, "batch_dot", {"transpose_b": "True"}, [real(2, 3, 4), real(2, 5, 4)], None),
        (
            MXNET,
            "Pooling",
            {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "sum"},
            [np.ones((1, 1, 4, 4))],
            np.full((1, 1, 2, 2), 4),
        ),
        (MXNET, "L2Normalization", {}, [X], X / np.sqrt((X * X).sum(1, keepdims=True))),
        (MXNET, "flip", {"axis": "1"}, [X], X[:, ::-1]),
        (MXNET, "repeat", {"repeats": "2", "axis": "1"}, [X], np.repeat(X, 2, 1)),
        (MXNET, "one_hot", {"depth": "4"}, [LABEL], np.eye(4)[LABEL]),
        (MXNET, "dot", {"transpose_a": "True"}, [X, X], X.T @ X),
        (MXNET, "smooth_l1", {"scalar": 1}, [3 * X], np.where(abs(3 * X) < 1, 4.5 * X * X, abs(3 * X) - 0.5)),
        (
            MXNET,
            "SequenceMask",
            {"use_sequence_length": "1"},
            [np.ones((3, 2)), np.array([1, 3])],
            np.array([[1, 1], [0, 1], [0, 1]]),
        ),
        (CAFFE2, "FC", {}, [X, W, B], X @ W.T + B),
        (CAFFE2, "FC", {"axis": 2}, [X.reshape(1, 4, 6), W, B], (X @ W.T + B)[None]),
        (CAFFE2, "Add", {"broadcast": 1, "axis": 0}, [X, real(4)], None),
        (CAFFE2, "Slice", {"starts": [0, 1], "ends": [-1, -2]}, [X], X[:, 1:-1]),
        (CAFFE2, "SquaredL2Distance", {}, [X, -X], 2 * (X * X).sum(1)),
        (CAFFE2, "LabelCrossEntropy", {}, [PROB, LABEL], np.full(3, np.log(4))),
        (CAFFE2, "AveragedLoss", {}, [X], X.mean()),
        (CAFFE2, "Pow", {"exponent": 2.0}, [X], X * X),
        (CAFFE2, "DotProduct", {}, [X, X], (X * X).sum(1)),
        (CAFFE2, "Softmax", {}, [X], _softmax(X)),
        (CAFFE2, "ExpandDims", {"dims": [0, 2]}, [X], X.reshape(1, 4, 1, 6)),
        (CAFFE2, "ConstantFill", {"shape": [2], "value": 3.0}, [], np.full(2, 3)),
        (CAFFE2, "ConstantFill", {"value": 1.0}, [X], np.ones((4, 6))),
        (CAFFE2, "ReduceBackMean", {}, [X], X.mean(1)),
        (
            CAFFE2,
            "MaxPool",
            {"kernel": 2, "stride": 2},
            [np.arange(16.0).reshape(1, 1, 4, 4)],
            np.array([[[[5.0, 7], [13, 15]]]]),
        ),
        (PADDLE, "mul", {"x_num_col_dims": 2}, [X.reshape(2, 2, 6), W.T], (X @ W.T).reshape(2, 2, 5)),
        (PADDLE, "fc", {"act": "softmax"}, [X, W.T, B], _softmax(X @ W.T + B)),
        (PADDLE, "elementwise_add", {"axis": 0}, [X, np.arange(4, dtype=np.float32)], X + np.arange(4)[:, None]),
        (PADDLE, "matmul_v2", {"trans_y": True}, [X, W], X @ W.T),
        (PADDLE, "scale", {"scale": 2.0, "bias": 1.0, "bias_after_scale": False}, [X], 2 * (X + 1)),
        (PADDLE, "cross_entropy", {}, [PROB, LABEL.reshape(3, 1)], np.full((3, 1), np.log(4))),
        (PADDLE, "reshape2", {"shape": [0, 2, -1]}, [X], X.reshape(4, 2, 3)),
        (PADDLE, "square_error_cost", {}, [X, -X], 4 * X * X),
        (PADDLE, "RSubScalar", {"scalar": 1}, [X], 1 - X),
        (PADDLE, "slice", {"axes": [0], "starts": [1], "ends": [2], "decrease_axis": [0]}, [X], X[1]),
        (PADDLE, "lookup_table", {}, [X, np.array([[1], [3]])], X[[1, 3]]),
        (PADDLE, "one_hot", {"depth": 4}, [LABEL.reshape(3, 1)], np.eye(4)[LABEL]),
        (PADDLE, "reduce_mean", {"reduce_all": True}, [X], X.mean()),
        (PADDLE, "cast", {"out_dtype": 3}, [np.array([1.5, -2])], np.array([1, -2])),
        (PADDLE, "fill_constant", {"shape": [3], "value": 2.0}, [], np.full(3, 2)),
    ],
)
def test_an_op_computes_what_its_framework_says(
    table: OpTable, op: str, attributes: dict[str, Any], inputs: list[np.ndarray], expected: np.ndarray | None
) -> None:
    (found, *_) = computed(table, op, attributes, *inputs)
    if op == "batch_dot":
        expected = inputs[0] @ inputs[1].swapaxes(1, 2)
    elif expected is None:
        expected = inputs[0] + inputs[1][:, None]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    assert found.shape == np.shape(expected)


def test_a_loss_of_mxnet_is_told_beside_its_output() -> None:
    """SoftmaxOutput hands out probabilities; the cross-entropy it trains by is a further value."""
    x, labels = real(3, 4), LABEL.astype(np.float32)
    prob, loss = computed(MXNET, "SoftmaxOutput", {"normalization": "batch"}, x, labels)
    np.testing.assert_allclose(prob, _softmax(x), rtol=1e-5)
    np.testing.assert_allclose(loss, -np.log(_softmax(x)[range(3), LABEL]).sum() / 3, rtol=1e-5)


def test_an_lstm_unit_keeps_the_state_of_a_sequence_that_has_ended() -> None:
    hidden, cell, gates = real(1, 2, 3), real(1, 2, 3), real(1, 2, 12)
    lengths, time = np.array([5, 2], np.int32), np.array([2], np.int32)
    new_hidden, new_cell = computed(CAFFE2, "LSTMUnit", {}, hidden, cell, gates, lengths, time, outputs=2)
    i, f, o, g = np.split(gates, 4, -1)
    s = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    expected = s(f) * cell + s(i) * np.tanh(g)
    np.testing.assert_allclose(new_cell[:, 0], expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(new_hidden[:, 0], (s(o) * np.tanh(expected))[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(new_cell[:, 1], cell[:, 1])


@pytest.mark.parametrize(
    ("table", "op", "attributes", "shapes"),
    [
        (MXNET, "sum", {"axis": "9"}, [(2, 3)]),
        (MXNET, "Convolution", {"kernel": "3"}, [(2, 3, 4, 4)]),
        (MXNET, "reshape", {"shape": "(7, 7)"}, [(2, 3)]),
        (MXNET, "Activation", {}, [(2,)]),
        (MXNET, "_full", {"shape": "(999999999999,)", "value": "1"}, []),
        (MXNET, "clip", {"a_min": "low", "a_max": "1"}, [(2,)]),
        (CAFFE2, "FC", {}, [(2, 3), (4, 7), (4,)]),
        (CAFFE2, "Reshape", {"shape": [-1, -1]}, [(2, 3)]),
        (CAFFE2, "Reshape", {"shape": [2, 2]}, [(2, 3)]),
        (PADDLE, "conv2d", {"paddings": [1, 1, 1]}, [(2, 3, 4, 4), (3, 3, 3, 3)]),
        (PADDLE, "cast", {"out_dtype": 99}, [(2,)]),
    ],
)
def test_what_an_op_does_not_take_is_refused_with_its_name(
    table: OpTable, op: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    with pytest.raises(BadGraph) as caught:
        table.translate(op, attributes, [TensorType("float32", s) for s in shapes], name="the op")
    finding = caught.value.findings[0]
    assert finding.code == "type_conflict"
    assert "the op" in finding.path and op in finding.found


def test_rows_of_an_op_load_as_part_of_a_document() -> None:
    made = MXNET.translate(
        "FullyConnected", {}, [TensorType("float32", s) for s in ((4, 2, 3), (5, 6), (5,))], name="fc"
    )
    assert isinstance(made, Translation)
    values, nodes = translation_rows(made, "fc", ["x", "w", "b"], ["y"])
    given = [ValueRow(n, list(s), "float32", "input") for n, s in (("x", (4, 2, 3)), ("w", (5, 6)), ("b", (5,)))]
    graph = load(msgspec.json.encode(Document("remat/1", given + values, nodes, ["y"])))
    assert [node.op for node in graph.nodes] == ["Flatten", "Gemm"]
    assert graph.nodes[-1].name == "fc"
    assert graph.values[graph.outputs[0]].type == TensorType("float32", (4, 5))


def test_an_op_over_its_own_input_writes_it_when_nothing_reads_it_any_more() -> None:
    made = CAFFE2.translate("Swish", {}, [TensorType("float32", (4,))], name="act")
    assert isinstance(made, Translation)
    values, nodes = translation_rows(made, "act", ["x"], ["x"])
    document = Document("remat/1", [ValueRow("x", [4], "float32", "input"), *values], nodes, ["x"], naming="mutable")
    graph = load(msgspec.json.encode(document))
    found = evaluate(graph, {"x": np.arange(4, dtype=np.float32)})[graph.values[graph.outputs[0]].name]
    x = np.arange(4)
    np.testing.assert_allclose(found, x / (1 + np.exp(-x)), rtol=1e-6)


def test_every_op_of_the_recorded_cases_is_known_or_made_up() -> None:
    """Cases of the original systems use ops by these names; made-up test ops stay opaque."""
    with open("tests/seeds/cases.json") as file:
        cases = json.load(file)
    made_up = {
        "A",
        "B",
        "C",
        "D",
        "E",
        "F",
        "Cc",
        "N",
        "N1",
        "N2",
        "Bad",
        "Direct",
        "UseInput",
        "Heavy",
        "Short",
        "F_grad_a",
        "F_grad_b",
        "GRADIENT",
        "Print",
        "Adagrad",
        "SparseFunHash",
        "NegateGradient",
        "mean_grad",
        "mul_grad",
    }
    control = {"If", "While", "Do", "CreateScope", "RecurrentNetwork", "ONNXWhile", "cond", "while_loop"}
    tables = {"caffe2": CAFFE2, "detectron2": CAFFE2, "mxnet": MXNET, "paddle": PADDLE}
    unknown = {
        (case["source_project"], type)
        for case in cases
        for op in case["ops"]
        for type in [op.get("type") or op.get("op")]
        if type not in made_up | control and type not in tables[case["source_project"]].rules
    }
    assert unknown == set()
