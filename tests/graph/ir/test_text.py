"""The text form: one line a node, and excerpts that point at the fault."""

from __future__ import annotations

import doctest

from hypothesis import given, settings
from hypothesis import strategies as st

import graph.ir.text
from graph.builder.builder import Builder
from graph.ir import Body, Cost, Effect, Graph, Phase, Role, TensorType
from graph.ir.text import excerpt, format_graph, format_node_context
from tests.documents import executable_graphs


def test_a_graph_is_one_line_a_node() -> None:
    b = Builder("one layer")
    x = b.value("x", TensorType("float32", (64, 784)), Role.INPUT)
    w = b.value("w", TensorType("float32", (784, 512)), Role.PARAMETER)
    (h,) = b.node("MatMul", [x, w], name="fc1", outputs=["h"])
    assert format_graph(b.build([h])).splitlines() == [
        "graph 'one layer', opset 21",
        "input x: float32[64,784]",
        "parameter w: float32[784,512]",
        "0  fc1: h float32[64,512] = MatMul(x, w)",
        "outputs: h",
    ]


def test_fields_that_differ_from_the_defaults_are_shown() -> None:
    b = Builder()
    x = b.value("x y", None, Role.STATE, bytes=8)
    out = b.value("out", bytes=8)
    inside = Graph("b", (), ())
    b.node(
        "my::Op",
        [x, -1],
        name="n",
        outputs=[out],
        attributes={"axis": 1, "long": "x" * 100},
        phase=Phase.UPDATE,
        effect=Effect.RANDOM,
        stream="s",
        recompute="never",
        heavy=True,
        in_place=((0, 0),),
        gradient_reads=(x,),
        cost=Cost(seconds=0.5),
        bodies={"body": Body(inside)},
    )
    shown = format_graph(b.build())
    for part in (
        "state 'x y': 8 bytes",
        "= my::Op('x y', _) axis=1",
        "(100 characters)",
        "out over 'x y'",
        "update",
        "random",
        "stream s",
        "recompute never",
        "heavy True",
        "gradient reads 'x y'",
        "seconds 0.5",
        "    body body():",
    ):
        assert part in shown


@settings(max_examples=30)
@given(executable_graphs())
def test_every_node_has_its_line_and_can_be_pointed_at(drawn: Graph) -> None:
    lines = format_graph(drawn).splitlines()
    for n, node in enumerate(drawn.nodes):
        assert sum(line.startswith(f"{n}  {node.name}: ") for line in lines) == 1
        assert f"--> {n}  {node.name}: " in format_node_context(drawn, n)


@given(st.lists(st.text("ab{é", max_size=200), min_size=1, max_size=5), st.data())
def test_an_excerpt_marks_the_character_at_the_byte(lines: list[str], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, len(lines[number])))
    before = "\n".join([*lines[:number], lines[number][:column]])
    shown = excerpt("\n".join(lines).encode(), len(before.encode())).splitlines()
    at = next(i for i, line in enumerate(shown) if line.endswith("^"))
    assert shown[at - 1].startswith(f"{number + 1:4} | ") and len(shown) <= 4
    mark = len(shown[at]) - 1
    assert shown[at - 1][mark : mark + 1] == lines[number][column : column + 1]


def test_the_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(graph.ir.text, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
