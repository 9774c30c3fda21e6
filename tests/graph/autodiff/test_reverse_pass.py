"""Reverse pass: gradient status of ops, zeros, row-sparse gradients, copies, devices, versions, events, skips."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.autodiff.gradients.registry import (
    GRADIENT_RULES,
    NON_DIFFERENTIABLE,
    REFUSED_GRADIENTS,
    GradientStatus,
    gradient_status,
)
from graph.autodiff.resolve_names import GradientOptions
from graph.autodiff.rule_cache import TemplateCache
from graph.builder.builder import Builder
from graph.errors import BadGraph, NoGradient
from graph.formats.readers import load
from graph.ir import Graph, Node, Phase, Role, TensorType
from tests.graph.autodiff.test_differentiate import _STEP, SQUARE, backward, chain, gradients, program
from tests.graph.evaluate import evaluate

ROW = TensorType("float64", (4, 2))


def codes(raised: pytest.ExceptionInfo[BadGraph]) -> list[str]:
    return [finding.code for finding in raised.value.findings]


def one_op(op: str, *, type: TensorType = SQUARE, wanted: int = 1, **fields: object) -> Graph:
    """w ── op ── y; the op may be unknown."""
    builder = Builder("one op")
    w = builder.value("w", type, Role.PARAMETER)
    builder.node(op, [w], name="op", outputs=["y"], types=[type] if "::" in op else None, **fields)
    return builder.build([builder.nodes[-1].outputs[0]])


def test_an_op_has_exactly_one_gradient_status():
    assert gradient_status("Relu") is GradientStatus.RULE and gradient_status("Shape") is GradientStatus.NOT_NEEDED
    assert (
        gradient_status("remat::SGD") is GradientStatus.REFUSED and gradient_status("acme::F") is GradientStatus.MISSING
    )
    assert not REFUSED_GRADIENTS.keys() & (GRADIENT_RULES.keys() | NON_DIFFERENTIABLE)


def test_the_gradient_of_an_update_op_is_refused():
    builder = Builder("updated")
    w = builder.value("w", SQUARE, Role.STATE)
    (new,) = builder.node("remat::Assign", [w, builder.value("x", SQUARE, Role.INPUT)], name="set", outputs=["new"])
    with pytest.raises(NoGradient, match=r"not differentiable: it updates") as raised:
        differentiate(builder.build([new]), ["new"], ["x"])
    assert codes(raised) == ["gradient_refused"]


def test_no_rule_is_needed_where_every_incoming_gradient_is_zero():
    #   w ── acme::F ── y        the head gradient of y is 0
    graph = differentiate(one_op("acme::F"), {"y": 0.0})
    (node,) = [node for node in backward(graph) if graph.gradients[0][1] in node.writes]
    content = graph.values[node.inputs[0]].data
    assert node.op == "Expand" and content is not None and not content.any()
    with pytest.raises(NoGradient, match="acme::F"):
        differentiate(one_op("acme::F"), {"y": 0.5})


def test_zero_contributions_are_dropped_from_a_sum():
    #   w ── Tanh ── a        head of b is 0: the gradient of w is that of a alone
    #    ╰── Sin ─── b
    builder = Builder("two")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    a, b = (builder.node(op, [w], name=name, outputs=[name])[0] for op, name in (("Tanh", "a"), ("Sin", "b")))
    graph = differentiate(builder.build([a, b]), {"a": None, "b": 0})
    assert not [node for node in backward(graph) if node.op in ("Add", "Sum")]
    assert {node.annotations["gradient_of"] for node in backward(graph) if node.op != "Expand"} == {"a"}


@pytest.mark.parametrize("head", [0.5, {"value": 0.5}, {"value": [[0.5] * 3] * 3}, {"value": 0.5, "shape": [3, 3]}])
def test_a_head_gradient_may_be_an_array(head: object):
    graph = differentiate(chain("Tanh"), {"tanh0": head})
    x, w = np.eye(3), np.full((3, 3), 0.2)
    found = evaluate(graph, {"x": x, "w": w})[gradients(graph)["w"]]
    np.testing.assert_allclose(found, 0.5 * (1 - np.tanh(w) ** 2))


def test_a_head_of_one_element_fits_a_scalar():
    graph = differentiate(chain("Tanh"), ["loss"], head_gradients=[{"value": [2.0], "shape": [1]}])
    plain = differentiate(chain("Tanh"), ["loss"])
    given_ = {"x": np.eye(3), "w": np.full((3, 3), 0.2)}
    found = [evaluate(one, given_)[gradients(one)["w"]] for one in (graph, plain)]
    np.testing.assert_allclose(found[0], 2 * found[1])


@pytest.mark.parametrize(
    ("heads", "code"),
    [
        ([None, None], "length_mismatch"),
        ({"loss": {"value": 1, "shape": [2]}}, "shape_mismatch"),
        ({"loss": "x"}, "shape_mismatch"),
        ({"loss": {"number": 1}}, "unknown_field"),
        ({"loss": {"value": "many"}}, "bad_request"),
        ({"loss": {"value": [None]}}, "bad_request"),
        ({"loss": {"value": [10**400]}}, "bad_request"),
        ({"loss": {"value": 1, "shape": 5}}, "bad_request"),
        ({"loss": {"value": 1, "shape": ["1"]}}, "bad_request"),
        ({"loss": {"value": [1, 2], "shape": [3]}}, "bad_request"),
        ({"w": 1.0}, "bad_request"),
        ("loss", "bad_request"),
    ],
)
def test_a_head_gradient_that_does_not_fit_is_refused(heads: object, code: str):
    with pytest.raises(BadGraph) as raised:
        differentiate(chain("Tanh"), ["loss"], head_gradients=heads)
    assert codes(raised) == [code]


def looked_up(*more: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """table ── Gather(i0), Gather(i1) ── product; `more` ops read the table too, and their sum is added."""
    builder = Builder("lookup")
    table = builder.value("table", ROW, Role.PARAMETER)
    given_ = {"table": np.arange(8.0).reshape(4, 2), "i0": np.array([[1, 1], [3, 0]]), "i1": np.array([[0, 1], [1, 1]])}
    parts = []
    for name in ("i0", "i1"):
        indices = builder.value(name, TensorType("int64", (2, 2)), Role.INPUT)
        parts.extend(builder.node("Gather", [table, indices], name=f"at_{name}"))
    (both,) = builder.node("Mul", parts, name="both")
    (loss,) = builder.node("ReduceSum", [both], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    for op in more:
        (other,) = builder.node(op, [table], name=op)
        (other,) = builder.node("ReduceSum", [other], name=f"sum_{op}", attributes={"keepdims": 0})
        (loss,) = builder.node("Add", [loss, other], name="more", outputs=["more"])
    return builder.build([loss]), given_


def test_row_sparse_gradients_are_concatenated_and_equal_the_dense_gradient():
    graph, given_ = looked_up()
    dense = differentiate(graph, ["loss"])
    rows = differentiate(graph, ["loss"], options=GradientOptions(row_sparse=["table"]))
    expected = evaluate(dense, given_)[gradients(dense)["table"]]
    pair = rows.annotations["row_sparse_gradients"]["table"]
    found = evaluate(rows, given_)
    total = np.zeros((4, 2))
    np.add.at(total, found[pair["indices"]], found[pair["values"]])
    np.testing.assert_allclose(total, expected)
    assert found[pair["indices"]].tolist() == [0, 1, 1, 1, 1, 1, 3, 0], "later reader first, nothing dropped"
    assert {rows.values[v].name for v in rows.outputs} >= set(pair.values())


def test_row_sparse_and_dense_contributions_mix_only_with_densify():
    graph, given_ = looked_up("Tanh")
    with pytest.raises(NoGradient, match="'table' has row-sparse and dense") as raised:
        differentiate(graph, ["more"], options=GradientOptions(row_sparse="all"))
    assert set(codes(raised)) == {"mixed_gradients"}
    dense = differentiate(graph, ["more"])
    mixed = differentiate(graph, ["more"], options=GradientOptions(row_sparse="all", mixed="densify"))
    found, expected = (evaluate(one, given_)[gradients(one)["table"]] for one in (mixed, dense))
    np.testing.assert_allclose(found, expected)


def test_row_sparse_gradients_are_densified_before_a_rule_reads_them():
    #   w ── Tanh ── table ── Gather ── y
    builder = Builder("made")
    w, i = builder.value("w", ROW, Role.PARAMETER), builder.value("i", TensorType("int64", (3,)), Role.INPUT)
    (table,) = builder.node("Tanh", [w], name="table", outputs=["table"])
    (y,) = builder.node("Gather", [table, i], name="y", outputs=["y"])
    graph = builder.build([y])
    given_ = {"w": np.linspace(-1, 1, 8).reshape(4, 2), "i": np.array([2, 2, 0])}
    dense, rows = (differentiate(graph, ["y"], options=GradientOptions(row_sparse=names)) for names in ((), ["table"]))
    found = [evaluate(one, given_)[gradients(one)["w"]] for one in (dense, rows)]
    np.testing.assert_allclose(found[0], found[1])


def test_shared_gradients_are_copied_on_request():
    builder = Builder("sum")
    a, b = (builder.value(name, SQUARE, Role.PARAMETER) for name in "ab")
    (y,) = builder.node("Add", [a, b], name="y", outputs=["y"])
    graph = builder.build([y])
    shared = differentiate(graph, ["y"], ["a", "b"])
    copied = differentiate(graph, ["y"], ["a", "b", "a"], options=GradientOptions(shared="copies"))
    assert len(set(gradients(shared).values())) == 1
    assert len({gradient for _, gradient in copied.gradients}) == len(copied.gradients) == 3
    assert [node.op for node in backward(copied)].count("remat::Copy") == 2


def on_devices(*devices: str | None) -> Graph:
    """w read by one Tanh a device; their sum."""
    builder = Builder("devices")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    made = [
        builder.node("Tanh", [w], name=f"r{i}", annotations={} if d is None else {"device": d, "mesh": [i]})[0]
        for i, d in enumerate(devices)
    ]
    (y,) = builder.node("Sum", made, name="y", outputs=["y"])
    return builder.build([y])


def test_annotations_are_copied_and_a_sum_is_on_the_first_device():
    graph = differentiate(on_devices("gpu:1", None, "gpu:1"), ["y"])
    by_name = {node.name: node.annotations for node in backward(graph)}
    assert by_name["grad/r2"]["device"] == "gpu:1" and by_name["grad/r2"]["mesh"] == [2]
    assert "device" not in by_name["grad/r1"] and by_name["grad/w"]["device"] == "gpu:1"


def test_contributions_on_different_devices_are_refused_or_copied():
    graph = on_devices("gpu:0", "gpu:1")
    with pytest.raises(NoGradient, match=r"'w' are on devices gpu:1 and gpu:0") as raised:
        differentiate(graph, ["y"])
    assert codes(raised) == ["device_conflict"]
    copied = differentiate(graph, ["y"], options=GradientOptions(devices="copy"))
    (copy,) = [node for node in backward(copied) if node.op == "remat::Copy"]
    assert (copy.annotations["copied_from"], copy.annotations["device"]) == ("gpu:0", "gpu:1")


def overwritten() -> Graph:
    #   h ── Sin ── s;   w ── Tanh ── h (again);   s and the new h are the outputs
    shape = {"shape": [3, 3], "dtype": "float64"}
    document = {
        "format": "remat/1",
        "naming": "mutable",
        "values": [{"name": "w", "role": "parameter", **shape}],
        "nodes": [
            {"name": "exp", "op": "Exp", "inputs": ["w"], "outputs": ["h"]},
            {"name": "sin", "op": "Sin", "inputs": ["h"], "outputs": ["s"]},
            {"name": "tanh", "op": "Tanh", "inputs": ["w"], "outputs": ["h"]},
        ],
        "outputs": ["s", "h"],
    }
    return load(json.dumps(document).encode())


def test_a_read_of_an_overwritten_version_keeps_it_or_is_refused():
    graph = overwritten()
    w = np.full((3, 3), 0.3)
    kept = differentiate(graph, ["s"])
    np.testing.assert_allclose(evaluate(kept, {"w": w})[gradients(kept)["w"]], np.cos(np.exp(w)) * np.exp(w))
    with pytest.raises(NoGradient) as raised:
        differentiate(graph, ["s"], options=GradientOptions(versions="strict"))
    assert set(codes(raised)) == {"version_conflict"}
    told = "needs 'h' at version 1, it is now at version 2 (version 1 by 'exp', version 2 by 'tanh')"
    assert told in str(raised.value)


def test_a_gradient_does_not_pass_a_barrier_and_its_output_must_be_read():
    builder = Builder("barrier")
    w = builder.value("w", SQUARE, Role.PARAMETER)
    (stopped,) = builder.node("remat::StopGradient", [w], name="stop", outputs=["stopped"])
    (y,) = builder.node("Mul", [stopped, w], name="y", outputs=["y"])
    graph = differentiate(builder.build([y]), ["y"])
    found = evaluate(graph, {"w": np.full((3, 3), 3.0)})[gradients(graph)["w"]]
    np.testing.assert_array_equal(found, np.full((3, 3), 3.0))
    builder.node("remat::StopGradient", [y], name="idle", outputs=["nobody"])
    with pytest.raises(BadGraph, match="'nobody', written by remat::StopGradient 'idle' and never read") as raised:
        differentiate(builder.build([y]), ["y"])
    assert codes(raised) == ["orphan_barrier"]


def test_a_gradient_may_be_scaled():
    for scale, attributes in ((-1.0, {}), (0.5, {"scale": 0.5})):
        graph = differentiate(one_op("remat::GradientScale", attributes=attributes), ["y"])
        found = evaluate(graph, {"w": np.eye(3)})
        np.testing.assert_array_equal(found[gradients(graph)["w"]], np.full((3, 3), scale))
        np.testing.assert_array_equal(found["y"], np.eye(3))


def insisting(*, anchored: bool) -> Graph:
    """w ── acme::Cell ── h, c with a gradient that insists on both; c may have a ZeroGradient behind it."""
    builder = Builder("cell")
    w, h, c = (builder.value(n, SQUARE, Role.PARAMETER if n == "w" else Role.ACTIVATION) for n in "whc")
    builder.node("acme::Cell", [w], name="cell", outputs=[h, c])
    if anchored:
        builder.node("remat::ZeroGradient", [c], name="anchor", outputs=0)
    return builder.build([h])


def test_a_rule_may_require_the_gradient_of_every_output():
    options = GradientOptions(gradient_rules={"acme::Cell": {"needs_all_incoming": True}})
    with pytest.raises(NoGradient, match="output 1, 'c', has none") as raised:
        differentiate(insisting(anchored=False), ["h"], options=options)
    assert codes(raised) == ["missing_output_gradient"]
    graph = differentiate(insisting(anchored=True), ["h"], options=options)
    (node,) = [node for node in backward(graph) if node.op == "acme::CellGrad"]
    assert len(node.inputs) == 2 and -1 not in node.inputs


def test_a_user_rule_returns_one_gradient_per_input():
    def doubled(emit, node, dz):
        return (emit.add(dz, dz),)

    graph = differentiate(
        one_op("acme::Twice"), ["y"], options=GradientOptions(gradient_rules={"acme::Twice": doubled})
    )
    assert [node.op for node in backward(graph)] == ["Expand", "Add"]
    with pytest.raises(NoGradient, match=r"acme::Twice.*returns 2 gradients for 1 inputs") as raised:
        differentiate(
            one_op("acme::Twice"),
            ["y"],
            options=GradientOptions(gradient_rules={"acme::Twice": lambda e, n, dz: (dz, dz)}),
        )
    assert codes(raised) == ["gradient_rule_count"]


def test_a_user_rule_reads_values_of_its_node_only():
    builder = Builder.from_graph(one_op("acme::Twice"))
    other = builder.value("other", SQUARE, Role.INPUT)
    rule = {"acme::Twice": lambda emit, node, dz: (emit.mul(dz, emit.val(other)),)}
    with pytest.raises(NoGradient, match="its gradient rule reads 'other'") as raised:
        differentiate(
            builder.build([builder.nodes[-1].outputs[0]]), ["y"], options=GradientOptions(gradient_rules=rule)
        )
    assert codes(raised) == ["foreign_gradient_read"]


@pytest.mark.parametrize("skip", [["sin1"], {"first": 3}, {"range": [2, 3]}, lambda node: node.op == "Sin"])
def test_skipped_nodes_block_the_gradient(skip: object):
    graph = chain("Tanh", "Sin")  # fc, Tanh0, Sin1, loss
    skip = ["Sin1"] if isinstance(skip, list) else skip
    assert gradients(differentiate(graph, ["loss"], options=GradientOptions(skip=skip))) == {}


@pytest.mark.parametrize("skip", [["nobody"], "Sin1", {"first": -1}, {"range": [1]}, {"last": 3}, 7, [["Sin1"]]])
def test_an_invalid_skip_is_refused(skip: object):
    with pytest.raises(BadGraph):
        differentiate(chain("Tanh", "Sin"), ["loss"], options=GradientOptions(skip=skip))


@pytest.mark.parametrize("field", ["mixed", "devices", "shared", "versions"])
def test_an_unknown_option_is_refused(field: str):
    with pytest.raises(BadGraph, match=f"differentiate.{field}"):
        differentiate(chain("Tanh"), ["loss"], options=GradientOptions(**{field: "perhaps"}))


def test_events_report_every_new_node_and_every_gradient_once():
    events: list[GradientEvent] = []
    graph = chain("Tanh", "Sin")
    made = differentiate(graph, ["loss"], ["w", "tanh0"], callbacks=[events.append])
    added = [event.node for event in events if event.event == "added"]
    assert added == [node.name for node in made.nodes[len(graph.nodes) :]]
    finalised = {event.value: (event.gradient, event.node) for event in events if event.event == "finalised"}
    writer = {made.values[v].name: node.name for node in backward(made) for v in node.writes}
    assert finalised == {name: (gradient, writer[gradient]) for name, gradient in gradients(made).items()}
    report = gradient_report(made, events, ["w", "x"])
    last = writer[gradients(made)["w"]]
    assert [(pair["value"], pair["finalised_by"]) for pair in report["pairs"]] == [("w", last), ("x", None)]
    assert len(report["events"]) == len(events)


def test_the_node_that_completes_a_gradient_is_annotated():
    graph = differentiate(on_devices(None, None), ["y"])
    marked = {
        node.name: node.annotations["finalises_gradient_of"]
        for node in backward(graph)
        if "finalises_gradient_of" in node.annotations
    }
    assert marked == {"grad/w": ["w"]}


@settings(max_examples=60, deadline=None)
@given(st.lists(_STEP, min_size=1, max_size=14))
def test_cached_templates_give_the_gradients_of_the_rules(steps):
    """With and without templates the backward part is the same, node for node and name for name."""
    graph = program(steps)
    replayed = differentiate(graph, ["loss"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TemplateCache, "key", lambda *anything: None)
        asked = differentiate(graph, ["loss"])
    assert [_seen(asked, node) for node in asked.nodes] == [_seen(replayed, node) for node in replayed.nodes]
    assert gradients(asked) == gradients(replayed)


def _seen(graph: Graph, node: Node) -> tuple[object, ...]:
    names = [graph.values[v].name if v >= 0 else "" for v in (*node.inputs, *node.outputs)]
    return node.name, node.op, tuple(names), dict(node.attributes), node.phase, dict(node.annotations)


def test_second_order_gradients_agree_with_finite_differences():
    graph = chain("Tanh")
    once = differentiate(graph, ["loss"])
    total = differentiate(once, [gradients(once)["w"]], ["x"])
    x, w, step = np.linspace(-1, 1, 9).reshape(3, 3), np.eye(3) * 0.5, 1e-6
    direction = np.arange(9.0).reshape(3, 3)

    def slope(x: np.ndarray) -> float:
        return float(evaluate(once, {"x": x, "w": w})[gradients(once)["w"]].sum())

    found = float((evaluate(total, {"x": x, "w": w})[gradients(total)["x"]] * direction).sum())
    expected = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    assert abs(found - expected) < 1e-5 * max(1, abs(expected))
    assert all(node.phase is Phase.BACKWARD for node in total.nodes[len(graph.nodes) :])
