"""The nodes that an execution has run are counted."""

from __future__ import annotations

from graph.execution.interpreter import execute
from graph.execution.node_count import counting, current, expect
from graph.formats.readers import load
from tests.graph.stopping import document


def test_each_node_is_counted_once_a_run() -> None:
    graph = load(document(3))
    told: list[tuple[int, int]] = []
    with counting(lambda count: told.append((count.ran, count.expected))) as count:
        expect(len(graph.nodes))
        execute(graph)
        execute(graph)  # not expected
    nodes = len(graph.nodes)
    assert told == [*((k + 1, nodes) for k in range(nodes)), *((nodes + k, nodes + k) for k in range(1, nodes + 1))]
    assert count.ran == 2 * nodes


def test_nothing_is_counted_outside_a_scope() -> None:
    expect(5)
    execute(load(document(2)))
    assert current() is None
