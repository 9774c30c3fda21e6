"""Structural equality: data flow is compared, names are not."""

import random

import numpy as np
import pytest
from msgspec import structs

from graph.builder.builder import Builder
from graph.ir import Body, Effect, Phase, Role, TensorType
from graph.transforms.replay import replay
from graph.transforms.structural_equality import difference, equal_up_to_renaming, value_numbers
from tests.strategies import random_graph

F4 = TensorType("float32", (4,))


def chain(names, ops=("Relu", "Tanh", "Add"), leaf="x"):
    #   x ──Relu──▶ a ──Tanh──▶ b      Add(b, a) ──▶ c
    b = Builder("chain")
    x = b.value(leaf, F4, Role.INPUT)
    (one,) = b.node(ops[0], [x], outputs=[names[0]])
    (two,) = b.node(ops[1], [one], outputs=[names[1]])
    (three,) = b.node(ops[2], [two, one], outputs=[names[2]])
    return b.build([three])


def test_names_are_ignored_but_ops_and_inputs_are_compared():
    assert equal_up_to_renaming(chain("abc"), chain(["p", "q", "r"]))
    assert "Sigmoid" in difference(chain("abc", ("Relu", "Sigmoid", "Add")), chain("abc"))
    assert not equal_up_to_renaming(chain("abc"), chain("abc", leaf="y"))
    assert equal_up_to_renaming(chain("abc"), chain("abc", leaf="y"), inputs_by_name=False)


def test_operands_are_compared():
    def joined(first):
        b = Builder("join")
        x, y = b.value("x", F4, Role.INPUT), b.value("y", F4, Role.INPUT)
        u, v = b.node("Relu", [x])[0], b.node("Relu", [y])[0]
        return b.build(b.node("Sub", [u, v] if first else [v, u]))

    assert not equal_up_to_renaming(joined(True), joined(False))
    # With inputs known by place, x and y change sides and nothing tells the two apart.
    assert equal_up_to_renaming(joined(True), joined(False), inputs_by_name=False)


def test_an_input_used_in_two_places_is_not_two_inputs():
    def product(same):
        b = Builder("product")
        x, y = b.value("x", F4, Role.INPUT), b.value("y", F4, Role.INPUT)
        return b.build(b.node("Mul", [x, x if same else y]))

    assert not equal_up_to_renaming(product(True), product(False), inputs_by_name=False)


def test_side_effects_are_compared_by_count_and_order():
    def drawn(streams, ops=2):
        b = Builder("draws")
        x = b.value("x", F4, Role.INPUT)
        made = [
            b.node("my::Draw", [x], types=[F4], effect=Effect.RANDOM, stream=stream)[0]
            for stream in (streams * ops)[:ops]
        ]
        return b.build(b.node("Sub", [made[0], made[-1]]))

    assert not equal_up_to_renaming(drawn([None]), drawn(["s"]))
    assert equal_up_to_renaming(drawn(["s"]), drawn(["s"], 3), repeats=True)
    assert not equal_up_to_renaming(drawn([None], 2), drawn([None], 3), repeats=True)


@pytest.mark.parametrize("seed", range(30))
def test_recomputation_is_equal_with_repeats_only(seed):
    rng = random.Random(seed)
    graph = random_graph(rng)
    again = [
        n for n, node in enumerate(graph.nodes) if not node.in_place and node.effect is None and node.op != "Dropout"
    ]
    order = list(range(len(graph.nodes)))
    if again:
        order.append(rng.choice(again))
    rewritten = replay(graph, order)
    assert difference(graph, rewritten, repeats=True) is None
    assert equal_up_to_renaming(graph, rewritten) == (not again)


def test_bodies_are_compared():
    def looped(op):
        inner = Builder("body")
        x = inner.value("x", F4, Role.INPUT)
        (y,) = inner.node(op, [x])
        outer = Builder("outer")
        seen = outer.value("seen", F4, Role.INPUT)
        return outer.build(
            outer.node("my::Repeat", [seen], types=[F4], bodies={"body": Body(inner.build([y]))}, phase=Phase.FORWARD)
        )

    assert equal_up_to_renaming(looped("Relu"), looped("Relu"))
    assert not equal_up_to_renaming(looped("Relu"), looped("Tanh"))


def test_constants_are_compared_by_content():
    def scaled(number, name):
        b = Builder("scaled")
        x = b.value("x", F4, Role.INPUT)
        return b.build(b.node("Mul", [x, b.constant(np.float32([number]), name)]))

    assert equal_up_to_renaming(scaled(2, "two"), scaled(2, "zwei"))
    assert not equal_up_to_renaming(scaled(2, "two"), scaled(3, "two"))


def test_equal_values_have_equal_numbers():
    graph = chain("abc", ("Relu", "Relu", "Add"))
    graph = structs.replace(
        graph, nodes=(*graph.nodes[:1], structs.replace(graph.nodes[1], inputs=(0,)), graph.nodes[2])
    )
    numbers = value_numbers(graph)
    assert numbers[1] == numbers[2] != numbers[3]
