"""Caffe2 nets: both forms, names written again, weights from fills, nested nets, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.caffe2.proto import caffe2, net_of
from graph.formats.native.writer import content_hash
from graph.formats.readers import importer_of, load
from graph.formats.shared.protobuf import message_to_text
from graph.formats.writers import dump
from graph.ir import Graph, Phase, Role
from graph.limits import Limits, ShapeOverrides
from graph.loop_remat import find_pairs, with_saved_values
from graph.training.step import training_step
from graph.transforms.structural_equality import difference
from tests.graph.formats.caffe2.nets import LSTM_SHAPES, fill, lstm, net, op
from tests.graph.formats.damaged import damaged


def read(message: Any, **inputs: tuple[int, ...]) -> Graph:
    return load(message.SerializeToString(), shapes=ShapeOverrides(inputs=inputs))


def types(graph: Graph) -> dict[str, str]:
    return {value.name: str(value.type) for value in graph.values}


def mlp() -> Any:
    return net(
        fill("w", 5, 6),
        fill("b", 5),
        op("FC", "x w b", "y", device=1),
        op("Relu", "y", "y"),
        op("SoftmaxWithLoss", "y label", "p loss"),
        inputs="x label w b",
        outputs="loss",
    )


@pytest.mark.parametrize("form", ["binary", "text"])
def test_both_forms_are_recognised_and_read_alike(form: str) -> None:
    data = mlp().SerializeToString() if form == "binary" else message_to_text(mlp())
    assert importer_of(data) == "caffe2"
    graph = load(data, shapes=ShapeOverrides(inputs={"x": (4, 6), "label": (4,)}))
    assert [node.op for node in graph.nodes] == ["Gemm", "Relu", "SoftmaxCrossEntropyLoss", "Exp"]
    assert types(graph)["label"] == "int32[4]" and types(graph)["loss"] == "float32[]"


def test_fills_in_front_tell_the_shapes_of_weights() -> None:
    graph = read(mlp(), x=(4, 6), label=(4,))
    role = {value.name: value.role for value in graph.values}
    assert role["w"] is role["b"] is Role.PARAMETER and role["x"] is Role.INPUT
    assert types(graph)["w"] == "float32[5,6]"


def test_an_init_net_and_a_net_written_one_after_the_other_are_one_model() -> None:
    init = net(fill("w", 5, 6), fill("b", 5), name="init")
    main = net(op("FC", "x w b", "y"), inputs="x w b", outputs="y", name="main")
    data = init.SerializeToString() + main.SerializeToString()
    assert types(load(data, shapes=ShapeOverrides(inputs={"x": (4, 6)})))["y"] == "float32[4,5]"


def test_a_name_written_again_is_a_new_version_and_reads_stay_in_order() -> None:
    graph = read(net(op("Sqr", "x", "y"), op("Add", "y x", "y"), op("Exp", "y", "x"), inputs="x", outputs="x"), x=(3,))
    x = np.array([1.0, 2.0, -1.0], np.float32)
    (out,) = execute(graph, {"x": x}).outputs.values()
    np.testing.assert_allclose(out, np.exp(x * x + x), rtol=1e-6)


def test_devices_are_noted() -> None:
    graph = read(mlp(), x=(4, 6), label=(4,))
    assert graph.nodes[0].annotations["device"] == "gpu:1"


def test_gradient_ops_of_the_file_are_its_backward_part() -> None:
    message = net(
        op("FC", "x w b", "y"),
        op("AveragedLoss", "y", "loss"),
        op("ConstantFill", "loss", "loss_autogen_grad", value=1.0),
        op("AveragedLossGradient", "y loss_autogen_grad", "y_grad"),
        op("FCGradient", "x w y_grad", "w_grad b_grad x_grad"),
        op("Sum", "w_grad w_grad", "w_sum"),
        inputs="x w b",
        outputs="w_sum",
    )
    graph = read(message, x=(4, 6), w=(5, 6), b=(5,))
    phase = {node.name: node.phase for node in graph.nodes}
    assert phase["y"] is Phase.FORWARD and phase["w_grad"] is phase["w_sum"] is Phase.BACKWARD
    assert types(graph)["w_grad"] == "float32[5,6]" and types(graph)["x_grad"] == "float32[4,6]"


def test_an_unknown_op_names_what_has_no_shape() -> None:
    with pytest.raises(BadGraph) as caught:
        read(net(op("Mystery", "x", "odd"), op("Exp", "odd", "y"), inputs="x"), x=(3,))
    assert caught.value.findings[0].code == "unknown_size" and "odd" in str(caught.value)
    assert len(caught.value.findings) == 1


def test_external_inputs_without_a_shape_are_listed() -> None:
    with pytest.raises(BadGraph) as caught:
        read(net(op("Add", "a b", "y"), inputs="a b"))
    assert "'a'" in str(caught.value) and "'b'" in str(caught.value)


def test_if_keeps_what_a_branch_does_not_write() -> None:
    then, other = net(op("Exp", "x", "y")), net(op("Sqr", "x", "z"))
    message = net(
        op("Copy", "x", "y"),
        op("Copy", "x", "z"),
        op("If", "c x y z", "y z", then_net=then, else_net=other),
        inputs="c x",
        outputs="y z",
    )
    graph = read(message, c=(1,), x=(3,))
    x = np.array([1.0, 2.0, 3.0], np.float32)
    for holds in (True, False):
        out = execute(graph, {"c": np.array([holds]), "x": x}).outputs
        y, z = (out[v] if v in out else out[graph.values[v].name] for v in graph.outputs)
        np.testing.assert_allclose(y, np.exp(x) if holds else x, rtol=1e-6)
        np.testing.assert_allclose(z, x if holds else x * x, rtol=1e-6)


def test_while_asks_its_condition_net_before_every_trip() -> None:
    ask = net(op("Add", "i one", "i"), op("LE", "i most", "go"))
    loop = net(op("Mul", "x two", "x"))
    message = net(
        op("While", "go i one most x two", "i x", cond_net=ask, loop_net=loop),
        inputs="go i one most x two",
        outputs="i x",
    )
    graph = read(message, go=(1,), i=(1,), one=(1,), most=(1,), x=(3,), two=(1,))
    given = {"go": np.array([False]), "x": np.ones(3, np.float32)}
    given |= {k: np.array([v], np.float32) for k, v in (("i", 0), ("one", 1), ("most", 3), ("two", 2))}
    found = list(execute(graph, given).outputs.values())
    np.testing.assert_allclose(found[0], [4])
    np.testing.assert_allclose(found[1], [8, 8, 8])


def test_do_binds_inner_names_to_outer_ones() -> None:
    inner = net(op("Mul", "a b", "t"), op("Add", "t a", "r"))
    message = net(
        op("CreateScope", "", "scope"),
        op("Do", "x y scope", "z scope", net=inner, inner_blobs=["a", "b", "r"], outer_blobs_idx=[0, 1, 2]),
        inputs="x y",
        outputs="z",
    )
    graph = read(message, x=(3,), y=(3,))
    assert [node.op for node in graph.nodes if node.bodies] == ["remat::Call"]
    assert types(graph)["z"] == "float32[3]"


def test_a_recurrent_net_is_a_scan_that_computes_an_lstm() -> None:
    graph = read(lstm(), **LSTM_SHAPES)
    assert [node.op for node in graph.nodes if node.bodies] == ["Scan"]
    chance = np.random.default_rng(0)
    feeds = {name: chance.uniform(-1, 1, shape).astype(np.float32) for name, shape in LSTM_SHAPES.items()}
    (found,) = execute(graph, feeds).outputs.values()

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-x)))

    h, c, total = feeds["h0"], np.tile(feeds["c0"], (3, 1)), 0.0
    for x in feeds["x"]:
        gates = x @ feeds["Wx"].T + feeds["bx"] + h @ feeds["Wh"].T + feeds["bh"]
        i, f, o, g = np.split(gates, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        total += h.sum()
    np.testing.assert_allclose(found, total, rtol=1e-5)


def test_a_recompute_list_is_read_and_written_again() -> None:
    graph = read(lstm("gh gates"), **LSTM_SHAPES)
    (scan,) = (node for node in graph.nodes if node.bodies)
    marked = {n.name for n in scan.bodies["body"].graph.nodes if n.recompute == "prefer"}
    assert {"gh", "gates"} <= marked
    written = net_of(dump(graph, "caffe2"))
    (argument,) = (a for o in written.op for a in o.arg if a.name == "recompute_blobs_on_backward")
    assert list(argument.strings) == [b"gh", b"gates"]
    assert content_hash(load(written.SerializeToString())) == content_hash(graph)


@pytest.mark.parametrize(
    ("kept", "again"), [(["h_prev", "c_prev"], [b"gh", b"gates"]), (["h_prev", "c_prev", "gh"], [b"gates"])]
)
def test_what_a_plan_computes_again_on_the_way_back_is_the_recompute_list(kept: list[str], again: list[bytes]) -> None:
    step, _ = training_step(read(lstm(), **LSTM_SHAPES), "s")
    (pair,) = find_pairs(step)
    written = net_of(dump(with_saved_values(step, pair, kept), "caffe2"))
    (argument,) = (a for o in written.op for a in o.arg if a.name == "recompute_blobs_on_backward")
    assert list(argument.strings) == again


def test_a_training_step_is_written_without_what_differentiation_added() -> None:
    step, _ = training_step(read(lstm("gates"), **LSTM_SHAPES), "s")
    assert [o.type for o in net_of(dump(step, "caffe2")).op] == ["FC", "RecurrentNetwork", "ReduceSum"]


@pytest.mark.parametrize("form", ["binary", "text"])
def test_a_net_read_and_written_is_read_as_the_same_graph(form: str) -> None:
    for message, shapes in ((mlp(), {"x": (4, 6), "label": (4,)}), (lstm(), LSTM_SHAPES)):
        graph = read(message, **shapes)
        assert content_hash(load(dump(graph, "caffe2", form=form))) == content_hash(graph)


def test_a_graph_from_elsewhere_is_written_in_caffe2s_words() -> None:
    import json

    from tests.graph.formats.mxnet.test_reader import _document

    document = _document()
    document["values"].append({"name": "bias", "shape": [5], "dtype": "float32", "role": "parameter"})
    document["nodes"][0]["inputs"].append("bias")
    del document["nodes"][1]["recompute"]
    graph = load(json.dumps(document).encode())
    assert difference(graph, load(dump(graph, "caffe2"))) is None


def scoped(inputs: str, outputs: str, inner: list[str], places: list[int], reads: str = "a") -> Any:
    """A Do over b = exp(a)."""
    nested = net(op("Exp", reads, "b"))
    return net(op("Do", inputs, outputs, net=nested, inner_blobs=inner, outer_blobs_idx=places), inputs="x s c")


def stepping(**lists: Any) -> Any:
    """A net whose step is h = x_t + h_prev, with some of its lists replaced."""
    given = {
        "link_internal": ["x_t", "h_prev", "h"],
        "link_external": ["x", "s", "s"],
        "link_offset": [0, 0, 1],
        "recurrent_states": ["s"],
        "initial_recurrent_state_ids": [1],
        "alias_src": ["s"],
        "alias_dst": ["y"],
        "alias_offset": [1],
        **lists,
    }
    step = net(op("Add", "x_t h_prev", "h"))
    return net(op("RecurrentNetwork", "x h0", "y", step_net=step, **given), inputs="x h0 c")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            net(op("While", "c x", "x", cond_net=net(op("Exp", "x", "x")), loop_net=net()), inputs="c x"),
            "condition_not_written",
        ),
        (net(op("While", "c x", "x"), inputs="c x"), "missing_body"),
        (net(op("While", "", "x", loop_net=net()), inputs="c x"), "missing_condition"),
        (net(op("If", "c x", "y"), inputs="c x"), "missing_body"),
        (net(op("If", "", "y", then_net=net()), inputs="c x"), "missing_condition"),
        (net(op("If", "c x", "y", then_net=net(op("Exp", "x", "y"))), inputs="c x"), "undefined_value"),
        (net(op("If", "c x", "y", then_net=net(op("Exp", "nobody", "y"))), inputs="c x"), "undefined_value"),
        (scoped("x s", "y s", ["a"], [0, 1]), "length_mismatch"),
        (scoped("x s", "y s", ["a", "b"], [0, 7]), "outer_index"),
        (scoped("x s", "y s", ["a", "a"], [0, 1]), "duplicate_inner_name"),
        (scoped("x s", "y s", ["a", "b"], [0, 0]), "outer_name_bound_twice"),
        (scoped("x x s", "y s", ["a", "b"], [0, 2]), "duplicate_outer_name"),
        (scoped("x s", "y s", ["a"], [0]), "unbound_outer_name"),
        (scoped("x s", "y c", ["a", "b"], [0, 1]), "scope_mismatch"),
        (scoped("x s", "y s", [], []), "missing_bindings"),
        (scoped("x s", "", ["a"], [0]), "missing_scope"),
        (scoped("x s", "y s", ["a", "b"], [0, 1], reads="nobody"), "undefined_value"),
        (net(op("RecurrentNetwork", "x c", "y"), inputs="x c"), "missing_body"),
        (net(op("RecurrentNetwork", "x c", "y", step_net=net()), inputs="x c"), "no_sequence"),
        (stepping(link_external=["x", "nowhere", "s"]), "undefined_value"),
        (stepping(link_offset=[0, 0, 0], link_internal=["x_t", "h_prev", "g"]), "state_not_written"),
        (stepping(link_window=[1, 2, 1]), "link_window"),
        (stepping(alias_src=["s"], alias_dst=["y"], alias_offset=[3]), "link_window"),
        (stepping(alias_src=["nowhere"], alias_dst=["y"], alias_offset=[1]), "undefined_value"),
        (stepping(recompute_blobs_on_backward=["nobody"]), "recompute_unknown"),
        (net(op("Exp", "nobody", "y"), op("Exp", "later", "z"), inputs="c x"), "unknown_size"),
        (net(op("Conv", "x x", "y", kernel=3), inputs="c x"), "type_conflict"),
    ],
)
def test_what_is_wrong_is_named(message: Any, code: str) -> None:
    with pytest.raises(BadGraph) as caught:
        read(message, c=(1,), x=(3,))
    assert caught.value.findings[0].code == code


def test_nested_nets_have_a_depth() -> None:
    inner = net(op("Exp", "x", "x"))
    for _ in range(8):
        inner = net(op("If", "c x", "x", then_net=inner))
    inner.external_input.extend(["c", "x"])
    with pytest.raises(BadGraph) as caught:
        load(inner.SerializeToString(), Limits(depth=4), ShapeOverrides(inputs={"c": (1,), "x": (2,)}))
    assert caught.value.findings[0].code == "too_deep"


_BINARY, _TEXT = lstm("gates").SerializeToString(), message_to_text(mlp())


@given(st.data())
def test_damaged_files_are_refused_or_read_but_never_break(data: st.DataObject) -> None:
    raw = damaged(data, data.draw(st.sampled_from([_BINARY, _TEXT])))
    shapes = ShapeOverrides(inputs={name: shape for name, shape in LSTM_SHAPES.items() if name.encode() in raw})
    try:
        load(raw, shapes=shapes)
    except BadGraph as error:
        assert error.findings


def test_messages_come_from_the_table() -> None:
    assert set(caffe2()) == {"TensorProto", "DeviceOption", "Argument", "OperatorDef", "NetDef"}
