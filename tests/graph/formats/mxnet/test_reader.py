"""MXNet symbols: every spelling, shapes of weights, mirroring, nested symbols, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.mxnet_symbols import Symbols
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.native.writer import content_hash
from graph.formats.readers import importer_of, load
from graph.formats.writers import dump
from graph.ir import Graph, Role
from graph.limits import Limits, ShapeOverrides
from graph.training.step import training_step
from graph.transforms.structural_equality import difference
from tests.graph.formats.damaged import damaged
from tests.graph.formats.mxnet.symbols import lenet


def computed(graph: Graph, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs in order."""
    found = execute(graph, given).outputs
    return [np.asarray(found[graph.values[v].name]) for v in graph.outputs]


def types(graph: Graph) -> dict[str, str]:
    return {value.name: str(value.type) for value in graph.values if value.role is not Role.CONSTANT}


@pytest.mark.parametrize("spelling", ["attrs", "attr", "param"])
def test_attributes_are_read_in_every_spelling(spelling: str) -> None:
    graph = load(lenet(spelling), shapes=ShapeOverrides(batch=32))
    assert [n.op for n in graph.nodes if n.op in ("Conv", "Gemm", "MaxPool")] == ["Conv", "MaxPool", "Gemm"]
    assert types(graph)["softmax_output"] == "float32[32,10]"


def test_shapes_of_weights_follow_from_the_ops_that_read_them() -> None:
    found = types(load(lenet(), shapes=ShapeOverrides(batch=8)))
    assert found["conv1_weight"] == "float32[20,1,5,5]" and found["bn1_moving_var"] == "float32[20]"
    assert found["fc1_weight"] == "float32[10,2880]" and found["softmax_label"] == "float32[8]"


def test_places_and_names_tell_inputs_weights_and_states() -> None:
    graph = load(lenet(), shapes=ShapeOverrides(batch=8))
    role = {value.name: value.role for value in graph.values}
    assert role["data"] is role["softmax_label"] is Role.INPUT
    assert role["conv1_weight"] is role["bn1_gamma"] is Role.PARAMETER
    assert role["bn1_moving_mean"] is Role.STATE


def test_the_caller_says_shapes_a_file_leaves_open() -> None:
    graph = load(lenet(__dtype__=2), shapes=ShapeOverrides(inputs={"data": (4, 1, 28, 28)}))
    assert types(graph)["data"] == "float16[4,1,28,28]" and types(graph)["fc1_weight"] == "float16[10,2880]"


def test_a_layout_says_where_the_batch_is() -> None:
    s = Symbols()
    x = s.variable("data", __shape__="(7, 0, 3)", __layout__="TNC")
    graph = load(s.data(s.op("relu", "r", x)), shapes=ShapeOverrides(batch=5))
    assert types(graph)["data"] == "float32[7,5,3]"


def test_mirroring_attributes_become_recompute_and_are_written_again() -> None:
    graph = load(lenet(), shapes=ShapeOverrides(batch=8))
    asked = {node.name: node.recompute for node in graph.nodes}
    assert asked["bn1"] == "prefer" and asked["act1"] == "never" and asked["conv1"] is None
    nodes = {node["name"]: node for node in json.loads(dump(graph, "mxnet"))["nodes"]}
    assert nodes["bn1"]["attrs"]["force_mirroring"] == "True"
    assert nodes["act1"]["attrs"]["force_mirroring"] == "False"
    assert "force_mirroring" not in nodes["conv1"].get("attrs", {})


def test_a_file_read_and_written_is_read_as_the_same_graph() -> None:
    graph = load(lenet(), shapes=ShapeOverrides(batch=8))
    again = load(dump(graph, "mxnet"))
    assert content_hash(again) == content_hash(graph)


def test_a_training_step_is_written_as_its_forward_part() -> None:
    graph = load(lenet(), shapes=ShapeOverrides(batch=8))
    step, _ = training_step(graph)
    written = json.loads(dump(step, "mxnet"))
    assert [node["name"] for node in written["nodes"] if node["op"] != "null"] == [
        "conv1",
        "bn1",
        "act1",
        "pool1",
        "fc1",
        "softmax",
    ]


def test_control_dependencies_are_kept() -> None:
    s = Symbols()
    x = s.variable("x", __shape__="(3,)")
    a = s.op("exp", "a", x)
    b = s.op("tanh", "b", x, control_deps=[a[0]])
    graph = load(s.data(a, b))
    assert graph.nodes[1].after == (0,)


def test_several_outputs_are_named_as_mxnet_lists_them() -> None:
    s = Symbols()
    cut = s.op("SliceChannel", "cut", s.variable("x", __shape__="(2, 6)"), num_outputs=3)
    graph = load(s.data([cut[0], 0, 0], [cut[0], 2, 0]))
    assert [graph.values[v].name for v in graph.outputs] == ["cut_output0", "cut_output2"]
    assert types(graph)["cut_output1"] == "float32[2,2]"


def test_an_unknown_op_is_opaque_where_a_compiled_graph_lists_its_shape() -> None:
    s = Symbols()
    symbol = s.symbol(s.op("MyOp", "mine", s.variable("x"), power=3))
    symbol["attrs"] = {"shape": ["list_shape", [[4, 2], [4, 9]]], "dtype": ["list_int", [0, 0]]}
    graph = load(json.dumps(symbol).encode())
    assert graph.nodes[0].op == "mxnet::MyOp" and graph.nodes[0].attributes["power"] == "3"
    assert types(graph)["mine_output"] == "float32[4,9]"
    assert json.loads(dump(graph, "mxnet"))["nodes"][1]["op"] == "MyOp"


def test_values_without_a_shape_are_listed() -> None:
    s = Symbols()
    a, b = s.op("MyOp", "mine", s.variable("x", __shape__="(2,)")), s.op("exp", "e", s.variable("y"))
    with pytest.raises(BadGraph) as caught:
        load(s.data(s.op("elemwise_add", "z", a, b)))
    assert {finding.code for finding in caught.value.findings} == {"unknown_size"}
    assert "mine_output" in str(caught.value) and "'y'" in str(caught.value)


def _scan() -> dict[str, Any]:
    """state' = state · w + element; what is emitted is the new state."""
    inner = Symbols()
    x, h, w = inner.variable("x"), inner.variable("h"), inner.variable("w")
    new = inner.op("broadcast_add", "new", inner.op("broadcast_mul", "scaled", h, w), x)
    return inner.symbol(new, new)


def test_foreach_is_a_scan() -> None:
    s = Symbols()
    xs, h, w = (s.variable(n, __shape__=d) for n, d in (("xs", "(5, 3)"), ("h0", "(3,)"), ("w", "(3,)")))
    loop = s.op(
        "_foreach",
        "loop",
        xs,
        h,
        w,
        subgraphs=[_scan()],
        num_args=4,
        num_outputs=2,
        num_out_data=1,
        in_data_locs="(0,)",
        in_state_locs="(1,)",
        remain_locs="(2,)",
    )
    graph = load(s.data([loop[0], 0, 0], [loop[0], 1, 0]))
    (node,) = graph.nodes
    assert node.op == "Scan" and types(graph)["loop_output0"] == "float32[5,3]" == types(graph)["loop_output0"]
    assert types(graph)["loop_output1"] == "float32[3]"
    chance = np.random.default_rng(0)
    given = {"xs": chance.random((5, 3)), "h0": chance.random(3), "w": chance.random(3)}
    given = {name: array.astype(np.float32) for name, array in given.items()}
    h, rows = given["h0"], []
    for x in given["xs"]:
        h = h * given["w"] + x
        rows.append(h)
    stacked, last = computed(graph, given)
    np.testing.assert_allclose(stacked, rows, rtol=1e-6)
    np.testing.assert_allclose(last, h, rtol=1e-6)
    assert content_hash(load(dump(graph, "mxnet"))) == content_hash(graph)


def test_while_loop_asks_before_and_after_each_trip() -> None:
    less, step = Symbols(), Symbols()
    cond = less.symbol(less.op("_lesser_scalar", "lt", less.variable("i"), scalar=4))
    i, x = step.variable("i"), step.variable("x")
    body = step.symbol(x, step.op("_plus_scalar", "next", i, scalar=1), step.op("_mul_scalar", "twice", x, scalar=2))
    s = Symbols()
    i0, x0 = s.variable("i0", __shape__="(1,)"), s.variable("x0", __shape__="(3,)")
    loop = s.op(
        "_while_loop",
        "loop",
        i0,
        x0,
        subgraphs=[cond, body],
        num_args=4,
        num_outputs=3,
        num_out_data=1,
        max_iterations=6,
        cond_input_locs="(0,)",
        func_input_locs="(0, 1)",
        func_var_locs="(0, 1)",
    )
    graph = load(s.data([loop[0], 0, 0], [loop[0], 1, 0], [loop[0], 2, 0]))
    assert [node.op for node in graph.nodes if node.bodies] == ["Loop"]
    assert types(graph)["loop_output0"] == "float32[6,3]"
    given = {"i0": np.array([1], np.float32), "x0": np.ones(3, np.float32)}
    rows, count, doubled = computed(graph, given)  # i = 1, 2, 3
    np.testing.assert_array_equal(rows[:3], [[1] * 3, [2] * 3, [4] * 3])
    assert count == [4] and list(doubled) == [8, 8, 8]


def test_cond_is_an_if() -> None:
    def branch(op: str) -> dict[str, Any]:
        inner = Symbols()
        return inner.symbol(inner.op(op, "y", inner.variable("x")))

    asked = Symbols()
    cond = asked.symbol(asked.op("_greater_scalar", "gt", asked.variable("p"), scalar=0))
    s = Symbols()
    p, x = s.variable("p", __shape__="(1,)"), s.variable("x", __shape__="(3,)")
    out = s.op(
        "_cond",
        "pick",
        p,
        x,
        subgraphs=[cond, branch("exp"), branch("tanh")],
        num_outputs=1,
        cond_input_locs="(0,)",
        then_input_locs="(1,)",
        else_input_locs="(1,)",
    )
    graph = load(s.data(out))
    assert graph.nodes[-1].op == "If" and set(graph.nodes[-1].bodies) == {"then_branch", "else_branch"}
    assert types(graph)["pick_output"] == "float32[3]"
    x = np.array([0.5, 1, 2], np.float32)
    for p, function in ((1, np.exp), (-1, np.tanh)):
        (found,) = computed(graph, {"p": np.array([p], np.float32), "x": x})
        np.testing.assert_allclose(found, function(x), rtol=1e-6)


def _document() -> dict[str, Any]:
    return {
        "format": "remat/1",
        "name": "",
        "opset": {"": 21},
        "values": [
            {"name": "x", "shape": [4, 6], "dtype": "float32", "role": "input"},
            {"name": "w_weight", "shape": [5, 6], "dtype": "float32", "role": "parameter"},
            {"name": "axes", "shape": [1], "dtype": "int64", "role": "constant", "data": "AQAAAAAAAAA="},
        ],
        "nodes": [
            {"name": "fc", "op": "Gemm", "inputs": ["x", "w_weight"], "outputs": ["h"], "attributes": {"transB": 1}},
            {"name": "act", "op": "Tanh", "inputs": ["h"], "outputs": ["a"], "recompute": "prefer"},
            {"name": "sum", "op": "Add", "inputs": ["h", "a"], "outputs": ["s"]},
            {
                "name": "mean",
                "op": "ReduceMean",
                "inputs": ["s", "axes"],
                "outputs": ["y"],
                "attributes": {"keepdims": 1},
            },
        ],
        "outputs": ["y"],
    }


def test_a_graph_from_elsewhere_is_written_in_mxnets_words() -> None:
    graph = load(json.dumps(_document()).encode())
    again = load(dump(graph, "mxnet"))
    assert difference(graph, again) is None
    assert {node.name: node.recompute for node in again.nodes} == {node.name: node.recompute for node in graph.nodes}


def test_what_mxnet_has_no_words_for_is_named() -> None:
    document = _document()
    document["nodes"][1]["op"] = "acme::Odd"
    document["values"].append({"name": "a", "shape": [4, 5], "dtype": "float32"})
    graph = load(json.dumps(document).encode())
    with pytest.raises(BadGraph) as caught:
        dump(graph, "mxnet")
    assert caught.value.findings[0].code == "not_representable" and "acme::Odd" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d["nodes"][3].update(inputs=[[99, 0, 0]]), "undefined_value"),
        (lambda d: d["nodes"][3].update(inputs=[[3, 0, 0]]), "undefined_value"),
        (lambda d: d["nodes"][3].update(inputs=[[0]]), "undefined_value"),
        (lambda d: d["nodes"][3].update(inputs=[["a", 0]]), "not_a_model"),
        (lambda d: d["nodes"][3].update(control_deps=[7]), "unknown_node"),
        (lambda d: d["nodes"][3].update(inputs=[[0, 5, 0], [1, 0, 0], [2, 0, 0]]), "undefined_value"),
        (lambda d: d["nodes"][3]["attrs"].update(kernel="five"), "bad_attribute"),
        (lambda d: d["nodes"][0]["attrs"].update(__shape__="(a, b)"), "bad_attribute"),
        (lambda d: d["nodes"][0]["attrs"].update(__dtype__="words"), "unknown_dtype"),
        (lambda d: d.update(heads=[[1000, 0, 0]]), "undefined_value"),
        (lambda d: d.update(nodes=3), "not_a_model"),
        (lambda d: d["nodes"][3].update(op="_foreach", subgraphs=[{"nodes": [], "heads": []}]), "bad_body"),
    ],
)
def test_a_broken_symbol_is_refused_by_name(change: Any, code: str) -> None:
    symbol = json.loads(lenet())
    change(symbol)
    with pytest.raises(BadGraph) as caught:
        load(json.dumps(symbol).encode(), shapes=ShapeOverrides(batch=2))
    assert caught.value.findings[0].code == code


def test_unknown_inputs_and_names_of_dimensions_are_refused() -> None:
    with pytest.raises(BadGraph, match="expected one of"):
        load(lenet(), shapes=ShapeOverrides(inputs={"nobody": (1,)}))
    with pytest.raises(BadGraph, match="are numbers"):
        load(lenet(), shapes=ShapeOverrides(dims={"N": 1}))


def test_nested_symbols_have_a_depth() -> None:
    inner = _scan()
    for _ in range(5):
        s = Symbols()
        x, h, w = s.variable("x"), s.variable("h"), s.variable("w")
        loop = s.op(
            "_foreach",
            "loop",
            x,
            h,
            w,
            subgraphs=[inner],
            num_outputs=2,
            num_out_data=1,
            in_data_locs="(0,)",
            in_state_locs="(1,)",
            remain_locs="(2,)",
        )
        inner = s.symbol([loop[0], 0, 0], [loop[0], 1, 0])
    s = Symbols()
    x, h, w = (s.variable(n, __shape__=d) for n, d in (("x", "(2,2,2,2,2,2,3)"), ("h", "(3,)"), ("w", "(3,)")))
    loop = s.op(
        "_foreach",
        "loop",
        x,
        h,
        w,
        subgraphs=[inner],
        num_outputs=2,
        num_out_data=1,
        in_data_locs="(0,)",
        in_state_locs="(1,)",
        remain_locs="(2,)",
    )
    with pytest.raises(BadGraph) as caught:
        load(s.data(loop), Limits(depth=3))
    assert caught.value.findings[0].code == "too_deep"


@given(st.data())
def test_damaged_files_are_refused_or_read_but_never_break(data: st.DataObject) -> None:
    """Bytes changed, cut out and repeated: a graph or a BadGraph, nothing else."""
    raw = damaged(data, lenet(), least=32)
    try:
        load(raw, shapes=ShapeOverrides(batch=2))
    except BadGraph as error:
        assert error.findings


def test_the_format_is_recognised() -> None:
    assert importer_of(lenet()) == "mxnet"
