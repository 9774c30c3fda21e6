"""Lowering: columns of a graph."""

from __future__ import annotations

import numpy as np

from graph.analysis.devices import resolve_device
from graph.builder.builder import Builder
from graph.ir import Cost, Effect, Graph, Phase, Role, TensorType
from planner import problem as columns
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import CATEGORIES, LoweredGraph
from planner.request.target_runtime import runtime_named

F8 = TensorType("float32", (8,))
ARENA, EAGER, DEVICE = runtime_named("arena"), runtime_named("torch-eager"), resolve_device("a100-80gb")


def lowered(graph: Graph) -> LoweredGraph:
    return lower(graph, DEVICE, ARENA)


def buffer_of(low: LoweredGraph, name: str) -> int:
    return low.value_buffer[low.graph.value_named(name)]


def test_a_view_is_no_task_and_its_readers_read_the_storage() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Exp", [x], outputs=["a"])
    (v,) = b.node("acme::View", [a], outputs=["v"], types=[F8], views=((0, 0),))
    (c,) = b.node("Tanh", [v], outputs=["c"])
    low = lowered(b.build([c]))
    assert low.node_task == [0, -1, 1]
    assert low.problem.reads.lists() == [[buffer_of(low, "x")], [buffer_of(low, "a")]]
    assert buffer_of(low, "v") == buffer_of(low, "a")


def test_residents_are_held_throughout_and_outputs_to_the_end() -> None:
    b = Builder()
    x, w = b.value("x", F8, Role.INPUT), b.value("w", F8, Role.PARAMETER)
    (h,) = b.node("Mul", [x, w], outputs=["h"])
    (y,) = b.node("Tanh", [h], outputs=["y"])
    low = lowered(b.build([y]))
    held = {name: low.problem.hold[buffer_of(low, name)] for name in "xwhy"}
    assert held == {"x": columns.RESIDENT, "w": columns.RESIDENT, "h": columns.TO_LAST_READ, "y": columns.TO_THE_END}
    assert low.resident_bytes == 64


def test_a_parameter_updated_in_place_stays_one_buffer_and_its_readers_come_first() -> None:
    #   x·w = h        w' = w − g (in place on w)
    b = Builder()
    x, w = b.value("x", F8, Role.INPUT), b.value("w", F8, Role.PARAMETER)
    (h,) = b.node("Mul", [x, w], name="use", outputs=["h"])
    b.node("Sub", [w, h], name="update", outputs=["w2"], in_place=((0, 0),), phase=Phase.UPDATE)
    low = lowered(b.build([]))
    assert buffer_of(low, "w2") == buffer_of(low, "w")
    assert low.problem.after_every.lists() == [[1], []]
    assert low.problem.repeat.tolist() == [columns.FREE, columns.NEVER]


def test_an_activation_overwritten_in_place_hands_its_storage_on() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Exp", [x], outputs=["a"])
    (c,) = b.node("acme::Add_", [a], outputs=["c"], types=[F8], in_place=((0, 0),))
    low = lower(b.build([c]), DEVICE, EAGER)  # a runtime that takes nothing over by itself
    assert low.problem.takeover[buffer_of(low, "c")].tolist() == [buffer_of(low, "a")]
    assert low.problem.repeat.tolist() == [columns.FREE, columns.NEVER]


def test_a_takeover_that_a_node_declares_holds_under_every_runtime() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,), (c,) = (b.node("Exp", [x], outputs=[name]) for name in "ac")
    (d,) = b.node("acme::Sum", [a, c], outputs=["d"], types=[F8], takeover=((0, 1), (0, 0)))
    low = lower(b.build([d]), DEVICE, EAGER)
    assert low.problem.takeover[buffer_of(low, "d")].tolist() == [buffer_of(low, name) for name in "ca"]
    assert low.problem.repeat.tolist() == [columns.FREE] * 3


def test_effects_run_once_and_in_their_order() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    outs = [b.node("acme::Draw", [x], outputs=[f"r{i}"], types=[F8], effect=Effect.RANDOM)[0] for i in range(2)]
    (s,) = b.node("acme::Draw", [x], outputs=["s"], types=[F8], effect=Effect.RANDOM, stream="s")
    b.node("acme::Log", [x], outputs=[], effect=Effect.ONCE)
    low = lowered(b.build([*outs, s]))
    assert low.problem.repeat.tolist() == [columns.NEVER, columns.NEVER, columns.FREE, columns.NEVER]
    assert low.problem.after_first.lists()[0] == [1]


def test_sizes_are_rounded_as_the_runtime_rounds_them() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (y,) = b.node("Exp", [x], outputs=["y"], cost=Cost(workspace_bytes=700))
    low = lower(b.build([y]), DEVICE, EAGER)
    assert low.problem.size.tolist() == [512, 512]
    assert low.problem.workspace.tolist() == [1024]


def test_document_seconds_keep_their_proportions_exactly() -> None:
    b = Builder()
    x = b.value("x", bytes=1, role=Role.INPUT)
    for seconds in (1.0, 2.0, 3.5, 0.0):
        b.node("acme::Op", [x], outputs=[], cost=Cost(seconds=seconds))
    problem = lowered(b.build([])).problem
    np.testing.assert_allclose(problem.cost * problem.tick, [1, 2, 3.5, 0], rtol=1e-12)


def test_seconds_below_the_tick_count_as_none() -> None:
    b = Builder()
    b.node("acme::Op", [b.value("x", bytes=1, role=Role.INPUT)], outputs=[], cost=Cost(seconds=5e-324))
    assert lowered(b.build([])).problem.cost.tolist() == [0]


def test_user_preferences_control_recomputation() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Exp", [x], outputs=["a"])
    (c,) = b.node("Exp", [a], outputs=["c"])
    (d,) = b.node("Exp", [c], outputs=["d"], recompute="never")
    low = lower(b.build([d]), DEVICE, ARENA, checkpoints=[c], keep=[a], recompute=[c])
    assert low.problem.recompute.tolist() == [columns.FORBID, columns.PREFER, columns.FORBID]
    assert low.problem.checkpoint[buffer_of(low, "c")]


def test_a_control_edge_to_a_view_waits_for_the_storage() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("Exp", [x], outputs=["a"])
    b.node("acme::View", [a], outputs=["v"], types=[F8], views=((0, 0),))
    b.node("acme::Op", [x], outputs=[], after=(1,))
    assert lowered(b.build([])).problem.after_first.lists() == [[1], []]


def test_an_empty_graph_lowers_to_an_empty_problem() -> None:
    low = lowered(Builder().build([]))
    assert low.problem.tasks == low.problem.buffers == 0


def test_the_peak_is_split_by_category() -> None:
    b = Builder()
    x, w = b.value("x", F8, Role.INPUT), b.value("w", F8, Role.PARAMETER)
    m = b.value("m", F8, Role.STATE)
    (h,) = b.node("Mul", [x, w], outputs=["h"])
    (g,) = b.node("Mul", [h, x], outputs=["g"], phase=Phase.BACKWARD)
    b.node("Add", [m, g], outputs=["m2"], phase=Phase.UPDATE, in_place=((0, 0),))
    b.gradients = [(w, g)]
    low = lowered(b.build([]))
    split = {name: CATEGORIES[low.category[buffer_of(low, name)]] for name in ("x", "w", "m", "h", "g")}
    assert split == {"x": "activations", "w": "parameters", "m": "optimizer", "h": "activations", "g": "gradients"}


def test_dropout_in_inference_mode_is_deterministic_and_recomputable() -> None:
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    ratio, on = b.constant(np.float32(0.5)), b.constant(np.array(True))
    (idle,) = b.node("Dropout", [x], outputs=["idle"])
    (drawn,) = b.node("Dropout", [x, ratio, on], outputs=["drawn"])
    (again,) = b.node("Dropout", [x, ratio, on], outputs=["again"], stream="s")
    repeat = lowered(b.build([idle, drawn, again])).problem.repeat
    assert repeat.tolist() == [columns.FREE, columns.NEVER, columns.FREE]


def test_a_view_that_reads_what_a_later_node_makes_waits_for_it() -> None:
    #   x ── make ── a ── view ── v ── use ── c
    #    ╰── size ── s ────╯
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("acme::Make", [x], name="make", types=[F8])
    (s,) = b.node("acme::Size", [x], name="size", types=[TensorType("int64", (1,))])
    (v,) = b.node("acme::View", [a, s], name="view", types=[F8], views=((0, 0),))
    (c,) = b.node("acme::Use", [v], name="use", types=[F8])
    problem = lowered(b.build([c])).problem
    make, _, view, use = range(4)
    assert problem.repeat[[make, view]].tolist() == [columns.NEVER] * 2
    assert use in problem.after_first.lists()[view] and len(problem.shape_reads.lists()[view]) == 1


def test_views_of_two_storages_are_made_once_after_both() -> None:
    #   x ── left ── a ──╮
    #    ╰── right ── b ─┴─ barrier ── (va, vb)
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (left,) = b.node("acme::Left", [x], types=[F8])
    (right,) = b.node("acme::Right", [x], types=[F8])
    va, vb = b.node("acme::Barrier", [left, right], outputs=2, types=[F8, F8], views=((0, 0), (1, 1)))
    (c,) = b.node("acme::Use", [vb], types=[F8])
    (d,) = b.node("acme::Use", [va], types=[F8])
    low = lowered(b.build([c, d]))
    assert len(low.task_node) == 5 and low.problem.repeat[:3].tolist() == [columns.NEVER] * 3
    assert sorted(low.problem.reads.lists()[2]) == sorted([low.value_buffer[left], low.value_buffer[right]])


def test_a_view_made_beside_other_outputs_is_made_once() -> None:
    #   x ── make ── a ── split ── v (view of a), w      with a run again, v would be a view of the old bytes
    b = Builder()
    x = b.value("x", F8, Role.INPUT)
    (a,) = b.node("acme::Make", [x], types=[F8])
    v, w = b.node("acme::Split", [a], outputs=2, types=[F8, F8], views=((0, 0),))
    (c,) = b.node("acme::Use", [v], types=[F8])
    (d,) = b.node("acme::Use", [w], types=[F8])
    problem = lowered(b.build([c, d])).problem
    assert problem.repeat.tolist() == [columns.NEVER, columns.NEVER, columns.FREE, columns.FREE]
    assert 2 in problem.after_first.lists()[1]
