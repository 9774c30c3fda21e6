"""Repeats behind guards survive ONNX Runtime's default options, with the numbers of the unplanned graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from graph.builder.builder import Builder
from graph.formats.onnx import writer
from graph.formats.onnx.guards.guards import freeing_at_once, guard, unguarded
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role, TensorType
from graph.training.step import training_step
from graph.transforms.replay import replay
from tests.graph.formats.onnx.onnx_runs import Arrays, read, run
from tests.graph.formats.onnx.read.test_reader import light
from tests.graph.formats.onnx.test_writer_training import checked, fed, step_of, with_repeats


@pytest.fixture(autouse=True)
def guards_that_need_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "repeats_pay", lambda graph: True)


def by_default(data: bytes, given: Arrays, optimized: Path) -> dict[str, np.ndarray]:
    """Outputs by name with ONNX Runtime's default optimizations and order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(optimized)
    one = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in one.get_outputs()]
    found = one.run(names, {i.name: given[i.name] for i in one.get_inputs()})
    return dict(zip(names, map(np.asarray, found), strict=True))


def assert_close(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        scale = float(np.abs(one[name]).max(initial=1e-30))
        np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5 * scale, err_msg=name)


def test_repeats_of_a_transformer_survive_the_default_options(tmp_path: Path) -> None:
    step = step_of("gpt")
    rewritten = with_repeats(step)
    data, feeds = checked(rewritten), fed(step)
    assert_close(by_default(data, feeds, tmp_path / "optimized.onnx"), run(dump(step), feeds))
    guards = [node for node in onnx.load(tmp_path / "optimized.onnx").graph.node if node.op_type == "If"]
    written = [node for node in onnx.load_from_string(data).graph.node if node.op_type == "If"]
    assert guards and len(guards) == len(written)


def test_dropout_draws_the_same_mask_again_with_the_default_options(tmp_path: Path) -> None:
    step, _ = training_step(read(light("squeezenet"), inputs={"data_0": (2, 3, 64, 64)}))
    feeds = fed(step)
    expected = run(checked(step), feeds)
    assert_close(by_default(checked(with_repeats(step, 1)), feeds, tmp_path / "optimized.onnx"), expected)


def test_onnxruntime_infers_no_shape_of_a_repeat_and_the_reader_knows_it() -> None:
    rewritten = with_repeats(step_of("gpt"))
    model = onnx.load_from_string(dump(rewritten))
    outputs = {info.name for info in model.graph.output}
    hidden = {name for node in model.graph.node if node.op_type == "If" for name in node.output} - outputs
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info
    ranks = {info.name for info in inferred if info.type.tensor_type.HasField("shape")}
    assert hidden and not hidden & ranks
    types = {value.name: value.type for value in read(model.SerializeToString()).values}
    assert {name: types[name] for name in hidden} == {v.name: v.type for v in rewritten.values if v.name in hidden}


def chain(builder: Builder, v: int, *nodes: tuple[str, str]) -> int:
    for op, name in nodes:
        (v,) = builder.node(op, [v], name=name, outputs=[name])
    return v


def guarded(graph: Graph, order: list[str]) -> list[list[str]]:
    """Names of the nodes behind each guard, for a schedule."""
    number = {node.name: n for n, node in enumerate(graph.nodes)}
    model = onnx.load_from_string(dump(replay(graph, [number[name] for name in order])))
    branches = [node.attribute[0].g for node in model.graph.node if node.op_type == "If"]
    return [[node.name.removesuffix("/again") for node in branch.node] for branch in branches]


def test_a_first_run_is_guarded_where_its_buffer_would_wait_for_a_later_value_of_its_shape() -> None:
    # x ── a ── b ── y, then a recomputed ── c ── z: the buffers of a and b would wait for c
    builder = Builder("waits")
    x = builder.value("x", TensorType("float32", (8, 8)), Role.INPUT)
    a = chain(builder, x, ("Sin", "a"))
    y = chain(builder, a, ("Exp", "b"), ("ReduceSum", "y"))
    z = chain(builder, a, ("Cos", "c"), ("ReduceSum", "z"))
    graph = builder.build([y, z])
    assert guarded(graph, ["a", "b", "y", "a", "c", "z"]) == [["a"], ["b"], ["a/1"]]


def test_a_large_value_that_depends_on_no_guard_does_not_run_before_it() -> None:
    builder = Builder("early")
    x = builder.value("x", TensorType("float32", (8, 8)), Role.INPUT)
    a = chain(builder, x, ("Sin", "a"))
    y = chain(builder, a, ("ReduceSum", "y"))
    z = chain(builder, a, ("ReduceMax", "z"))
    last = chain(builder, x, ("Exp", "late"), ("ReduceSum", "w"))
    graph = builder.build([y, z, last])
    assert ["late"] in guarded(graph, ["a", "y", "a", "z", "late", "w"])


def test_a_guard_ends_with_the_last_read_of_a_large_value() -> None:
    builder = Builder("ends")
    x = builder.value("x", TensorType("float32", (8, 8)), Role.INPUT)
    a = chain(builder, x, ("Sin", "a"))
    s = chain(builder, a, ("ReduceSum", "s"))
    t = chain(builder, s, ("Exp", "t"))
    y, z = chain(builder, t, ("Cos", "y")), chain(builder, t, ("Tanh", "z"))
    graph = builder.build([y, z])
    assert ["a/1", "s/1", "t/1"] in guarded(graph, ["a", "s", "t", "y", "a", "s", "t", "z"])
    assert ["s/1"] in guarded(graph, ["a", "s", "t", "y", "s", "t", "z"])


def test_a_guard_has_one_large_result_so_that_none_is_allocated_before_it_is_computed() -> None:
    builder = Builder("one")
    x = builder.value("x", TensorType("float32", (8, 8)), Role.INPUT)
    a, b = chain(builder, x, ("Sin", "a")), chain(builder, x, ("Exp", "b"))
    (c,) = builder.node("Add", [a, b], name="c", outputs=["c"])
    y, z = chain(builder, c, ("ReduceSum", "y")), chain(builder, c, ("ReduceMax", "z"))
    graph = builder.build([y, z])
    found = guarded(graph, ["a", "b", "c", "y", "a", "b", "c", "z"])
    assert all([f"{name}/1"] in found for name in "abc")


def test_a_large_view_is_no_guard_of_its_own() -> None:
    builder = Builder("view")
    x = builder.value("x", TensorType("float32", (8, 8)), Role.INPUT)
    shape = builder.constant(np.array([64]), "shape")
    a = chain(builder, x, ("Sin", "a"))
    (flat,) = builder.node("Reshape", [x, shape], name="flat", outputs=["flat"])
    y, z = chain(builder, a, ("ReduceSum", "y")), chain(builder, a, ("ReduceMax", "z"))
    w = chain(builder, flat, ("ReduceSum", "w"))
    graph = builder.build([y, z, w])
    assert not any("flat" in names for names in guarded(graph, ["a", "y", "a", "z", "flat", "w"]))


def test_a_large_result_that_nothing_reads_is_read_by_the_next_gate() -> None:
    x, y, z = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xyz")
    types = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "ad"]
    nodes = [
        onnx.helper.make_node(op, [read], [written], name=written)
        for op, read, written in (("Sin", "x", "a"), ("Exp", "a", "d"), ("Cos", "a", "y"), ("Tanh", "x", "z"))
    ]
    graph = onnx.helper.make_graph(nodes, "dead", [x], [y, z], value_info=types)
    guard(graph, [False, False, True, False], set("xadyz"))
    dead = next(place for place, node in enumerate(graph.node) if "d" in node.output)
    read = next(place for place, node in enumerate(graph.node) if "d" in node.input)
    following = [node.op_type for node in graph.node[read:]]
    assert graph.node[dead].op_type == "If" and dead < read and "If" in following


def test_a_value_without_a_type_does_not_leave_a_guard() -> None:
    #   the repeat that ends the life of a writes u, whose type the file does not say, for the next repeat
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xy")
    a = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [8, 8])
    nodes = [
        onnx.helper.make_node(op, [read], [written], name=op)
        for op, read, written in (("Exp", "x", "a"), ("Sin", "a", "u"), ("Cos", "u", "y"))
    ]
    graph = onnx.helper.make_graph(nodes, "untyped", [x], [y], value_info=[a])
    guard(graph, [False, True, True], set("xauy"))
    assert [len(node.attribute[0].g.node) for node in graph.node if node.op_type == "If"] == [2]
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    given = np.ones((8, 8), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": given})[0], np.cos(np.sin(np.exp(given))), rtol=1e-5)


def test_a_guard_whose_other_branch_computes_stays_as_it_is() -> None:
    model = onnx.load_from_string(dump(with_repeats(step_of("gpt"))))
    changed = next(node for node in model.graph.node if node.op_type == "If")
    branch = next(attribute.g for attribute in changed.attribute if attribute.name == "then_branch")
    branch.node[0].op_type = "Identity"
    kept = [node for node in unguarded(model).graph.node if node.op_type == "If"]
    assert [node.name for node in kept] == [changed.name]


def test_a_graph_without_repeats_has_no_guards() -> None:
    model = onnx.load_from_string(dump(step_of("gpt")))
    assert not [node for node in model.graph.node if node.op_type == "If"]
    assert unguarded(model) is model


def test_a_session_in_the_order_of_the_file_reads_every_result_at_once() -> None:
    step, _ = training_step(read(light("squeezenet"), inputs={"data_0": (2, 3, 64, 64)}))
    feeds, data = fed(step), checked(with_repeats(step, 1))
    model = freeing_at_once(onnx.load_from_string(data))
    onnx.checker.check_model(model)
    nodes = list(model.graph.node)
    assert "If" not in {node.op_type for node in nodes}
    live = {name for node in nodes for name in node.input} | {info.name for info in model.graph.output}
    dead = [node for node in nodes if any(name and name not in live for name in node.output)]
    assert dead and {node.op_type for node in dead} == {"Shape"}
    assert all(node.input[0] in nodes[place - 1].output for place, node in enumerate(nodes) if node in dead)
    found, expected = run(model.SerializeToString(), feeds), run(data, feeds)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
