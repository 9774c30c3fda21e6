"""Repeats are guarded in a file where they lower the peak of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx

from graph.builder.builder import Builder
from graph.formats.onnx.repeats import repeats_pay
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role, TensorType
from graph.transforms.replay import replay
from tests.graph.formats.onnx.onnx_runs import read

BESIDE = 1024  # elements of w, d and e


def rewritten(order: str, elements: int = BESIDE) -> Graph:
    """A schedule of these nodes; `elements` is the length of x and a.

    x ── a ── s        w ── d ── e ── t
          ╰── z
    """
    builder = Builder("drawn")
    x = builder.value("x", TensorType("float32", (elements,)), Role.INPUT)
    w = builder.value("w", TensorType("float32", (BESIDE,)), Role.INPUT)
    values = {"x": x, "w": w}
    for op, name, source in (
        ("Sin", "a", "x"),
        ("ReduceSum", "s", "a"),
        ("Exp", "d", "w"),
        ("Cos", "e", "d"),
        ("ReduceSum", "t", "e"),
        ("ReduceMax", "z", "a"),
    ):
        (values[name],) = builder.node(op, [values[source]], name=name, outputs=[name])
    graph = builder.build([values["s"], values["t"], values["z"]])
    number = {node.name: n for n, node in enumerate(graph.nodes)}
    return replay(graph, [number[name] for name in order])


def guards(graph: Graph) -> int:
    return sum(node.op_type == "If" for node in onnx.load_from_string(dump(graph)).graph.node)


def test_a_repeat_that_frees_a_value_at_the_peak_is_guarded() -> None:
    graph = rewritten("asdetaz")
    assert repeats_pay(graph) and guards(graph)


def test_repeats_that_free_nothing_at_the_peak_are_written_without_guards() -> None:
    graph = rewritten("asazdet")
    assert not repeats_pay(graph) and not guards(graph)
    assert read(dump(graph)).nodes == graph.nodes


def test_repeats_are_guarded_where_the_order_may_save_since_several_ops_take_the_peak() -> None:
    assert repeats_pay(rewritten("adetsaz"))


def test_repeats_that_free_less_than_a_tenth_of_their_largest_result_are_written_without_guards() -> None:
    assert repeats_pay(rewritten("asdetdaz", elements=BESIDE // 8))
    assert not repeats_pay(rewritten("asdetdaz", elements=BESIDE // 16))


def test_a_view_of_a_repeat_has_the_bytes_of_the_repeat() -> None:
    builder = Builder("view")
    x = builder.value("x", TensorType("float32", (BESIDE,)), Role.INPUT)
    (a,) = builder.node("Sin", [x], name="a", outputs=["a"])
    (flat,) = builder.node("Reshape", [a, builder.constant(np.array([2, -1]), "shape")], name="flat", outputs=["flat"])
    (s,) = builder.node("ReduceSum", [flat], name="s", outputs=["s"])
    (d,) = builder.node("Exp", [x], name="d", outputs=["d"])
    (t,) = builder.node("ReduceSum", [d], name="t", outputs=["t"])
    (z,) = builder.node("ReduceMax", [flat], name="z", outputs=["z"])
    graph = builder.build([s, t, z])
    assert not repeats_pay(replay(graph, [0, 1, 2, 1, 5, 3, 4]))
    assert repeats_pay(replay(graph, [0, 1, 2, 3, 4, 0, 1, 5]))


def test_a_repeated_draw_is_guarded_whatever_it_frees() -> None:
    builder = Builder("drawn")
    x = builder.value("x", TensorType("float32", (BESIDE,)), Role.INPUT)
    ratio, training = builder.constant(np.float32(0.5), "ratio"), builder.constant(np.array(True), "training")
    (a,) = builder.node("Dropout", [x, ratio, training], name="a", outputs=["a"])
    y, z = (builder.node(op, [a], name=op, outputs=[op])[0] for op in ("ReduceSum", "ReduceMax"))
    graph = replay(builder.build([y, z]), [0, 1, 0, 2])
    assert repeats_pay(graph) and guards(graph)
