"""Realize: node sequence with views, bytes of each entry, and the rewritten graph."""

from __future__ import annotations

import numpy as np

from graph.analysis.devices import resolve_device
from graph.builder.builder import Builder
from graph.ir import Graph, Role, TensorType
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import LoweredGraph
from planner.lowering.realize import node_sequence, realize, value_instances
from planner.problem import liveness
from planner.problem.evaluate import evaluate
from planner.problem.plan import Goal, Plan
from planner.request.target_runtime import runtime_named

F8 = TensorType("float32", (8,))


def lowered(graph: Graph) -> LoweredGraph:
    return lower(graph, resolve_device("a100-80gb"), runtime_named("arena"))


def plan_of(low: LoweredGraph, order: list[int]) -> Plan:
    return evaluate(low.problem, Goal(), np.asarray(order), "random_below")


def viewed() -> Graph:
    #   x ── make ── a ── view ── v ── use ── c ── join ── d
    #                 ╰──────── other ── e ────────╯
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("acme::Make", [x], name="make", outputs=["a"], types=[F8])
    (v,) = b.node("acme::View", [a], name="view", outputs=["v"], types=[F8], views=((0, 0),))
    (c,) = b.node("acme::Use", [v], name="use", outputs=["c"], types=[F8])
    (e,) = b.node("acme::Other", [a], name="other", outputs=["e"], types=[F8])
    (d,) = b.node("acme::Join", [c, e], name="join", outputs=["d"], types=[F8])
    return b.build([d])


def runs(low: LoweredGraph, order: list[int]) -> list[tuple[str, int]]:
    return node_sequence(low, plan_of(low, order)).runs(low)


def test_a_view_stands_right_after_the_run_it_shows() -> None:
    assert runs(lowered(viewed()), [0, 2, 1, 3]) == [("make", 0), ("view", 0), ("other", 0), ("use", 0), ("join", 0)]


def test_only_runs_with_a_later_reader_through_the_view_are_shown() -> None:
    assert runs(lowered(viewed()), [0, 2, 0, 1, 3]) == [
        ("make", 0),
        ("other", 0),
        ("make", 1),
        ("view", 0),
        ("use", 0),
        ("join", 0),
    ]


def test_a_view_is_made_before_the_first_task_that_reads_its_shape_whichever_run_it_shows() -> None:
    #   x ── make ── a ── view ── v ──┬── shape ── s
    #                                 ╰── use ── c
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Relu", [x], name="make", outputs=["a"])
    (v,) = b.node("Reshape", [a, b.constant(np.array([2, 4]))], name="view", outputs=["v"])
    (s,) = b.node("Shape", [v], name="shape", outputs=["s"])
    (c,) = b.node("Relu", [v], name="use", outputs=["c"])
    low = lowered(b.build([s, c]))
    whole = node_sequence(low, plan_of(low, [0, 1, 0, 2]))
    assert whole.runs(low) == [("make", 0), ("view", 0), ("shape", 0), ("make", 1), ("view", 1), ("use", 0)]
    assert [node.name for node in whole.rewritten.nodes] == ["make", "view", "shape", "make/1", "view/1", "use"]
    assert runs(low, [0, 1, 2]) == [("make", 0), ("view", 0), ("shape", 0), ("use", 0)]


def test_a_view_nobody_reads_runs_once_and_keeps_its_storage_that_long() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("acme::Make", [x], name="make", outputs=["a"], types=[F8])
    b.node("acme::View", [a], name="view", outputs=["v"], types=[F8], views=((0, 0),))
    low = lowered(b.build([]))
    whole = node_sequence(low, plan_of(low, [0]))
    assert whole.runs(low) == [("make", 0), ("view", 0)]
    assert whole.step_bytes.tolist() == [64, 64]


def test_views_of_residents_stand_at_the_start() -> None:
    b = Builder()
    w = b.value("w", F8, Role.PARAMETER)
    (v,) = b.node("acme::View", [w], name="view", outputs=["v"], types=[F8], views=((0, 0),))
    (y,) = b.node("acme::Use", [v], name="use", outputs=["y"], types=[F8])
    low = lowered(b.build([y]))
    whole = node_sequence(low, plan_of(low, [0]))
    assert whole.runs(low) == [("view", 0), ("use", 0)]
    assert whole.step_bytes.tolist() == [32, 64]


def test_a_viewed_output_shows_the_last_run() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("acme::Make", [x], name="make", outputs=["a"], types=[F8])
    (v,) = b.node("acme::View", [a], name="view", outputs=["v"], types=[F8], views=((0, 0),))
    b.node("acme::Use", [a], name="use", outputs=["c"], types=[F8])
    low = lowered(b.build([v]))
    assert runs(low, [0, 1, 0]) == [("make", 0), ("use", 0), ("make", 1), ("view", 0)]


def test_the_rewritten_graph_has_the_same_peak_when_replanned() -> None:
    low = lowered(viewed())
    for order in ([0, 1, 2, 3], [0, 2, 0, 1, 3], [0, 1, 0, 2, 3], [0, 1, 0, 2, 0, 1, 3]):
        plan = plan_of(low, order)
        again = lowered(realize(node_sequence(low, plan)))
        assert liveness.peak(again.problem, np.arange(again.problem.tasks)) == plan.score.peak_bytes


def test_every_value_of_the_rewritten_graph_has_its_instance() -> None:
    low = lowered(viewed())
    plan = plan_of(low, [0, 2, 0, 1, 3])
    order = node_sequence(low, plan)
    rewritten = realize(order)
    of = dict(zip((v.name for v in rewritten.values), value_instances(low, plan, order, rewritten), strict=True))
    assert len({of["a"], of["a/1"], of["c"], of["d"], of["x"]}) == 5
    assert of["v"] == of["a/1"]
