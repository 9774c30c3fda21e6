"""A Caffe2 LSTM written out and over time, with and without a recompute list, planned, executed and compared."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.native.writer import document
from graph.formats.readers import load
from graph.ir import Graph, Phase, Role, TensorType
from graph.recurrent import add_recurrent, add_unrolled, describe_recurrence, describe_recurrences, recompute_values
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.report.saved_report import verify
from planner.request.plan_request import parse_request
from tests.graph.formats.caffe2.nets import LSTM_SHAPES
from tests.graph.formats.caffe2.nets import lstm as lstm_net
from tests.recurrent_cells import CELLS, Cell, lstm

pytestmark = pytest.mark.usefixtures("quick_bounds")

STEPS, ROWS, SIZE = 24, 4, 8


def around(builder: Builder, of: Cell) -> dict[str, int]:
    """What is outside the net: the sequence is an input, all else are parameters."""
    return {
        name: builder.value(name, TensorType("float32", shape), Role.INPUT if name == "input" else Role.PARAMETER)
        for name, shape in of.shapes.items()
    }


def with_loss(of: Cell, unrolled: bool = False) -> Graph:
    """The mean square of the last hidden state."""
    builder = Builder("training")
    given = around(builder, of)
    of.outputs = ["", of.outputs[1]]
    found = (add_unrolled if unrolled else add_recurrent)(builder, of.net(), given, table=CAFFE2)
    last = found[of.outputs[1]]
    (square,) = builder.node("Mul", [last, last])
    (loss,) = builder.node("ReduceMean", [square], outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def long_lstm() -> Cell:
    return lstm(steps=STEPS, rows=ROWS, size=SIZE)


def outputs_by_owner(graph: Graph) -> dict[str, np.ndarray]:
    """The loss, and each parameter's gradient under the parameter's name."""
    rng = np.random.default_rng(11)
    given = {
        v.name: v.type for v in sorted(graph.values, key=lambda v: v.name) if v.role in (Role.INPUT, Role.PARAMETER)
    }
    feeds = {name: rng.uniform(-0.5, 0.5, type.shape).astype(np.float32) for name, type in given.items() if type}
    found = execute(graph, feeds).outputs
    return {"loss": found["loss"]} | {graph.values[p].name: found[graph.values[g].name] for p, g in graph.gradients}


def planned(graph: Graph, **fields: Any) -> Outcome:
    request = {
        "loss": "loss",
        "counts": "activations",
        "execute": "yes",
        "iterations": 60,
        "return": ["plan", "source"],
    }
    outcome = solve(graph, parse_request({**request, **fields}))
    assert outcome.report["executed"]["status"] == "equal"
    verify(outcome.report)
    return outcome


def test_an_lstm_written_out_over_time_and_with_its_gates_made_again_has_the_same_numbers_in_less_memory():
    written_out = differentiate(with_loss(long_lstm(), unrolled=True), ["loss"])
    over_time = differentiate(with_loss(long_lstm()), ["loss"])
    again = recompute_values(over_time, "rnn", ["gates_0"])
    plain, scanned, rerun = map(outputs_by_owner, (written_out, over_time, again))
    for name, array in plain.items():
        np.testing.assert_allclose(scanned[name], array, rtol=3e-5, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(rerun[name], scanned[name], name)
    peaks = [execute(graph).peak_bytes for graph in (written_out, over_time, again)]
    assert peaks[2] < peaks[1] and peaks[2] < peaks[0]


@pytest.mark.parametrize("listed", [[], ["gates_0"], ["gates_0", "hidden_0", "cell_0"]])
def test_the_bytes_held_per_step_are_those_an_execution_holds_between_forward_and_backward(listed):
    graph = recompute_values(differentiate(with_loss(long_lstm()), ["loss"]), "rnn", listed)
    told = describe_recurrence(graph, "rnn")
    assert told.backward is not None
    per_step = {held.name: held.bytes_per_step for held in told.backward.held}
    states, gates = ROWS * SIZE * 4, ROWS * 4 * SIZE * 4
    assert per_step == {"hidden_0_prev": states, "cell_0_prev": states} | ({} if listed else {"gates_0": gates})
    # Between the Scans nothing else is alive but what is there from the start and a few values of one step's size.
    steps = execute(graph).step_bytes
    edge = next(n for n, node in enumerate(graph.nodes) if node.phase is Phase.BACKWARD)
    without = recompute_values(differentiate(with_loss(lstm(steps=1, rows=ROWS, size=SIZE)), ["loss"]), "rnn", listed)
    one = execute(without).step_bytes
    start, start_of_one = (sum(v.nbytes for v in g.values if v.role is not Role.ACTIVATION) for g in (graph, without))
    assert steps[edge] - start == one[edge] - start_of_one + (STEPS - 1) * told.held_bytes // STEPS


@pytest.mark.parametrize("share", ["60%", "45%", "33%"])
def test_parts_of_a_net_are_run_again_to_a_budget(share):
    outcome = planned(with_loss(long_lstm()), planner="recurrent", budget=share)
    report = outcome.report
    assert report["plan"]["status"] != "over_budget"
    assert report["plan"]["recomputed"]
    assert any("split along time" in warning for warning in report["warnings"])
    assert 0 < report["plan"]["overhead"] < 1
    plain = outputs_by_owner(differentiate(with_loss(long_lstm()), ["loss"]))
    for name, array in outputs_by_owner(outcome.graph).items():
        np.testing.assert_array_equal(array, plain[name], name)


def test_what_is_made_again_inside_a_step_can_be_listed_in_a_request():
    outcome = planned(with_loss(long_lstm()), planner="as_given", recompute=["gates_0"], budget="100%")
    back = describe_recurrence(outcome.source, "rnn").backward
    assert back is not None and back.made_again == ("gates_0",)
    held = planned(with_loss(long_lstm()), planner="as_given", budget="100%").report["baseline"]["peak_bytes"]
    assert outcome.report["baseline"]["peak_bytes"] < held


def test_a_list_made_with_the_net_is_followed():
    of = long_lstm()
    of.recompute = ["gates_0"]
    builder = Builder("training")
    found = add_recurrent(builder, of.net(recompute=["gates_0"]), around(builder, of), table=CAFFE2)
    (loss,) = builder.node("ReduceMean", [found["hidden_0_all"]], outputs=["loss"], attributes={"keepdims": 0})
    outcome = planned(builder.build([loss]), planner="recurrent", max_overhead="50%")
    for name in (node.name for node in outcome.source.nodes if node.op == "Scan" and node.phase is Phase.FORWARD):
        back = describe_recurrence(outcome.source, name).backward
        assert back is not None and "gates_0" not in [held.name for held in back.held]


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_in_parts_is_equal_to_the_last_bit(name):
    graph = with_loss(CELLS[name](steps=9))
    outcome = planned(graph, planner="recurrent", budget="1%")
    plain = outputs_by_owner(differentiate(graph, ["loss"]))
    for key, array in outputs_by_owner(outcome.graph).items():
        np.testing.assert_array_equal(array, plain[key], key)


def test_a_net_travels_as_a_document_with_its_links():

    graph = differentiate(with_loss(long_lstm()), ["loss"])
    again = load(json.dumps(document(graph)).encode())
    assert describe_recurrence(again, "rnn").as_dict() == describe_recurrence(graph, "rnn").as_dict()


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_an_op_of_the_standard_is_planned_step_by_step(op, gates):
    builder = Builder(op)
    x = builder.value("x", TensorType("float32", (48, 6, 8)), Role.INPUT)
    w, r = (builder.value(name, TensorType("float32", (1, gates * 8, 8)), Role.PARAMETER) for name in "wr")
    _, last = builder.node(op, [x, w, r], outputs=[None, "last"], attributes={"hidden_size": 8})
    (square,) = builder.node("Mul", [last, last])
    graph = builder.build(builder.node("ReduceMean", [square], outputs=["loss"], attributes={"keepdims": 0}))
    whole = planned(graph, planner="as_given", budget="100%").report["baseline"]["peak_bytes"]
    outcome = planned(graph, planner="recurrent", budget=whole * 2 // 3)
    assert any(node.op == "Scan" for node in outcome.source.nodes)
    assert outcome.report["plan"]["status"] != "over_budget"
    plain = differentiate(graph, ["loss"])
    for name, array in outputs_by_owner(outcome.graph).items():
        np.testing.assert_allclose(array, outputs_by_owner(plain)[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("listed", ["", "gates", "gh gates"])
def test_a_caffe2_file_with_a_recompute_list_is_followed_and_holds_what_is_told(listed):
    model = lstm_net(listed).SerializeToString()
    shapes = {name: list(shape) for name, shape in LSTM_SHAPES.items()}
    asked = {"loss": "s", "inputs": shapes, "planner": "recurrent", "max_overhead": "0%", "return": ["plan", "source"]}
    outcome = solve(model, parse_request(asked | {"iterations": 20, "execute": "yes"}))
    assert outcome.report["executed"]["status"] == "equal"
    nets = [net for net in describe_recurrences(outcome.source) if net.backward is not None]
    held = {each.name for net in nets if net.backward is not None for each in net.backward.held}
    assert ("gates" in held) == ("gates" not in listed)
    assert not held & set(listed.split())
    saved = sum(v.nbytes for v in outcome.source.values if "/saved/" in v.name and v.role is Role.ACTIVATION)
    assert sum(net.held_bytes for net in nets) == saved


def test_a_graph_without_a_net_over_time_is_planned_as_it_is_and_says_so():
    builder = Builder("plain")
    x = builder.value("x", TensorType("float32", (4, 4)), Role.INPUT)
    w = builder.value("w", TensorType("float32", (4, 4)), Role.PARAMETER)
    (h,) = builder.node("MatMul", [x, w])
    graph = builder.build(builder.node("ReduceMean", [h], outputs=["loss"], attributes={"keepdims": 0}))
    report = planned(graph, planner="recurrent", budget="100%").report
    assert any("no recurrent net can be split" in warning for warning in report["warnings"])
