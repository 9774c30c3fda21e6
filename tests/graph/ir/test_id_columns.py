"""Quick tests of all ids of a graph agree with rules that are applied node by node."""

from __future__ import annotations

import random

from msgspec.structs import replace

from graph.ir import ABSENT, Graph, Node, Role, Value
from graph.ir.id_columns import writers_of_sound_graph


def random_graph(rng: random.Random) -> Graph:
    """A graph of a few nodes, often with a second writer, an early read, or an input that is not listed."""
    roles = [rng.choice([Role.INPUT, Role.PARAMETER, Role.ACTIVATION, Role.ACTIVATION]) for _ in range(6)]
    values = tuple(Value(f"v{v}", role=role, bytes=4) for v, role in enumerate(roles))
    given = [v for v, role in enumerate(roles) if role is not Role.ACTIVATION]
    written = [v for v, role in enumerate(roles) if role is Role.ACTIVATION]
    nodes = []
    for n, v in enumerate(written):
        before = [*given, *written[:n], ABSENT]
        inputs = tuple(rng.sample(before, min(len(before), 2)))
        nodes.append(Node(f"n{n}", "my::Op", inputs, (v,), after=(n - 1,) if n and rng.random() < 0.2 else ()))
    graph = Graph("", values, tuple(nodes), (), tuple(v for v in given if roles[v] is Role.INPUT))
    return with_fault(rng, graph) if nodes and rng.random() < 0.6 else graph


def with_fault(rng: random.Random, graph: Graph) -> Graph:
    """The graph with one change, which may break a rule."""
    n, v = rng.randrange(len(graph.nodes)), rng.randrange(len(graph.values))
    node = graph.nodes[n]
    kind = rng.choice(["inputs", "outputs", "after", "given", "order"])
    if kind == "given":
        return replace(graph, inputs=(v, *graph.inputs))
    if kind == "order":
        return replace(graph, nodes=graph.nodes[::-1])
    ids = (rng.randrange(len(graph.nodes)),) if kind == "after" else (*getattr(node, kind), v)
    nodes = [*graph.nodes[:n], replace(node, **{kind: ids}), *graph.nodes[n + 1 :]]
    return replace(graph, nodes=tuple(nodes))


def writers_node_by_node(graph: Graph, captured: frozenset[int]) -> list[int] | None:
    """As `writers_of_sound_graph`."""
    given = [value.role is not Role.ACTIVATION or v in captured for v, value in enumerate(graph.values)]
    writer = [-1] * len(graph.values)
    for n, node in enumerate(graph.nodes):
        if any(v != ABSENT and not given[v] and writer[v] < 0 for v in node.inputs) or any(b >= n for b in node.after):
            return None
        for v in node.outputs:
            if v != ABSENT and (given[v] or writer[v] >= 0):
                return None
            if v != ABSENT:
                writer[v] = n
    inputs = {v for v, value in enumerate(graph.values) if value.role is Role.INPUT} - captured
    is_sound = all(given[v] or writer[v] >= 0 for v in range(len(given))) and inputs == {*graph.inputs}
    return writer if is_sound else None


def test_writers_are_those_found_node_by_node_and_none_where_a_rule_is_broken() -> None:
    rng, sound = random.Random(3), 0
    for _ in range(1500):
        graph = random_graph(rng)
        captured = frozenset(rng.sample(range(len(graph.values)), 1)) if rng.random() < 0.2 else frozenset()
        found = writers_of_sound_graph(graph, captured)
        assert found == writers_node_by_node(graph, captured)
        sound += found is not None
    assert 300 < sound < 1200
