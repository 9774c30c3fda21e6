"""Paddle programs: the protobuf and the JSON form, roles, checkpoints, distribution, further blocks, and refusals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.paddle_program import MESHES, Program, transformer
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.native.writer import content_hash
from graph.formats.paddle.proto import program_of
from graph.formats.paddle.writer import checkpoints_of
from graph.formats.readers import import_warnings, importer_of, load
from graph.formats.writers import dump
from graph.ir import Graph, Phase, Role
from graph.limits import Limits, ShapeOverrides
from graph.training.device_mesh import check_mesh
from graph.training.step import training_step
from graph.transforms.structural_equality import difference
from tests.graph.formats.damaged import damaged
from tests.graph.formats.mxnet.test_reader import _document

SMALL = {"blocks": 2, "batch": 2, "tokens": 8, "width": 8, "heads": 2, "words": 16}


def small(**more: Any) -> bytes:
    return transformer(**(SMALL | more))


def types(graph: Graph) -> dict[str, str]:
    return {value.name: str(value.type) for value in graph.values}


def test_a_program_is_recognised_and_read_with_its_types() -> None:
    data = small()
    assert importer_of(data) == "paddle"
    graph = load(data)
    role = {value.name: value.role for value in graph.values}
    assert role["ids"] is Role.INPUT and role["b0.q.w"] is Role.PARAMETER
    assert types(graph)["block1.out"] == "float32[2,8,8]" and types(graph)["loss"] == "float32[1]"


def test_checkpoints_are_read_and_written() -> None:
    graph = load(small(blocks=4))
    assert list(graph.annotations["checkpoints"]) == [f"block{k}.out" for k in range(4)]
    again = load(dump(graph, "paddle", checkpoints=["block1.out"]))
    assert list(again.annotations["checkpoints"]) == ["block1.out"]
    with pytest.raises(BadGraph, match="nobody"):
        dump(graph, "paddle", checkpoints=["nobody"])


def test_distribution_over_a_mesh_of_two_dimensions_is_consistent() -> None:
    graph = load(small())
    check_mesh(graph)
    weight = next(value for value in graph.values if value.name == "b0.up.w")
    assert weight.annotations["process_mesh"] == MESHES and list(weight.annotations["dims_mapping"]) == [-1, 1]
    assert all(node.annotations["process_mesh"] == MESHES for node in graph.nodes)


def test_a_program_read_and_written_is_the_same_file() -> None:
    data = small()
    assert dump(load(data), "paddle") == data
    assert content_hash(load(dump(load(data), "paddle"))) == content_hash(load(data))


def test_a_transformer_learns() -> None:
    """The step of a program computes a loss near that of a guess."""
    step, _ = training_step(load(small(dropout=0.0, spread=False)), "loss")
    chance = np.random.default_rng(0)
    feeds = {}
    for value in step.values:
        if value.role in (Role.INPUT, Role.PARAMETER) and value.type is not None:
            real = value.type.dtype == "float32"
            shape = value.type.shape
            feeds[value.name] = (
                chance.normal(0, 0.1, shape).astype(np.float32) if real else chance.integers(0, 16, shape)
            )
    found = execute(step, feeds).outputs
    loss = next(np.asarray(found[key]) for key in found if np.asarray(found[key]).size == 1)
    assert abs(float(loss.reshape(())) - np.log(16)) < 0.3


def test_open_lengths_are_bound_by_the_batch() -> None:
    p = Program()
    p.variable("x", (-1, 4))
    p.variable("w", (4, 3), weight=True)
    p.op("mul", ["x", "w"], (-1, 3))
    data = p.message.SerializeToString()
    assert types(load(data, shapes=ShapeOverrides(batch=7)))["mul_1.tmp_0"] == "float32[7,3]"
    assert types(load(data, shapes=ShapeOverrides(inputs={"x": (5, 4)})))["mul_1.tmp_0"] == "float32[5,3]"
    with pytest.raises(BadGraph, match="'x'"):
        load(data)


def test_roles_of_ops_are_phases() -> None:
    p = Program()
    p.variable("x", (2, 4))
    p.variable("w", (4, 3), weight=True)
    y = p.op("mul", ["x", "w"], (2, 3))
    p.op("mean", [y], (1,), name="loss")
    p.op("fill_constant", [], (1,), name="loss@GRAD", shape=[1], value=1.0)
    p.op("mean_grad", [y, "loss@GRAD"], (2, 3), name="y@GRAD")
    p.op("mul_grad", ["x", "w", "y@GRAD"], (4, 3), name="w@GRAD")
    p.op("sgd", ["w", "w@GRAD"], (4, 3), name="w2")
    for op, role in zip(p.block.ops, (0, 256, 257, 1, 1, 2), strict=True):
        next(a for a in op.attrs if a.name == "op_role").i = role
    graph = load(p.message.SerializeToString())
    phases = {node.name: node.phase for node in graph.nodes}
    assert phases["loss"] is Phase.FORWARD and phases["loss@GRAD"] is phases["w@GRAD"] is Phase.BACKWARD
    assert phases["w2"] is Phase.UPDATE
    assert dump(graph, "paddle") == p.message.SerializeToString(deterministic=True)


def _branch() -> Any:
    """y = 2x if c else x, the way `cond` writes it, and x doubled while i < n."""
    p = Program()
    p.variable("x", (3,))
    p.variable("c", (1,), dtype=0)
    p.variable("y", (3,))
    outer = p.block.ops.add(type="conditional_block")
    outer.inputs.add(parameter="Cond", arguments=["c"])
    outer.inputs.add(parameter="Input", arguments=["x"])
    outer.outputs.add(parameter="Out", arguments=["y"])
    outer.attrs.add(name="sub_block", type=8, block_idx=1)
    inner = p.message.blocks.add(idx=1, parent_idx=0).ops.add(type="scale")
    inner.inputs.add(parameter="X", arguments=["x"])
    inner.outputs.add(parameter="Out", arguments=["y"])
    inner.attrs.add(name="scale", type=1, f=2.0)
    return p


def test_a_conditional_block_is_an_if() -> None:
    p = _branch()
    graph = load(p.message.SerializeToString())
    assert graph.nodes[-1].op == "If"
    x = np.ones(3, np.float32)
    (y,) = execute(graph, {"x": x, "c": np.array([True])}).outputs.values()
    np.testing.assert_array_equal(y, [2, 2, 2])
    assert content_hash(load(dump(graph, "paddle"))) == content_hash(graph)


def add_doubling_loop(p: Program) -> None:
    """Double `x` while it is below `most`."""
    p.op("less_than", ["x", "most"], (1,), name="go")
    p.block.vars[-1].type.lod_tensor.tensor.data_type = 0
    loop = p.block.ops.add(type="while")
    loop.inputs.add(parameter="X", arguments=["x", "most"])
    loop.inputs.add(parameter="Condition", arguments=["go"])
    loop.outputs.add(parameter="Out", arguments=["x", "go"])
    loop.attrs.add(name="sub_block", type=8, block_idx=1)
    body = p.message.blocks.add(idx=1, parent_idx=0)
    double = body.ops.add(type="scale")
    double.inputs.add(parameter="X", arguments=["x"])
    double.outputs.add(parameter="Out", arguments=["x"])
    double.attrs.add(name="scale", type=1, f=2.0)
    ask = body.ops.add(type="less_than")
    ask.inputs.add(parameter="X", arguments=["x"])
    ask.inputs.add(parameter="Y", arguments=["most"])
    ask.outputs.add(parameter="Out", arguments=["go"])


def test_a_while_block_is_a_loop() -> None:
    p = Program()
    p.variable("x", (1,))
    p.variable("most", (1,))
    add_doubling_loop(p)
    end = p.block.ops.add(type="scale")
    end.inputs.add(parameter="X", arguments=["x"])
    end.outputs.add(parameter="Out", arguments=["z"])
    graph = load(p.message.SerializeToString())
    (z,) = execute(graph, {"x": np.ones(1, np.float32), "most": np.array([10], np.float32)}).outputs.values()
    np.testing.assert_array_equal(z, [16])


def test_a_block_that_holds_itself_is_refused() -> None:
    p = _branch()
    p.block.ops[0].attrs[0].block_idx = 0
    with pytest.raises(BadGraph) as caught:
        load(p.message.SerializeToString())
    assert caught.value.findings[0].code == "bad_body"


def _pir() -> dict[str, Any]:
    """y = relu(x · w) reshaped, in the newer form."""

    def type(*dims: int, dtype: str = "t_f32") -> dict[str, Any]:
        return {"#": "0.t_dtensor", "D": [{"#": f"0.{dtype}"}, list(dims), "NCHW", [], 0]}

    def attribute(name: str, kind: str, data: Any) -> dict[str, Any]:
        return {"N": name, "AT": {"#": f"0.{kind}", "D": data}}

    ints = [{"#": "0.a_i64", "D": n} for n in (4, 1, 3)]
    ops = [
        {"#": "p", "A": [0, 1, 1, "w"], "DA": [], "QA": [], "O": {"%": 1, "TT": type(5, 3)}, "OA": [1, 0, 1]},
        {"#": "1.data", "A": [attribute("name", "a_str", "x")], "I": [], "O": [{"%": 2, "TT": type(-1, 5)}]},
        {
            "#": "1.matmul",
            "A": [attribute("transpose_x", "a_bool", False), attribute("transpose_y", "a_bool", False)],
            "I": [{"%": 2}, {"%": 1}],
            "O": [{"%": 3, "TT": type(-1, 3)}],
        },
        {"#": "1.relu_", "A": [], "I": [{"%": 3}], "O": [{"%": 4, "TT": type(-1, 3)}]},
        {
            "#": "1.full_int_array",
            "A": [attribute("value", "a_array", ints)],
            "I": [],
            "O": [{"%": 5, "TT": type(3, dtype="t_i64")}],
        },
        {"#": "1.reshape", "A": [], "I": [{"%": 4}, {"%": 5}], "O": [{"%": 6, "TT": type(4, 1, 3)}]},
        {
            "#": "1.fetch",
            "A": [attribute("name", "a_str", "out")],
            "I": [{"%": 6}],
            "O": [{"%": 7, "TT": type(4, 1, 3)}],
        },
    ]
    return {
        "base_code": {"magic": "pir", "version": 1, "trainable": True},
        "program": {"regions": [{"#": "region_0", "blocks": [{"#": "block_0", "args": [], "ops": ops}]}]},
    }


def test_the_newer_form_is_read() -> None:
    data = json.dumps(_pir()).encode()
    assert importer_of(data) == "paddle"
    graph = load(data, shapes=ShapeOverrides(batch=4))
    assert [n.op for n in graph.nodes if n.op in ("MatMul", "Relu", "Reshape")] == ["MatMul", "Relu", "Reshape"]
    assert [types(graph)[graph.values[v].name] for v in graph.outputs] == ["float32[4,1,3]"]
    assert {value.name: value.role for value in graph.values}["w"] is Role.PARAMETER


def test_the_newer_form_is_written_again() -> None:
    data = json.dumps(_pir()).encode()
    graph = load(data, shapes=ShapeOverrides(batch=4))
    written = dump(graph, "paddle")
    assert json.loads(written) == _pir()
    marked = dump(graph, "paddle", checkpoints=["relu_4"])
    assert list(load(marked, shapes=ShapeOverrides(batch=4)).annotations["checkpoints"]) == ["relu_4"]


def test_a_graph_from_elsewhere_is_written_in_paddles_words() -> None:
    document = _document()
    document["nodes"][0] |= {"op": "MatMul", "attributes": {}}
    document["values"][1]["shape"] = [6, 5]
    document["values"][0]["annotations"] = {"process_mesh": [[0, 1], [2, 3]], "dims_mapping": [0, -1]}
    graph = load(json.dumps(document).encode())
    again = load(dump(graph, "paddle"))
    assert difference(graph, again) is None
    assert next(v for v in again.values if v.name == "x").annotations == graph.values[0].annotations


def test_without_a_plan_the_checkpoints_are_those_noted() -> None:
    assert checkpoints_of(load(small())) == ["block0.out", "block1.out"]


@given(st.data())
def test_damaged_files_are_refused_or_read_but_never_break(data: st.DataObject) -> None:
    raw = damaged(data, data.draw(st.sampled_from([_BINARY, _JSON])))
    try:
        load(raw, Limits(depth=16), ShapeOverrides(batch=2))
    except BadGraph as error:
        assert error.findings


_BINARY, _JSON = small(blocks=1), json.dumps(_pir()).encode()


def test_messages_are_read_whole() -> None:
    assert len(program_of(_BINARY).blocks) == 1


def test_an_input_that_no_rule_takes_leaves_the_op_opaque_with_a_warning() -> None:
    p = Program()
    p.variable("x", (2, 4))
    p.variable("limit", (1,))
    y = p.op("clip", ["x"], (2, 4), min=0.0, max=1.0)
    p.op("relu", [y], (2, 4))
    assert [node.op for node in load(p.message.SerializeToString()).nodes] == ["Clip", "Relu"]
    p.block.ops[0].inputs.add(parameter="Max", arguments=["limit"])
    graph = load(p.message.SerializeToString())
    assert [node.op for node in graph.nodes] == ["paddle::clip", "Relu"]
    assert [graph.values[v].name for v in graph.nodes[0].inputs] == ["x", "limit"]
    (warning,) = import_warnings(graph)
    assert "input 'Max'" in warning
