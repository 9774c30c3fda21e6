"""A recurrent net as a Scan computes what its steps do one after the other, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.caffe2.ops import CAFFE2
from graph.ir import Graph, Node, Role, TensorType, walk
from graph.ops.registry.onnx_fallback import type_of_array
from graph.recurrent import (
    Alias,
    Link,
    RecurrentNet,
    RecurrentState,
    add_recurrent,
    add_unrolled,
    cell_net,
    describe_recurrence,
    recompute_hints,
    recompute_values,
)
from tests.graph.ops.control_flow.building import bodies, body_of, loss_of
from tests.recurrent_cells import CELLS, Cell, gru, lstm, multiplicative, op

EVERY = pytest.mark.parametrize("name", CELLS)


def feeds(of: Cell, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in of.shapes.items()}
    return {**found, **{name: np.array(values, np.int32) for name, values in of.integers.items()}}


def trained(of: Cell, targets: list[str], **how: object) -> Graph:
    wanted = [name for name in of.shapes if name not in of.integers]
    return differentiate(of.graph(**how), targets, wanted)  # type: ignore[arg-type]


def gradients(graph: Graph, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name, and the gradient of each wanted value as `grad:NAME`."""
    outputs = execute(graph, given).outputs
    pairs = {f"grad:{graph.values[p].name}": outputs[graph.values[g].name] for p, g in graph.gradients}
    names = {graph.values[g].name for _, g in graph.gradients}
    return {**{name: array for name, array in outputs.items() if name not in names}, **pairs}


@EVERY
def test_a_net_over_time_and_written_out_are_equal(name):
    of = CELLS[name]()
    for targets in ([of.outputs[0]], [of.outputs[1]], of.outputs):
        over_time, written_out = (gradients(trained(of, targets, unrolled=way), feeds(of)) for way in (False, True))
        assert over_time.keys() == written_out.keys()
        for key, array in over_time.items():
            np.testing.assert_allclose(array, written_out[key], rtol=2e-5, atol=2e-6, err_msg=key)


@EVERY
def test_gradients_agree_with_finite_differences(name):
    of = CELLS[name]()
    graph, given = trained(of, of.outputs), feeds(of)
    found = gradients(graph, given)
    forward, rng = of.graph(), np.random.default_rng(5)

    def total(of_feeds: dict[str, np.ndarray]) -> float:
        return float(sum(array.astype(np.float64).sum() for array in execute(forward, of_feeds).outputs.values()))

    for key in (k for k in found if k.startswith("grad:")):
        name_of, gradient = key[5:], found[key]
        way = rng.choice([-1.0, 1.0], gradient.shape).astype(np.float32)
        step = np.float32(5e-3)
        ahead, behind = ({**given, name_of: given[name_of] + sign * step * way} for sign in (1, -1))
        slope = (total(ahead) - total(behind)) / (2 * float(step))
        assert slope == pytest.approx(float((gradient * way).sum()), rel=2e-2, abs=3e-2), key


@EVERY
def test_recomputed_values_are_not_saved_and_results_are_unchanged(name):
    of = CELLS[name]()
    if not of.recompute:
        return
    graph = trained(of, of.outputs)
    again = recompute_values(graph, "rnn", of.recompute)
    before, after = (describe_recurrence(g, "rnn") for g in (graph, again))
    assert before.backward is not None and after.backward is not None
    assert not {held.name for held in after.backward.held} & set(of.recompute)
    assert after.held_bytes < before.held_bytes
    assert set(after.backward.made_again) <= set(of.recompute)
    for key, array in gradients(graph, feeds(of)).items():
        np.testing.assert_array_equal(array, gradients(again, feeds(of))[key], key)


@EVERY
def test_what_is_held_is_what_the_forward_node_hands_to_the_backward_one(name):
    of = CELLS[name]()
    for graph in (trained(of, of.outputs), recompute_values(trained(of, of.outputs), "rnn", of.recompute)):
        found = describe_recurrence(graph, "rnn")
        assert found.backward is not None
        handed = {value.name: value.nbytes for value in graph.values if value.name.startswith("rnn/saved/")}
        assert found.held_bytes == sum(handed.values())
        assert all(held.steps == of.shapes["input"][0] for held in found.backward.held)


def test_sequences_that_end_keep_their_states_or_drop_them():
    for drop in (False, True):
        of = lstm(steps=4, rows=3, lengths=[4, 1, 2], drop=drop)
        found = execute(of.graph(), feeds(of)).outputs
        whole = found["hidden_0_all"]
        np.testing.assert_array_equal(whole[2:, 1], np.zeros_like(whole[2:, 1]) if drop else whole[[0, 0], 1])
        np.testing.assert_array_equal(found["hidden_0_last"][0], whole[-1])
    of = gru(lengths=[4, 1, 2])
    whole = execute(of.graph(), feeds(of)).outputs["hidden_all"]
    np.testing.assert_array_equal(whole[1:, 1], whole[[0, 0, 0], 1])


def test_an_initial_value_of_one_dimension_is_repeated_and_its_gradient_summed_over_the_rows():
    of = multiplicative(steps=2, rows=3, size=2)
    of.shapes["initial_0"] = (2,)
    found = gradients(trained(of, ["out_0_all"]), feeds(of))
    x, start = feeds(of)["input"], feeds(of)["initial_0"]
    np.testing.assert_allclose(found["out_0_all"], np.cumprod(x, axis=0) * start, rtol=1e-6)
    expected = (x[0] + x[0] * x[1]).sum(axis=0)
    np.testing.assert_allclose(found["grad:initial_0"], expected, rtol=1e-5)
    of.shapes["initial_0"] = (3, 2)
    assert gradients(trained(of, ["out_0_all"]), feeds(of))["grad:initial_0"].shape == (3, 2)


def test_a_step_op_written_in_place_brings_all_its_writers_along():
    of = lstm()
    graph = recompute_values(trained(of, ["hidden_0_all"]), "rnn", ["gates_0"])
    back = describe_recurrence(graph, "rnn").backward
    assert back is not None
    assert [row.of for row in back.ops if row.kind == "again"] == ["FC", "Sum"]


def test_an_undifferentiated_net_has_no_backward_step_and_saves_nothing():
    of = lstm()
    found = describe_recurrence(of.graph(), "rnn")
    assert found.backward is None and found.held_bytes == 0
    assert found.as_dict()["memory"]["training_bytes"] == found.step_bytes
    trained_bytes = describe_recurrence(trained(of, ["hidden_0_all"]), "rnn").as_dict()["memory"]["training_bytes"]
    assert trained_bytes > found.step_bytes


def test_roles_links_and_aliases_are_reported():
    of = lstm(lengths=[4, 3, 2])
    found = describe_recurrence(of.graph(), "rnn")
    assert found.references == ("gates_0_w", "gates_0_b", "seq_lengths")
    assert found.sequences == ("input",) and found.timestep == "timestep"
    assert ("hidden_0", "rnn/hidden_0_prev_states", 1, 1) in found.links
    assert ("rnn/cell_0_prev_states", "cell_0_last", -1) in found.aliases
    assert [(name, positions, size) for name, _, positions, size in found.states] == [
        ("rnn/hidden_0_prev_states", 5, 5 * 3 * 2 * 4),
        ("rnn/cell_0_prev_states", 5, 5 * 3 * 2 * 4),
    ]


def test_values_of_the_step_can_be_fetched_over_time():
    of = lstm()
    found = execute(of.graph(fetched=["gates_0", "input_t"]), feeds(of)).outputs
    np.testing.assert_array_equal(found["rnn/input_t"], feeds(of)["input"])


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (lambda of: of.ops.append(op("Mul", "hidden_0 nobody", "more")), "undefined_value", "nobody"),
        (lambda of: of.sequences.clear(), "no_sequence", "sequence"),
        (lambda of: of.shapes.update(hidden_0_init=(2, 3, 2)), "state_length", "hidden_0_prev_states"),
        (lambda of: of.shapes.update(input=(0, 3, 8)), "sequence_length", "input"),
        (lambda of: of.outputs.extend(["one", "more"]), "bad_link", "outputs"),
        (lambda of: of.ops.append(op("Conjure", "hidden_0", "rabbit")), "unsupported_op", "Conjure"),
        (lambda of: of.shapes.update(cell_0_init=(1, 3, 3)), "type_conflict", "LSTMUnit"),
    ],
)
def test_a_net_that_does_not_fit_together_is_refused_by_name(change, code, named):
    of = lstm()
    change(of)
    with pytest.raises(BadGraph) as refused:
        of.graph()
    assert refused.value.findings[0].code == code
    assert named in str(refused.value)


def test_a_recompute_list_names_what_an_op_writes_and_all_of_it():
    of = lstm()
    graph = trained(of, ["hidden_0_all"])
    for listed, code, named in (
        (["hidden_0"], "recompute_undeclared", "'cell_0'"),
        (["gates_0", "gate"], "recompute_unknown", "'gate'"),
    ):
        for ask in (lambda names: recompute_values(graph, "rnn", names), lambda names: of.graph(recompute=names)):
            with pytest.raises(BadGraph) as refused:
                ask(listed)
            assert refused.value.findings[0].code == code
            assert named in str(refused.value)


def test_a_state_that_is_listed_keeps_its_value():
    of = lstm()
    graph = trained(of, of.outputs)
    again = recompute_values(graph, "rnn", ["gates_0", "hidden_0", "cell_0"])
    for key, array in gradients(graph, feeds(of)).items():
        np.testing.assert_array_equal(array, gradients(again, feeds(of))[key], key)


def test_a_window_shows_older_positions_and_the_one_just_written():
    #   s = [z, z | x0, x0+x1, ...]      at step t the window shows positions t .. t + 2, of which t + 2 is new
    net = RecurrentNet(
        "rnn",
        (op("Sum", "x last", "new"), op("ReduceSum", "window", "total", axes=[0], keepdims=1)),
        ("x_all",),
        {"s": "zeros", "totals": "zero"},
        (
            Link("x", "x_all"),
            Link("last", "s", 1),
            Link("window", "s", 0, 3),
            Link("new", "s", 2),
            Link("total", "totals", 1),
        ),
        (Alias("s", "sums", 2), Alias("totals", "windows", 1), Alias("s", "all", 0), Alias("s", "end", -2)),
    )
    x = np.arange(1, 6, dtype=np.float32).reshape(5, 1, 1)
    given = {"x_all": x, "zeros": np.zeros((2, 1, 1), np.float32), "zero": np.zeros((1, 1, 1), np.float32)}
    for add in (add_recurrent, add_unrolled):
        builder = Builder("windows")
        values = {name: builder.value(name, type_of_array(array), Role.PARAMETER) for name, array in given.items()}
        made = add(builder, net, values, table=CAFFE2)
        graph = differentiate(builder.build([made[a.name] for a in net.aliases]), ["windows", "end"])
        found = gradients(graph, given)
        assert found["sums"].ravel().tolist() == [1, 3, 6, 10, 15]
        assert found["windows"].ravel().tolist() == [1, 4, 10, 19, 31]
        assert found["all"].ravel().tolist() == [0, 0, 1, 3, 6, 10, 15]
        assert found["end"].ravel().tolist() == [10, 15]
        # x_k is in sums k .. 4; sum j is in windows j .. j + 2, and the last two are at the end.
        assert found["grad:x_all"].ravel().tolist() == [14, 11, 8, 5, 2]


def test_sequences_of_several_names_and_windows_go_together():
    net = RecurrentNet(
        "rnn",
        (op("ReduceSum", "pair", "two", axes=[0], keepdims=1), op("Mul", "two y", "m"), op("Sum", "m h", "n")),
        ("x", "y_all"),
        {"s": "zero"},
        (Link("pair", "x", 0, 2), Link("y", "y_all"), Link("h", "s", 0), Link("n", "s", 1)),
        (Alias("s", "out", 1),),
    )
    given = {
        "x": np.arange(4, dtype=np.float32).reshape(4, 1, 1),
        "zero": np.zeros((1, 1, 1), np.float32),
        "y_all": np.array([1, 10, 100], np.float32).reshape(3, 1, 1),
    }
    for add in (add_recurrent, add_unrolled):
        builder = Builder("pairs")
        values = {name: builder.value(name, type_of_array(array), Role.PARAMETER) for name, array in given.items()}
        graph = differentiate(builder.build([add(builder, net, values, table=CAFFE2)["out"]]), ["out"])
        found = gradients(graph, given)
        assert found["out"].ravel().tolist() == [1, 31, 531]
        assert found["grad:x"].ravel().tolist() == [3, 23, 120, 100]


def test_gates_and_attention_block_are_presets_and_can_be_recomputed():
    expected = {
        "lstm": {"gates": ["gates_0"]},
        "milstm": {"gates": ["wh", "a", "b1", "b2", "gates"]},
        "multiplicative": {},
    }
    for name, kinds in expected.items():
        assert recompute_hints(scan_of(CELLS[name]())) == kinds
    found = recompute_hints(scan_of(CELLS["attention"]()))
    assert {"gates", "seen"} <= set(found["gates"])
    assert {"query", "scored", "logits", "by_row", "weights", "context_by_row"} <= set(found["attention"])
    assert not {"hidden", "cell", "context"} & {*found["gates"], *found["attention"]}
    for name in ("lstm", "milstm", "gru", "attention"):
        of = CELLS[name]()
        names = [each for kind in recompute_hints(scan_of(of)).values() for each in kind]
        graph = trained(of, of.outputs)
        assert (
            describe_recurrence(recompute_values(graph, "rnn", names), "rnn").held_bytes
            < describe_recurrence(graph, "rnn").held_bytes
        )


def scan_of(of: Cell) -> Node:
    (node,) = [node for node in of.graph().nodes if node.op == "Scan"]
    return node


def test_a_scan_of_another_source_is_reported_in_the_names_of_its_body():
    kind = TensorType("float64", (3, 4))
    builder = Builder("scan")
    x, w = (
        builder.value("x", TensorType("float64", (5, 3, 4)), Role.PARAMETER),
        builder.value("w", kind, Role.PARAMETER),
    )

    def step(inner, v):
        (s,) = inner.node("Mul", [v["h"], v["w"]], name="weighed", outputs=["s"])
        (t,) = inner.node("Add", [s, v["e"]], name="sum", outputs=["t"])
        (u,) = inner.node("Tanh", [t], name="act", outputs=["u"])
        return inner.node("Mul", [u, u], name="square", outputs=["h_next"])

    body = body_of(builder, {"h": kind, "e": kind}, [w], step)
    how = {"types": [kind], "attributes": {"num_scan_inputs": 1}, "bodies": bodies(body=body)}
    (last,) = builder.node("Scan", [w, x], name="layers", **how)
    graph = loss_of(builder, last)
    graph = differentiate(graph, [graph.values[graph.outputs[0]].name], ["x", "w"])
    found = describe_recurrence(recompute_values(graph, "layers", ["t", "u"]), "layers").backward
    assert found is not None
    assert found.made_again == ("t", "u")
    assert {held.name for held in found.held} == {"h", "s"}
    again = [(row.of, row.reads, row.writes) for row in found.ops if row.kind == "again"]
    assert again == [("Add", ("s", "e"), ("t",)), ("Tanh", ("t",), ("u",))]
    assert {(row.of, row.of_outputs) for row in found.ops if row.op == "remat::TanhGrad"} == {("Tanh", ("u",))}


@pytest.mark.parametrize("table", [CAFFE2, None])
@pytest.mark.parametrize("add", [add_recurrent, add_unrolled])
def test_an_unknown_op_of_a_step_is_planned_by_declared_types_and_gradient_rules(add, table):
    kind = "caffe2::Conjure" if table is CAFFE2 else "acme::Conjure"
    ops = [op("Conjure" if table is CAFFE2 else kind, "input_t h_prev", "h")]
    net = cell_net("rnn", ops, {"input_t": "input"}, [RecurrentState("h_prev", "h0", "h")], ["h_all", "h_last"])

    def build(**how):
        builder = Builder("recurrent")
        shapes = {"input": (3, 2, 4), "h0": (1, 2, 4)}
        given = {name: builder.value(name, TensorType("float32", s), Role.PARAMETER) for name, s in shapes.items()}
        return builder.build([add(builder, net, given, table=table, **how)["h_last"]])

    with pytest.raises(BadGraph, match="declared types of its outputs"):
        build()
    types = {"h": TensorType("float32", (1, 2, 4))}
    with pytest.raises(BadGraph, match="gradient_reads"):
        differentiate(build(types=types), ["h_last"], ["input", "h0"])
    rules = {kind: {"op": f"{kind}Gradient", "reads": ["incoming", "outputs[0]"]}}
    graph = differentiate(build(types=types, gradient_rules=rules), ["h_last"], ["input", "h0"])
    made = {node.op for nested in walk(graph) for node in nested.nodes}
    assert {kind, f"{kind}Gradient"} <= made
    assert {graph.values[v].name for v, _ in graph.gradients} == {"input", "h0"}
