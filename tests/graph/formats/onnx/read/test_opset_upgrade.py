"""Old opsets: the upgraded node computes what the old one did, both run by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from graph.errors import BadGraph
from graph.formats.onnx.writer import dump
from tests.graph.formats.onnx.onnx_runs import both, read, run

X = (2, 3, 4, 4)


def model(
    opset: int, op: str, shapes: Sequence[tuple[int, ...]] = (X,), outputs: int = 1, held: Any = (), **attributes: Any
) -> bytes:
    """A model of one node; inputs are x0, x1, ..., then those in `held`, which the file holds."""
    names = [f"x{i}" for i in range(len(shapes))] + [f"h{i}" for i in range(len(held))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="node", **attributes)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=False)]
    results = [ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    tensors = [numpy_helper.from_array(np.asarray(a), f"h{i}") for i, a in enumerate(held)]
    graph = helper.make_graph([node], "old", inputs, results, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    data: bytes = proto.SerializeToString()
    return data


OLD: dict[str, bytes] = {
    "Squeeze 11": model(11, "Squeeze", [(2, 1, 4, 1)], axes=[1, -1]),
    "Squeeze 11 all": model(11, "Squeeze", [(2, 1, 4, 1)]),
    "Unsqueeze 9": model(9, "Unsqueeze", [(2, 3)], axes=[0, 2]),
    "ReduceSum 11": model(11, "ReduceSum", axes=[1, 2], keepdims=0),
    "ReduceMean 13": model(13, "ReduceMean", axes=[-1]),
    "ReduceMax 12 all": model(12, "ReduceMax", keepdims=0),
    "ReduceL2 11": model(11, "ReduceL2", axes=[1]),
    "ReduceLogSumExp 13": model(13, "ReduceLogSumExp", axes=[0, 3]),
    "Clip 6": model(7, "Clip", min=0.1, max=0.4),
    "Clip 10 one side": model(10, "Clip", max=0.2),
    "Pad 10": model(10, "Pad", pads=[0, 0, 1, 2, 0, 1, 0, 0], value=0.5),
    "Pad 10 reflect": model(10, "Pad", pads=[0, 0, 1, 2, 0, 0, 1, 1], mode="reflect"),
    "Slice 9": model(9, "Slice", starts=[1, -3], ends=[1000, -1], axes=[1, 3]),
    "Slice 9 without axes": model(9, "Slice", starts=[0, 1], ends=[1, 3]),
    "TopK 9": model(9, "TopK", outputs=2, k=2, axis=2),
    "Split 11": model(11, "Split", outputs=2, axis=1, split=[1, 2]),
    "Split 11 equal": model(11, "Split", outputs=2, axis=2),
    "Split 13 equal": model(13, "Split", outputs=2, axis=3),
    "Dropout 7": model(7, "Dropout", ratio=0.3),
    "Dropout 10": model(10, "Dropout"),
    "BatchNormalization 7": model(7, "BatchNormalization", [X, (3,), (3,), (3,), (3,)], epsilon=0.01),
    "BatchNormalization 8 spatial": model(8, "BatchNormalization", [X, (3,), (3,), (3,), (3,)], spatial=1),
    "BatchNormalization 12": model(12, "BatchNormalization", [X, (3,), (3,), (3,), (3,)], momentum=0.8),
    "Softmax 11 of a picture": model(11, "Softmax", axis=1),
    "Softmax 11 last": model(11, "Softmax", axis=3),
    "Softmax 11 first": model(11, "Softmax", axis=0),
    "Softmax 8 of a column": model(8, "Softmax", [(2, 5, 1, 1)]),
    "LogSoftmax 9": model(9, "LogSoftmax", axis=2),
    "Hardmax 11": model(11, "Hardmax", axis=2),
    "Softmax 11 of ones": model(11, "Softmax", [(2, 1, 1)], axis=1),
    "Upsample 7": model(7, "Upsample", scales=[1.0, 1.0, 2.0, 3.0]),
    "Upsample 7 linear": model(7, "Upsample", scales=[1.0, 1.0, 2.0, 2.0], mode="linear"),
    "Upsample 9": model(9, "Upsample", held=[np.array([1, 1, 2, 1.5], np.float32)]),
    "Resize 10": model(10, "Resize", held=[np.array([1, 1, 0.5, 2], np.float32)]),
    "Resize 10 linear": model(10, "Resize", held=[np.array([1, 1, 2, 2], np.float32)], mode="linear"),
    "GridSample 16": model(16, "GridSample", [X, (2, 5, 6, 2)], mode="bilinear"),
    "Flatten 9": model(9, "Flatten", axis=2),
    "PRelu 7": model(7, "PRelu", [X, (3, 1, 1)]),
    "Gemm 7": model(7, "Gemm", [(2, 3), (4, 3), (4,)], transB=1, alpha=0.5),
    "LSTM 7": model(7, "LSTM", [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32)], hidden_size=4),
    "GRU 7": model(7, "GRU", [(5, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24)], hidden_size=4, linear_before_reset=1),
    "ArgMax 11": model(11, "ArgMax", axis=1, keepdims=0),
    "Cast 9": model(9, "Cast", to=TensorProto.INT64),
    "AveragePool 10": model(10, "AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1, strides=[2, 2]),
    "ConstantOfShape 9": model(9, "ConstantOfShape", [], held=[np.array([2, 3])]),
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_node_and_its_upgrade_compute_the_same(name: str) -> None:
    old, new = both(OLD[name])
    assert old.keys() == new.keys()
    for key in old:
        assert old[key].shape == new[key].shape
        np.testing.assert_allclose(old[key], new[key], rtol=2e-6, atol=1e-6, err_msg=key)


def test_group_normalization_of_opset_18_repeats_its_scale_for_every_channel() -> None:
    data = model(18, "GroupNormalization", [(2, 4, 3), (2,), (2,)], num_groups=2)
    graph = read(data)
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    scale, bias = np.array([2, 3], np.float32), np.array([0.5, -1], np.float32)
    (found,) = run(dump(graph), {"x0": x, "x1": scale, "x2": bias}).values()
    rows = x.reshape(2, 2, 6)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    wanted = normal.reshape(2, 2, 2, 3) * scale[:, None, None] + bias[:, None, None]
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-5, atol=1e-5)


def test_batch_normalization_with_own_statistics_at_every_place_is_spelled_out() -> None:
    data = model(8, "BatchNormalization", [(2, 3, 4), (3, 4), (3, 4), (3, 4), (3, 4)], spatial=0)
    generator = np.random.default_rng(0)
    given = {f"x{i}": generator.random((2, 3, 4) if i == 0 else (3, 4), np.float32) for i in range(5)}
    (found,) = run(dump(read(data)), given).values()
    x, scale, bias, mean, variance = given.values()
    np.testing.assert_allclose(found, (x - mean) / np.sqrt(variance + 1e-5) * scale + bias, rtol=1e-5, atol=1e-5)


def test_scatter_became_scatter_elements() -> None:
    node = helper.make_node("Scatter", ["x", "i", "u"], ["y"], axis=1)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
        helper.make_tensor_value_info("i", TensorProto.INT64, (2, 1)),
        helper.make_tensor_value_info("u", TensorProto.FLOAT, (2, 1)),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4).SerializeToString()
    old, new = both(data)
    np.testing.assert_array_equal(old["y"], new["y"])


def test_a_model_older_than_opset_7_says_what_to_do() -> None:
    with pytest.raises(BadGraph, match=r"opset 6.*newer opset"):
        read(model(6, "Relu"))


def test_batch_normalization_that_updates_statistics_in_place_is_refused() -> None:
    with pytest.raises(BadGraph, match="training mode"):
        read(model(9, "BatchNormalization", [X, (3,), (3,), (3,), (3,)], outputs=5))


def test_an_old_node_that_its_own_opset_would_refuse_is_told() -> None:
    for bad in (model(9, "Slice", starts=["a"], ends=[1]), model(7, "Clip", [], min=0.0), model(11, "Softmax", axis=9)):
        with pytest.raises(BadGraph, match="node"):
            read(bad)


def test_an_opset_from_the_future_says_what_is_known() -> None:
    with pytest.raises(BadGraph, match=r"opset 999, expected opset 7 to"):
        read(model(999, "Relu"))
