"""Replay: a graph in another order, with recomputed nodes."""

from __future__ import annotations

import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import Graph, Phase, Role, TensorType
from graph.transforms.replay import replay
from graph.validate.check import check

F8 = TensorType("float32", (8,))


def chain() -> Graph:
    #   x ── exp ── a ── tanh ── b ──╮
    #                ╰──────────── mul ── c      mul is backward
    b = Builder("chain")
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Exp", [x], name="exp", outputs=["a"])
    (t,) = b.node("Tanh", [a], name="tanh", outputs=["b"])
    (c,) = b.node("Mul", [t, a], name="mul", outputs=["c"], phase=Phase.BACKWARD)
    return b.build([c])


def reads(graph: Graph, node: int) -> list[str]:
    return [graph.values[v].name for v in graph.nodes[node].inputs]


def test_every_read_binds_to_the_latest_copy() -> None:
    again = replay(chain(), [0, 1, 0, 2])
    check(again)
    assert [node.name for node in again.nodes] == ["exp", "tanh", "exp/1", "mul"]
    assert reads(again, 1) == ["a"]
    assert reads(again, 3) == ["b", "a/1"]


def test_each_copy_is_annotated_with_its_node_and_run() -> None:
    again = replay(chain(), [0, 1, 0, 2])
    assert [node.annotations["origin"] for node in again.nodes] == [["exp", 0], ["tanh", 0], ["exp", 1], ["mul", 0]]


def test_an_output_keeps_its_name_on_its_last_run() -> None:
    again = replay(chain(), [0, 1, 2, 2])
    assert [again.values[v].name for v in again.outputs] == ["c"]
    assert again.nodes[3].outputs == again.outputs
    assert again.values[again.nodes[2].outputs[0]].name == "c/0"


def test_a_copy_belongs_to_the_phase_it_runs_in() -> None:
    b = Builder.from_graph(chain())
    (d,) = b.node("Mul", [b.values.index(next(v for v in b.values if v.name == "c")), 1], phase=Phase.BACKWARD)
    again = replay(b.build([d]), [0, 1, 2, 0, 3])
    assert [node.phase for node in again.nodes] == [0, 0, 1, 1, 1]


def test_copies_do_not_take_names_of_the_graph() -> None:
    b = Builder.from_graph(chain())
    (d,) = b.node("Neg", [1], name="exp/1", outputs=["a/1"])
    again = replay(b.build([2, d]), [0, 1, 3, 0, 2])
    check(again)
    assert len({node.name for node in again.nodes}) == 5


def test_a_node_left_out_is_refused_by_name() -> None:
    with pytest.raises(BadGraph, match="no run of tanh"):
        replay(chain(), [0, 2])


def test_a_read_before_the_first_write_is_refused() -> None:
    with pytest.raises(BadGraph, match="tanh reads a"):
        replay(chain(), [1, 0, 2])


def test_the_document_order_gives_the_same_graph() -> None:
    source = chain()
    again = replay(source, range(3))
    assert [v.name for v in again.values] == [v.name for v in source.values]
    assert [(n.name, n.inputs, n.outputs) for n in again.nodes] == [(n.name, n.inputs, n.outputs) for n in source.nodes]
