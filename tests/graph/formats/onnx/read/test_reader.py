"""The reader on real models: nine architectures of the onnx wheel and transformers exported by PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graph.errors import BadGraph
from graph.formats import readers as importers
from graph.ir import Role, TensorType
from graph.limits import ShapeOverrides
from tests.graph.formats.onnx.onnx_runs import both, drawn, read, run

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NINE = sorted(path.name[6:-5] for path in LIGHT.glob("light_*.onnx"))
OURS = Path(__file__).parents[4] / "models"
TRANSFORMERS = ("encoder", "decoder", "gpt")


def light(name: str) -> bytes:
    return (LIGHT / f"light_{name}.onnx").read_bytes()


def ours(name: str) -> bytes:
    return (OURS / f"{name}.onnx").read_bytes()


Held = Mapping[str, np.ndarray]


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], outputs: list[str], held: Held | None = None
) -> bytes:
    """A float model of opset 21."""
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (held or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data: bytes = proto.SerializeToString()
    return data


def test_there_are_nine_light_models() -> None:
    assert len(NINE) == 9


@pytest.mark.parametrize("name", NINE)
def test_a_light_model_has_weights_for_parameters_and_follows_the_batch(name: str) -> None:
    """Its weights are filled by nodes, and its last Reshape was baked for batch 1."""
    data = light(name)
    source = onnx.load_from_string(data).graph
    filled = sum(node.op_type == "ConstantOfShape" for node in source.node)
    one, many = read(data), read(data, batch=16)
    for graph in (one, many):
        roles = Counter(value.role for value in graph.values)
        assert roles[Role.INPUT] == 1
        assert roles[Role.PARAMETER] >= filled
        assert all(value.data is None for value in graph.values if value.role is Role.PARAMETER)
        assert len(graph.nodes) >= len(source.node) - filled
        assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    for small, large in zip(one.values, many.values, strict=True):
        if small.role in (Role.ACTIVATION, Role.INPUT) and small.type != large.type:
            assert small.type is not None and large.type is not None
            assert small.type.shape == (1, *large.type.shape[1:])
            assert large.type.shape[0] == 16
    assert [many.types_of([v])[0].shape[0] for v in (*many.inputs, *many.outputs)] == [16, 16]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_light_model_at_batch_two_computes_each_picture_as_at_batch_one(name: str) -> None:
    from graph.formats.onnx.writer import dump

    one, two = read(light(name)), read(light(name), batch=2)
    given = drawn(two)
    (picture,) = [v for v in one.values if v.role is Role.INPUT]
    (both_rows,) = run(dump(two), given).values()
    for row in range(2):
        (alone,) = run(dump(one), {**given, picture.name: given[picture.name][row : row + 1]}).values()
        np.testing.assert_allclose(both_rows[row : row + 1], alone, rtol=1e-4, atol=1e-6)


def test_densenet121_is_read_at_batch_16() -> None:
    graph = read(light("densenet121"), batch=16)
    assert graph.values[graph.outputs[0]].type == TensorType("float32", (16, 1000, 1, 1))


@pytest.mark.parametrize("lengths", [(1, 1), (2, 8), (3, 48)])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_of_pytorch_computes_what_its_file_says(name: str, lengths: tuple[int, int]) -> None:
    batch, sequence = lengths
    generator = np.random.default_rng(0)
    given = {
        value.name: generator.integers(0, 4 if value.name == "labels" else 2, value.type.shape)
        for value in read(ours(name), dims={"batch": batch, "sequence": sequence}).values
        if value.role is Role.INPUT and value.type is not None
    }
    old, new = both(ours(name), given, dims={"batch": batch, "sequence": sequence})
    assert old.keys() == new.keys()
    for key in old:
        np.testing.assert_allclose(old[key], new[key], rtol=1e-5, atol=1e-6)  # onnxruntime packs weights in the file


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_no_shape_arithmetic_is_left_in_a_transformer(name: str) -> None:
    graph = read(ours(name), dims={"batch": 2, "sequence": 40})
    assert not {"Shape", "Range", "Squeeze", "Constant"} & {node.op for node in graph.nodes}
    integers = [n for n in graph.nodes if "int64" in {t.dtype for t in graph.types_of(n.writes) if t is not None}]
    assert [node.op for node in integers] == (["Reshape"] if name == "decoder" else [])  # of the labels


def test_a_tied_embedding_is_one_parameter_read_twice() -> None:
    graph = read(ours("decoder"), batch=2, dims={"sequence": 48})
    words = graph.value_named("words.weight")
    readers = [node.op for node in graph.nodes if words in node.inputs]
    assert readers == ["Gather", "MatMul"]
    assert {v.name for v in graph.values if v.role is Role.CONSTANT} >= {"unsqueeze_1"}  # rotary frequencies: a buffer


def test_an_unbound_dimension_is_one_error_that_lists_them_all() -> None:
    with pytest.raises(BadGraph) as caught:
        read(ours("encoder"))
    assert [f.path for f in caught.value.findings] == ["dims.batch", "dims.sequence"]
    assert "--dim batch=8, --batch 8, or --input ids=8x8" in str(caught.value)
    with pytest.raises(BadGraph) as caught:
        read(ours("encoder"), batch=4)
    assert [f.path for f in caught.value.findings] == ["dims.sequence"]


@pytest.mark.parametrize(
    "shapes",
    [{"dims": {"batch": 2, "sequence": 8}}, {"batch": 2, "dims": {"sequence": 8}}, {"inputs": {"ids": (2, 8)}}],
)
def test_the_same_shapes_said_in_three_ways_give_the_same_graph(shapes: dict[str, object]) -> None:
    graph = read(ours("decoder"), **shapes)
    other = read(ours("decoder"), inputs={"ids": (2, 8), "labels": (2, 8)})
    assert graph.nodes == other.nodes
    assert [v.type for v in graph.values] == [v.type for v in other.values]


@pytest.mark.parametrize(
    ("shapes", "code", "words"),
    [
        ({"inputs": {"nobody": (2, 8)}}, "unknown_input", "'ids', 'labels'"),
        ({"dims": {"time": 3}}, "unknown_dimension", "'batch', 'sequence'"),
        ({"inputs": {"ids": (2, 8, 1)}}, "wrong_rank", "batchxsequence"),
        ({"inputs": {"ids": (2, 8), "labels": (3, 8)}}, "dimension_conflict", "'batch'"),
        ({"dims": {"batch": 2, "sequence": -1}}, "negative_size", "-1"),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_refused(shapes: dict[str, object], code: str, words: str) -> None:
    with pytest.raises(BadGraph) as caught:
        read(ours("decoder"), **shapes)
    assert caught.value.findings[0].code == code
    assert words in str(caught.value)


def test_every_format_is_found_by_its_bytes() -> None:
    assert importers.importer_of(light("squeezenet")) == "onnx"
    assert len(importers.load(light("squeezenet"), shapes=ShapeOverrides(batch=2)).nodes) == 66


def test_a_reshape_of_a_weight_does_not_follow_the_batch() -> None:
    #   x [1,4,3] ── Add ── y      bias [4] ── Reshape [1,-1,1] ── [1,4,1], at any batch
    nodes = [helper.make_node("Reshape", ["bias", "shape"], ["wide"]), helper.make_node("Add", ["x", "wide"], ["y"])]
    held = {"shape": np.array([1, -1, 1]), "bias": np.ones(4, np.float32)}
    graph = read(model(nodes, {"x": [1, 4, 3]}, ["y"], held), batch=2)
    assert graph.values[graph.value_named("wide")].type == TensorType("float32", (1, 4, 1))
    assert graph.values[graph.outputs[0]].type == TensorType("float32", (2, 4, 3))


@pytest.mark.parametrize("target", [[1, 12], [1, -1], [1, 3, 4], [1, -1, 2]])
def test_a_reshape_baked_for_the_old_batch_follows(target: list[int]) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    graph = read(model(nodes, {"x": [1, 4, 3]}, ["y"], {"shape": np.array(target)}), batch=5)
    wanted = [5, *np.zeros((4, 3)).reshape(target[1:]).shape]
    assert graph.values[graph.outputs[0]].type == TensorType("float32", tuple(wanted))


def test_a_reshape_into_heads_follows_where_it_comes_back() -> None:
    #   x [1,8,6] ── [-1,2,6] ── [1,8,6]: heads and batch are one axis between
    nodes = [helper.make_node("Reshape", ["x", "there"], ["h"]), helper.make_node("Reshape", ["h", "back"], ["y"])]
    held = {"there": np.array([-1, 2, 6]), "back": np.array([1, 8, 6])}
    graph = read(model(nodes, {"x": ["N", 8, 6]}, ["y"], held), batch=3)
    assert graph.values[graph.outputs[0]].type == TensorType("float32", (3, 8, 6))


def test_a_baked_shape_that_cannot_follow_names_node_and_constant() -> None:
    nodes = [helper.make_node("Reshape", ["x", "baked"], ["y"], name="flat")]
    with pytest.raises(BadGraph, match=r"Reshape 'flat'.*constant 'baked' = \[4, 3\]"):
        read(model(nodes, {"x": [1, 4, 3]}, ["y"], {"baked": np.array([4, 3])}), batch=2)


def test_unused_initialisers_leave_no_trace_and_masks_are_constants() -> None:
    mask = np.triu(np.full((3, 3), -np.inf, np.float32), 1)
    held = {"mask": mask, "unused": np.ones(9, np.float32), "w": np.ones((3, 3), np.float32)}
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "mask"], ["y"])]
    graph = read(model(nodes, {"x": [3, 3]}, ["y"], held))
    roles = {value.name: value.role for value in graph.values}
    assert roles == {"x": "input", "w": "parameter", "h": "activation", "mask": "constant", "y": "activation"}
    np.testing.assert_array_equal(graph.values[graph.value_named("mask")].data, mask)


def test_external_data_is_never_opened_and_its_types_are_enough(tmp_path: Path) -> None:
    w = numpy_helper.from_array(np.ones((3, 3), np.float32), "w")
    onnx.external_data_helper.set_external_data(w, str(tmp_path / "nothing.bin"), 0, 36)
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    proto = onnx.load_from_string(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"]))
    proto.graph.initializer.append(w)
    graph = read(proto.SerializeToString())
    assert graph.values[graph.value_named("w")].type == TensorType("float32", (3, 3))
    assert graph.values[graph.value_named("w")].role is Role.PARAMETER


def test_a_shape_in_another_file_is_an_error_at_the_node_that_needs_it() -> None:
    shape = TensorProto(name="shape", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    proto = onnx.load_from_string(model([helper.make_node("Reshape", ["x", "shape"], ["y"])], {"x": [2, 3]}, ["y"]))
    proto.graph.initializer.append(shape)
    with pytest.raises(BadGraph, match="Reshape"):
        read(proto.SerializeToString())


def test_nodes_without_names_get_op_and_index() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"], name="act"),
        helper.make_node("Relu", ["b"], ["c"], name="act"),
        helper.make_node("Relu", ["c"], ["y"], name="Relu_0"),
    ]
    graph = read(model(nodes, {"x": [2]}, ["y"]))
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == 4
    assert names[1] == "act" and names[2] == "Relu_2"


def test_nodes_out_of_order_are_put_in_order() -> None:
    nodes = [helper.make_node("Neg", ["h"], ["y"]), helper.make_node("Relu", ["x"], ["h"])]
    assert [node.op for node in read(model(nodes, {"x": [2]}, ["y"])).nodes] == ["Relu", "Neg"]


def test_weights_listed_as_inputs_in_old_files_are_weights() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = read(model(nodes, {"x": [1, 3], "w": [3, 3]}, ["y"], {"w": np.eye(3, dtype=np.float32)}), batch=4)
    assert graph.values[graph.value_named("w")].type == TensorType("float32", (3, 3))
    assert [graph.values[v].name for v in graph.inputs] == ["x"]
