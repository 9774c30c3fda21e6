"""A Scan whose last trips save more computes the same bits, and holds what it is charged."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest

from bench.scans import transformer
from graph.analysis.cost import workspace_of
from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.native.writer import document
from graph.formats.readers import load
from graph.ir import Graph, Role
from graph.loop_remat import SavePolicy, TailPolicy, find_pairs, joint_graphs, just_in_time_backward, with_save_policies
from graph.ops.control_flow import TAIL_GRAD, TAIL_SCAN
from tests.graph.autodiff.gradients.control_flow.test_loop import powers
from tests.graph.autodiff.gradients.control_flow.test_scan import recurrence
from tests.graph.loop_remat.test_saved_values import SCANS, assert_equal_bits, pair_of, step_of, subsets
from tests.graph.ops.control_flow.building import ROW, ROWS, SQUARE, bodies, body_of, loss_of
from tests.graph.ops.control_flow.test_bytes import arena_of


def with_tail(graph: Graph, trips: int, keep: list[str], earlier: tuple[str, ...] = ()) -> Graph:
    """The last `trips` save `keep`, those before `earlier`."""
    pair = pair_of(graph)
    (joint,) = joint_graphs(graph, pair)
    number = {value.name: v for v, value in enumerate(joint.graph.values[: joint.forward_values])}
    ways = [
        just_in_time_backward(joint, [*joint.emitted, *(number[name] for name in names)]) for names in (earlier, keep)
    ]
    return with_save_policies(graph, {pair: SavePolicy((ways[0],), (), TailPolicy(trips, ways[1]))})


def savable(graph: Graph) -> list[str]:
    (joint,) = joint_graphs(graph, pair_of(graph))
    return [joint.graph.values[v].name for v in joint.saved]


@pytest.mark.parametrize("kind", [kind for kind in SCANS if kind != "of one trip"])
def test_however_many_trips_save_more_the_bits_are_the_same(kind: str):
    graph = step_of(recurrence(**{"squash": "Gelu", **SCANS[kind], "trips": 5}))
    for trips in range(1, 5):
        assert_equal_bits(graph, with_tail(graph, trips, savable(graph)))


def small_step() -> Graph:
    return differentiate(transformer(4, 8, 16, 2), ["loss"])


def test_the_pair_becomes_a_scan_with_longer_stacks_of_its_last_trips():
    graph = with_tail(small_step(), 3, ["q", "k", "v"], ("attended",))
    forward, backward = (node for node in graph.nodes if node.bodies)
    assert (forward.op, backward.op) == (TAIL_SCAN, TAIL_GRAD)
    kept = [value for value in graph.values if value.name.startswith("layers/tail/")]
    assert {value.name.rpartition("/")[2] for value in kept} >= {"q", "k", "v"}
    assert all(value.type is not None and value.type.shape[0] == 3 for value in kept)
    saved = graph.values[graph.value_named("layers/saved/attended")]
    assert saved.type is not None and saved.type.shape[0] == 4
    assert len(backward.in_place) == len(kept)


@pytest.mark.parametrize("trips", [1, 3])
def test_the_bodies_hold_what_the_nodes_are_charged(trips: int):
    graph = small_step()
    other = with_tail(graph, trips, ["q", "k", "v", "weights"])
    expected, found = execute(graph).outputs, execute(other, arena=arena_of(other)).outputs
    assert all((expected[name] == found[name]).all() for name in expected)


def test_what_the_earlier_trips_make_anew_lies_in_the_rows_of_the_last():
    graph = small_step()
    plain = with_save_policies(
        graph,
        {pair: SavePolicy((just_in_time_backward(joint_graphs(graph, pair)[0], ()),)) for pair in find_pairs(graph)},
    )
    other = with_tail(graph, 1, ["q", "k", "v"])
    back, tail = (
        next(node for node in g.nodes if node.bodies and node.phase.name == "BACKWARD") for g in (plain, other)
    )
    rows = sum(other.values[back].nbytes for back in tail.outputs[-len(tail.in_place) :])
    assert workspace_of(other, tail) <= workspace_of(graph=plain, node=back) - rows


def test_a_document_brings_such_a_pair_back():
    graph = with_tail(small_step(), 2, ["q", "k"])
    assert_equal_bits(graph, load(json.dumps(document(graph)).encode()))


@pytest.mark.parametrize("trips", [4, pytest.param(1, marks=pytest.mark.heavy)])
def test_states_carried_by_the_backward_pass_are_available_in_the_last_iterations(trips: int):
    #   h_next = tanh(gelu(h w + x)): the way back reads h_next and h, and carries one from trip to trip
    graph = step_of(two_squashes())
    names = ["h", "h_next", "sum", "active"]
    whole = with_tail(graph, trips, names, ("h", "h_next"))
    assert any("/first/" in value.name for value in whole.values)
    tried = 0
    for earlier, keep in itertools.product(subsets(names), repeat=2):
        with contextlib.suppress(BadGraph):  # the last trips save nothing more
            assert_equal_bits(graph, with_tail(graph, trips, list(keep), earlier))
            tried += 1
    assert tried > 20


def two_squashes() -> Graph:
    b = Builder("two squashes")
    h0, xs, w = (b.value(n, t, Role.PARAMETER) for n, t in (("h0", ROW), ("xs", ROWS), ("w", SQUARE)))

    def make(inner, v):
        (product,) = inner.node("MatMul", [v["h"], v["w"]])
        (sum_,) = inner.node("Add", [product, v["x"]], outputs=["sum"])
        (active,) = inner.node("Gelu", [sum_], outputs=["active"])
        return inner.node("Tanh", [active], outputs=["h_next"])

    body = body_of(b, {"h": ROW, "x": ROW}, [w], make)
    (last,) = b.node(
        "Scan",
        [h0, b.node("Concat", [xs, xs], attributes={"axis": 0})[0]],
        name="steps",
        types=[ROW],
        attributes={"num_scan_inputs": 1},
        bodies=bodies(body=body),
    )
    return loss_of(b, last)


@pytest.mark.parametrize("name", ["num_tail_inputs", "trips", "tail_trips", "num_tail_stacks", "laid_rows"])
@pytest.mark.parametrize("given", [None, "many", [-1]])
def test_a_document_that_does_not_say_how_such_a_pair_runs_is_refused(name: str, given: object):
    sent = document(with_tail(small_step(), 2, ["q", "k"]))
    for node in sent["nodes"]:
        if name in node.get("attributes", {}):
            node["attributes"][name] = given
    if (name, given) == ("laid_rows", None):
        return  # nothing is laid
    with pytest.raises(BadGraph, match=name):
        load(json.dumps(sent).encode())


def test_a_loop_has_no_known_last_trips():
    with pytest.raises(BadGraph, match="Loop"):
        with_tail(step_of(powers(4, None)), 2, [])


@pytest.mark.parametrize("trips", [0, 5])
def test_the_last_trips_are_some_but_not_all(trips: int):
    with pytest.raises(BadGraph, match=f"the last {trips} of 5"):
        with_tail(step_of(recurrence(5)), trips, ["h"])
