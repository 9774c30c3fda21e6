"""Functions, branches and loops of ONNX models."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from graph.errors import BadGraph
from graph.formats.onnx.read import load
from graph.ir import Role, TensorType
from graph.limits import Limits, ShapeOverrides
from tests.graph.formats.onnx.onnx_runs import both, read


def written(text: str) -> bytes:
    """A model in ONNX's own text form."""
    data: bytes = parser.parse_model(text).SerializeToString()
    return data


TWO_DEEP = """
<ir_version: 10, opset_import: ["": 21, "f": 1]>
g (float[N, 4] x, float[4] w) => (float[N, 4] y, float[N, 4] z) {
    [first] h = f.scaled <by = 2.0> (x, w)
    [second] y, z = f.pair (h)
}
<domain: "f", opset_import: ["": 12]>
scaled <by> (a, b) => (c) {
    factor = Constant <value_float: float = @by> ()
    part = Mul (a, b)
    soft = Softmax <axis = 1> (part)
    c = Mul (soft, factor)
}
<domain: "f", opset_import: ["": 18, "f": 1]>
pair (a) => (c, d) {
    one = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
    c = f.scaled <by = 0.5> (a, one)
    d = Neg (c)
}
"""


def test_functions_are_inlined_with_their_own_opset_and_attributes() -> None:
    old, new = both(written(TWO_DEEP), dims={"N": 3})
    for key in old:
        np.testing.assert_allclose(old[key], new[key], rtol=1e-6)
    graph = read(written(TWO_DEEP), dims={"N": 3})
    assert [node.op for node in graph.nodes] == ["Mul", "Softmax", "Mul", "Mul", "Softmax", "Mul", "Neg"]
    assert [graph.values[v].name for v in graph.outputs] == ["y", "z"]
    assert all("::" not in node.op for node in graph.nodes)


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21, "f": 1]>
    g (float[4] x) => (float[4] y) { y = f.again (x) }
    <domain: "f", opset_import: ["": 21, "f": 1]>
    again (a) => (b) { b = f.again (a) }
    """
    with pytest.raises(BadGraph, match="call themselves"):
        read(written(text))


def test_functions_that_double_again_and_again_stop_at_the_limit() -> None:
    layers = "".join(
        f'<domain: "f", opset_import: ["": 21, "f": 1]>\n'
        f"f{i} (a) => (c) {{ b = f.f{i + 1} (a)\n c = f.f{i + 1} (b) }}\n"
        for i in range(30)
    )
    text = f"""
    <ir_version: 10, opset_import: ["": 21, "f": 1]>
    g (float[4] x) => (float[4] y) {{ y = f.f0 (x) }}
    {layers}
    <domain: "f", opset_import: ["": 21]>
    f30 (a) => (b) {{ b = Neg (a) }}
    """
    with pytest.raises(BadGraph, match="once functions are inlined"):
        load(written(text), Limits(nodes=1000), ShapeOverrides())


BRANCH = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2, 3] x, float[3] w %s) => (float[2, 3] y) {
    %s
    y = If (c) <
        then_branch = t () => (float[2, 3] a) { a = Mul (x, w) },
        else_branch = e () => (float[2, 3] b) { n = Neg (x)
            b = Add (n, w) }
    >
}
"""


@pytest.mark.parametrize(("size", "ops"), [(6, ["Mul"]), (7, ["Neg", "Add"])])
def test_a_branch_whose_condition_is_known_is_inlined(size: int, ops: list[str]) -> None:
    condition = f"s = Size (x)\n    k = Constant <value_int = {size}> ()\n    c = Equal (s, k)"
    data = written(BRANCH % ("", condition))
    graph = read(data)
    assert [node.op for node in graph.nodes] == ops
    assert [graph.values[v].name for v in graph.outputs] == ["y"]
    old, new = both(data)
    np.testing.assert_array_equal(old["y"], new["y"])


def test_a_branch_whose_condition_is_data_keeps_both_bodies_with_captures() -> None:
    data = written(BRANCH % (", bool c", ""))
    graph = read(data)
    (node,) = graph.nodes
    assert set(node.bodies) == {"then_branch", "else_branch"}
    for body in node.bodies.values():
        outside = {graph.values[outer].name for _, outer in body.captures}
        assert outside == {"x", "w"}
    assert {graph.values[v].name for v in node.reads} == {"c", "x", "w"}
    for condition in (False, True):
        old, new = both(data, {"c": np.array(condition)})
        np.testing.assert_array_equal(old["y"], new["y"])


def test_branches_of_different_shapes_are_refused() -> None:
    data = written(BRANCH.replace("b = Add (n, w)", "b = Concat <axis = 0> (n, n)") % (", bool c", ""))
    with pytest.raises(BadGraph, match=r"float32\[2,3\] in one branch and float32\[4,3\] in the other"):
        read(data)


LOOP = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2, 3] x, float[3] w) => (float[2, 3] y, float[5, 2, 3] all) {
    trips = Constant <value = int64 {5}> ()
    yes = Constant <value = bool {1}> ()
    y, all = Loop (trips, yes, x) <
        body = b (int64 i, bool go, float[2, 3] state) => (bool on, float[2, 3] next, float[2, 3] out) {
            on = Identity (go)
            half = Constant <value = float {0.5}> ()
            m = Mul (state, w)
            next = Add (m, half)
            out = Neg (next)
        }
    >
}
"""


def test_a_loop_keeps_its_body_and_stacks_as_often_as_it_runs() -> None:
    graph = read(written(LOOP))
    (node,) = graph.nodes
    assert graph.types_of(node.outputs) == (TensorType("float32", (2, 3)), TensorType("float32", (5, 2, 3)))
    body = node.bodies["body"]
    assert [graph.values[outer].name for _, outer in body.captures] == ["w"]
    assert [v.name for v in body.graph.values if v.role is Role.CONSTANT] == ["half"]
    assert len(body.graph.inputs) == 3
    old, new = both(written(LOOP))
    for key in old:
        np.testing.assert_array_equal(old[key], new[key])


def test_a_loop_whose_carried_value_grows_is_refused() -> None:
    data = written(LOOP.replace("next = Add (m, half)", "next = Concat <axis = 0> (m, m)"))
    with pytest.raises(BadGraph, match=r"enters as float32\[2,3\] and leaves as float32\[4,3\]"):
        read(data)


def test_a_scan_slices_its_sequences_and_stacks_its_outputs() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "t"], ["next"]), helper.make_node("Mul", ["next", "w"], ["out"])],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("s", "t")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("next", "out")],
    )
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1]
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("start", [3]), ("x", [3, 4]))],
        [onnx.ValueInfoProto(name="last"), onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    found = read(data)
    assert found.types_of(found.nodes[0].outputs) == (TensorType("float32", (3,)), TensorType("float32", (3, 4)))
    old, new = both(data)
    for key in old:
        np.testing.assert_array_equal(old[key], new[key])


def test_a_weight_inside_a_branch_is_a_parameter_of_the_model() -> None:
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x", "w"], [out])],
            name,
            [],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, [2, 3])],
            [numpy_helper.from_array(np.full((3, 3), k, np.float32), "w")],
        )
        for k, (name, op, out) in enumerate([("t", "MatMul", "a"), ("e", "MatMul", "b")])
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    found = read(data)
    assert sorted(v.name for v in found.values if v.role is Role.PARAMETER) == ["w", "w/1"]


def test_a_call_that_asks_for_more_than_its_function_makes_is_refused() -> None:
    proto = parser.parse_model(TWO_DEEP)
    del proto.functions[1].output[1:]
    with pytest.raises(BadGraph, match="at most 1 inputs and 1 outputs"):
        read(proto.SerializeToString(), dims={"N": 2})
