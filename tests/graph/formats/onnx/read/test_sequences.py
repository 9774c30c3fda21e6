"""Ops on sequences become ops on tensors; onnx.reference, which has sequences, says what they compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.ir import Graph

X = np.arange(24, dtype=np.float32).reshape(4, 6)
SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
node = helper.make_node


def model(nodes: list[NodeProto], held: dict[str, np.ndarray] | None = None, dtype: int = TensorProto.FLOAT) -> bytes:
    """x [4,6] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(array, name) for name, array in (held or {}).items()],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return data


def check(data: bytes) -> Graph:
    """The graph, which computes what the file does."""
    graph = load(data)
    (expected,) = ReferenceEvaluator(onnx.load_from_string(data)).run(None, {"x": X})
    found = execute(graph, {"x": X}).outputs["y"]
    assert np.array_equal(found, expected) and found.dtype == expected.dtype
    return graph


def integers(*values: int) -> np.ndarray:
    return np.array(values if len(values) != 1 else values[0])


@pytest.mark.parametrize(
    ("sizes", "options", "place"),
    [
        (None, {"axis": 0}, 2),
        (None, {"axis": 1, "keepdims": 0}, -1),
        (integers(4), {"axis": 1}, 1),
        (integers(1, 3), {"axis": 0}, 1),
    ],
)
def test_an_element_of_a_split_is_a_part(sizes: np.ndarray | None, options: dict[str, int], place: int) -> None:
    held = {"place": integers(place)} | ({} if sizes is None else {"sizes": sizes})
    parts = node("SplitToSequence", ["x"] if sizes is None else ["x", "sizes"], ["parts"], **options)
    graph = check(model([parts, node("SequenceAt", ["parts", "place"], ["y"])], held))
    assert {n.op for n in graph.nodes} <= {"Split", "Squeeze", "Identity"}


def test_built_sequences_are_concatenated() -> None:
    for new_axis in (0, 1):
        nodes = [
            node("Neg", ["x"], ["n"]),
            node("SequenceEmpty", [], ["none"]),
            node("SequenceInsert", ["none", "x"], ["one"]),
            node("SequenceInsert", ["one", "n", "zero"], ["two"]),
            node("SequenceConstruct", ["x", "n"], ["pair"]),
            node("SequenceErase", ["pair", "zero"], ["rest"]),
            node("SequenceAt", ["rest", "zero"], ["last"]),
            node("SequenceInsert", ["two", "last"], ["three"]),
            node("Identity", ["three"], ["same"]),
            node("ConcatFromSequence", ["same"], ["y"], axis=1, new_axis=new_axis),
        ]
        check(model(nodes, {"zero": integers(0)}))
    length = [node("SplitToSequence", ["x"], ["parts"]), node("SequenceLength", ["parts"], ["y"])]
    check(model(length, dtype=TensorProto.INT64))


def loop_body() -> GraphProto:
    """Adds x times the iteration to the sequence, and stacks it."""
    nodes = [
        node("CastLike", ["i", "x"], ["factor"]),
        node("Mul", ["x", "factor"], ["product"]),
        node("SequenceInsert", ["before", "product"], ["after"]),
        node("Identity", ["going"], ["still"]),
        node("Neg", ["product"], ["row"]),
    ]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        helper.make_value_info("before", SEQUENCE),
    ]
    outputs = [
        helper.make_tensor_value_info("still", TensorProto.BOOL, []),
        helper.make_value_info("after", SEQUENCE),
        helper.make_tensor_value_info("row", TensorProto.FLOAT, X.shape),
    ]
    return helper.make_graph(nodes, "body", inputs, outputs)


def looped(held: dict[str, np.ndarray], trips: str = "trips") -> bytes:
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", [trips, "yes", "none"], ["all", "rows"], body=loop_body()),
        node("ConcatFromSequence", ["all"], ["joined"], axis=0),
        node("ReduceSum", ["rows"], ["sum"], keepdims=0),
        node("Add", ["joined", "sum"], ["y"]),
    ]
    return model(nodes, {**held, "yes": np.array(True)})


def test_a_loop_that_carries_a_sequence_is_unrolled() -> None:
    graph = check(looped({"trips": integers(3)}))
    assert sum(n.op == "Mul" for n in graph.nodes) == 3
    assert not any(n.op in ("Loop", "CastLike") for n in graph.nodes)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("SequenceConstruct", ["x"], ["y"])], "output 'y' is or reads a sequence"),
        ([node("SequenceConstruct", ["x"], ["s"]), node("Relu", ["s"], ["y"])], "Relu 'y' is or reads a sequence"),
        ([node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "far"], ["y"])], "position 7 of 1"),
        ([node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "x"], ["y"])], "not constant"),
        ([node("SequenceAt", ["x", "far"], ["y"])], "tensors are not known"),
        ([node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)], "empty sequence"),
        ([node("SplitToSequence", ["x"], ["s"], axis=5), node("SequenceAt", ["s", "far"], ["y"])], "axis 5"),
    ],
)
def test_a_sequence_that_cannot_be_read_is_named(nodes: list[NodeProto], message: str) -> None:
    with pytest.raises(BadGraph, match=message):
        load(model(nodes, {"far": integers(7)}))


def test_a_loop_over_a_sequence_needs_a_constant_trip_count() -> None:
    nodes = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Cast", ["s"], ["n"], to=TensorProto.INT64)]
    data = onnx.load_from_string(looped({}, "n"))
    loop = list(data.graph.node)
    del data.graph.node[:]
    data.graph.node.extend([*nodes, *loop])
    with pytest.raises(BadGraph, match="constant trip count"):
        load(data.SerializeToString())


def test_a_cast_to_the_type_of_another_value_is_a_constant() -> None:
    """Lengths cast like an activation are known."""
    nodes = [node("CastLike", ["half", "x"], ["limit"]), node("Range", ["zero", "limit", "one"], ["y"])]
    held = {"half": np.array(3), "zero": np.float32(0), "one": np.float32(1)}
    graph = check(model(nodes, {name: np.asarray(array) for name, array in held.items()}))
    assert not graph.nodes or graph.nodes[-1].op in ("Identity", "Range")
