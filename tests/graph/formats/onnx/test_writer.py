"""The writer: what is written runs in onnxruntime in its order, and reads back as the graph it was."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.formats import writers
from graph.formats.onnx.writer import dump
from graph.formats.readers import load
from graph.ir import ABSENT, DTYPE_BITS, Body, Cost, Effect, Graph, Phase, Role, TensorType
from graph.ops.registry.onnx_fallback import freeze, numpy_dtype
from graph.transforms.replay import replay
from tests.graph.formats.onnx.onnx_runs import drawn, read, run, session
from tests.graph.formats.onnx.read.test_reader import TRANSFORMERS, light, ours

F = TensorType("float32", (3, 4))


def checked(graph: Graph, **options: object) -> bytes:
    """The file, once the standard's checker has passed it."""
    data = dump(graph, **options)  # type: ignore[arg-type]
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    return data


def same(one: Graph, other: Graph) -> None:
    for m, n in zip(one.nodes, other.nodes, strict=True):
        assert replace(m, attributes={}) == replace(n, attributes={})
        assert dict(freeze(m.attributes)) == dict(freeze(n.attributes))
    assert (one.name, one.inputs, one.outputs, one.gradients) == (
        other.name,
        other.inputs,
        other.outputs,
        other.gradients,
    )
    assert (one.opset, one.order_is_given, one.annotations) == (other.opset, other.order_is_given, other.annotations)
    for a, b in zip(one.values, other.values, strict=True):
        assert (a.name, a.type, a.role, a.nbytes, a.fixed_bytes) == (b.name, b.type, b.role, b.nbytes, b.fixed_bytes)
        assert a.annotations == b.annotations
        assert (a.data is None) == (b.data is None)
        if a.data is not None and b.data is not None:
            assert a.data.dtype == b.data.dtype
            np.testing.assert_array_equal(a.data, b.data)


def everything() -> Graph:
    """A graph with all that ONNX has no field for."""
    b = Builder("all", {"": 21, "mine": 3})
    w = b.value("w", F, Role.PARAMETER)
    (h,) = b.node("Relu", [w], name="first", outputs=["h"], phase=Phase.BACKWARD, recompute="never", heavy=True)
    x = b.value("x", F, Role.INPUT, annotations={"unit": "metre"})
    state = b.value("state", F, Role.STATE)
    k = b.constant(np.arange(4, dtype=np.float32), "k")
    (s,) = b.node(
        "Add", [h, k], outputs=["s"], after=(0,), cost=Cost(0.5, 7, None, 64), annotations={"origin": ["a", 1]}
    )
    blob = b.value("blob", bytes=1000, fixed_bytes=True)
    b.node(
        "mine::Opaque",
        [x, ABSENT, s],
        name="opaque",
        outputs=[blob, None, "typed"],
        types=[None, None, F],
        attributes={"n": 3, "names": ["a", "b"], "t": np.arange(3), "f": 0.5, "fs": [1.5, 2.0]},
        effect=Effect.ONCE,
        gradient_reads=(x,),
    )
    (new,) = b.node(
        "remat::SGD",
        [state, s],
        name="sgd",
        outputs=["new"],
        phase=Phase.UPDATE,
        in_place=((0, 0),),
        attributes={"lr": 0.1},
    )
    only_size = b.value("only_size", role=Role.INPUT, bytes=77)
    b.node("mine::Eats", [only_size, blob], outputs=[None])
    b.order_is_given, b.gradients, b.annotations = True, [(w, s)], {"loss": "s"}
    return b.build([new, s])


def test_everything_a_graph_says_comes_back() -> None:
    graph = everything()
    data = checked(graph)
    same(read(data), graph)
    assert dump(read(data)) == data


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_reads_back_as_it_was(name: str) -> None:
    graph = read(ours(name), dims={"batch": 2, "sequence": 12})
    same(read(checked(graph)), graph)


@pytest.mark.parametrize("name", ["squeezenet", "densenet121"])
def test_a_light_model_reads_back_as_it_was(name: str) -> None:
    graph = read(light(name), batch=4)
    same(read(checked(graph)), graph)


def test_onnxruntime_runs_a_rewritten_graph_in_its_order(tmp_path: Path) -> None:
    graph = read(ours("encoder"), dims={"batch": 2, "sequence": 12})
    order = [n for m in range(len(graph.nodes)) for n in ((m, m // 2) if m % 5 == 4 else (m,))]
    rewritten = replay(graph, order)
    data = checked(rewritten)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run")
    one = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    given = drawn(graph)
    one.run(None, {i.name: given[i.name] for i in one.get_inputs()})
    events = json.loads(Path(one.end_profiling()).read_text())
    ran = [e["name"].removesuffix("_kernel_time") for e in events if e["name"].endswith("_kernel_time")]
    expected = []
    for node in onnx.load_from_string(data).graph.node:
        expected += [inner.name for a in node.attribute if a.name == "else_branch" for inner in a.g.node] + [node.name]
    assert ran == expected
    plain = [name.removesuffix("/again") for name in ran]
    assert [name for name in plain if name in {node.name for node in rewritten.nodes}] == [
        n.name for n in rewritten.nodes
    ]
    before, after = run(dump(graph), given), run(data, given)
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


def test_annotations_and_phases_of_a_rewritten_graph_come_back() -> None:
    graph = read(ours("gpt"), dims={"batch": 1, "sequence": 4})
    rewritten = replay(graph, [*range(len(graph.nodes)), 0, 1])
    same(read(checked(rewritten)), rewritten)
    assert [node.annotations["origin"][1] for node in read(dump(rewritten)).nodes[-2:]] == [1, 1]


def test_an_op_of_ours_is_spelled_out_at_its_place_and_put_together_again() -> None:
    b = Builder("step")
    x = b.value("x", F, Role.INPUT)
    (y,) = b.node("Relu", [x], name="y", outputs=["y"])
    (dx,) = b.node("remat::ReluGrad", [x, y], name="grad", outputs=["dx"], phase=Phase.BACKWARD)
    (z,) = b.node("Neg", [dx], name="z", outputs=["z"])
    graph = b.build([dx, z])
    data = checked(graph)
    proto = onnx.load_from_string(data)
    assert {node.domain for node in proto.graph.node} == {""}
    assert [node.name for node in proto.graph.node][:2] == ["y", "grad"]
    same(read(data), graph)
    given = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    np.testing.assert_array_equal(run(data, given)["dx"], np.where(given["x"] > 0, given["x"], 0))


def test_an_op_of_ours_on_a_value_without_a_type_is_written_as_it_is() -> None:
    values = [{"name": name, "bytes": 64} for name in ("y", "copy")]
    nodes = [
        {"name": "layer", "op": "acme::Layer", "inputs": [], "outputs": ["y"]},
        {"name": "copied", "op": "remat::Copy", "inputs": ["y"], "outputs": ["copy"]},
    ]
    document = {"format": "remat/1", "values": values, "nodes": nodes, "outputs": ["copy"]}
    graph = load(json.dumps(document).encode())
    assert [node.op for node in load(dump(graph)).nodes] == ["acme::Layer", "remat::Copy"]


def test_a_spelled_out_op_that_was_edited_is_refused() -> None:
    b = Builder("step")
    x = b.value("x", F, Role.INPUT)
    (dx,) = b.node("remat::SigmoidGrad", [x, x], name="grad", outputs=["dx"])
    proto = onnx.load_from_string(dump(b.build([dx])))
    proto.graph.node[-1].op_type = "Add"
    with pytest.raises(BadGraph, match="no longer match the expansion of remat::SigmoidGrad"):
        read(proto.SerializeToString())


def test_random_weights_follow_the_seed_and_states_stay_inputs() -> None:
    graph = everything()
    with_w = [onnx.load_from_string(dump(read(light("squeezenet")), weights="random", seed=s)) for s in (0, 0, 1)]
    first = [numpy_helper.to_array(p.graph.initializer[0]) for p in with_w]
    np.testing.assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).any()
    assert [i.name for i in with_w[0].graph.input] == ["data_0"]
    assert "state" in {i.name for i in onnx.load_from_string(dump(graph)).graph.input}


def test_a_repeat_of_a_random_op_with_a_stream_draws_the_same_in_onnxruntime() -> None:
    b = Builder("draws")
    x = b.value("x", TensorType("float32", (64, 64)), Role.INPUT)
    ratio, on = b.constant(np.float32(0.5), "ratio"), b.constant(np.array(True), "on")
    y, _ = b.node("Dropout", [x, ratio, on], name="drop", outputs=["y", "mask"], stream="drop")
    z, _ = b.node("Dropout", [x, ratio, on], name="other", outputs=["z", "mask2"], stream="other")
    graph = replay(b.build([y, z]), [0, 1, 0])
    repeat = [graph.values[node.outputs[0]].name for node in graph.nodes]
    graph = replace(graph, outputs=tuple(node.outputs[0] for node in graph.nodes))
    data = checked(graph)
    same(read(data), graph)
    found = run(data, {"x": np.ones((64, 64), np.float32)})
    np.testing.assert_array_equal(found[repeat[0]], found[repeat[2]])
    assert (found[repeat[0]] != found[repeat[1]]).any()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_element_type_is_written_and_read(dtype: str) -> None:
    b = Builder("types", {"": 25})
    data = np.ones((3, 5)).astype(numpy_dtype(dtype)) if not dtype.startswith("complex") else np.ones((3, 5), dtype)
    x = b.value("x", TensorType(dtype, (3, 5)), Role.INPUT)
    k = b.constant(data, "k")
    (y,) = b.node("Identity", [x], outputs=["y"])
    (z,) = b.node("Identity", [k], outputs=["z"])
    graph = b.build([y, z])
    same(read(dump(graph)), graph)


def test_bfloat16_arithmetic_passes_the_checker() -> None:
    b = Builder("half")
    x = b.value("x", TensorType("bfloat16", (3,)), Role.INPUT)
    k = b.constant(np.array([1, 2, 3], ml_dtypes.bfloat16), "k")
    (y,) = b.node("Mul", [x, k], outputs=["y"])
    checked(b.build([y]))


def test_the_table_of_writers_answers_for_every_format() -> None:
    assert writers.dump(everything(), "onnx") == dump(everything())
    with pytest.raises(BadGraph, match="one of native, onnx"):
        writers.dump(everything(), "csv")


def test_weights_are_inputs_or_random_and_nothing_else() -> None:
    with pytest.raises(ValueError, match="'inputs' or 'random'"):
        dump(everything(), weights="zeros")


def test_a_model_above_two_gigabytes_is_refused_before_it_is_made() -> None:
    b = Builder("big")
    w = b.value("w", TensorType("float32", (1 << 15, 1 << 15)), Role.PARAMETER)
    (y,) = b.node("Relu", [w], outputs=["y"])
    graph = b.build([y])
    assert len(dump(graph)) < 2000
    with pytest.raises(BadGraph, match="2147483647"):
        dump(graph, weights="random")


def test_the_reader_runs_what_the_writer_wrote() -> None:
    graph = read(ours("gpt"), batch=2, dims={"sequence": 8})
    assert session(dump(graph)).get_inputs()[0].name == "ids"


def floats(*shape: int) -> TensorType:
    return TensorType("float32", shape)


def labels(*shape: int) -> TensorType:
    return TensorType("int64", shape)


FUNCTIONS = [
    ("SoftmaxCrossEntropyLoss", [floats(4, 5), labels(4)], {}, 2),
    ("SoftmaxCrossEntropyLoss", [floats(4, 5, 2), labels(4, 2), floats(5)], {"ignore_index": 1, "reduction": "sum"}, 1),
    ("SoftmaxCrossEntropyLoss", [floats(4, 5), labels(4)], {"reduction": "none"}, 1),
    ("NegativeLogLikelihoodLoss", [floats(4, 5), labels(4), floats(5)], {"ignore_index": 0}, 1),
    ("HardSwish", [floats(4, 5)], {}, 1),
    ("Mish", [floats(4, 5)], {}, 1),
    ("GroupNormalization", [floats(2, 4, 5), floats(4), floats(4)], {"num_groups": 2}, 1),
    ("CastLike", [floats(2, 3), labels(1)], {}, 1),
]


@pytest.mark.parametrize(("op", "types", "attributes", "outputs"), FUNCTIONS)
def test_an_op_onnxruntime_would_expand_at_the_end_is_expanded_in_place(
    op: str, types: list[TensorType], attributes: dict[str, object], outputs: int
) -> None:
    """And equals what onnxruntime makes of the op itself."""
    b = Builder("one")
    inputs = []
    for k, type in enumerate(types):
        inputs.append(b.value(f"x{k}", type, Role.INPUT))
    found = b.node(op, inputs, name="whole", outputs=outputs, attributes=attributes)
    graph = b.build(found)
    data = checked(graph)
    proto = onnx.load_from_string(data)
    assert op not in {node.op_type for node in proto.graph.node}
    same(read(data), graph)
    names = [f"x{k}" for k in range(len(types))], [o.name for o in proto.graph.output]
    plain = onnx.helper.make_node(op, *names, **attributes)
    del proto.graph.node[:]
    proto.graph.node.append(plain)
    given = drawn(graph)
    for name, array in run(proto.SerializeToString(), given).items():
        np.testing.assert_array_equal(array, run(data, given)[name])


def test_a_loop_that_hands_its_condition_on_runs_in_onnxruntime() -> None:
    #   body(trip, go, state): returns go as it came, and -state
    inner = Builder("body")
    inner.value("trip", TensorType("int64", ()), Role.INPUT)
    go = inner.value("go", TensorType("bool", ()), Role.INPUT)
    state = inner.value("state", F, Role.INPUT)
    (turned,) = inner.node("Neg", [state], outputs=["turned"])
    b = Builder("loop")
    x = b.value("x", F, Role.INPUT)
    trips, yes = b.constant(np.array(3), "trips"), b.constant(np.array(True), "yes")
    (y,) = b.node("Loop", [trips, yes, x], outputs=["y"], types=[F], bodies={"body": Body(inner.build([go, turned]))})
    data = checked(b.build([y]))
    given = drawn(read(data))
    np.testing.assert_array_equal(run(data, given)["y"], -given["x"])
