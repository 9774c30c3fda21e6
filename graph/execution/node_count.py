"""Counts the nodes that run, for progress events of a long execution.

    with counting(lambda count: print(count.ran, count.expected)):
        expect(2 * len(graph.nodes))
        execute(graph)   # calls the function after each node
        execute(graph)

The scope is a context variable, so that passes need no parameter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class NodeCount:
    """Nodes of executed graphs; those of nested graphs count as their node."""

    on_node: Callable[[NodeCount], None]
    ran: int = 0
    expected: int = 0

    def add(self) -> None:
        """One more node has run."""
        self.ran += 1
        self.expected = max(self.expected, self.ran)
        self.on_node(self)


_COUNT: ContextVar[NodeCount | None] = ContextVar("node_count", default=None)


@contextmanager
def counting(on_node: Callable[[NodeCount], None]) -> Iterator[NodeCount]:
    """Scope in which `on_node` is called after each node that runs."""
    before = _COUNT.set(count := NodeCount(on_node))
    try:
        yield count
    finally:
        _COUNT.reset(before)


def current() -> NodeCount | None:
    """The count of the current scope; None without one."""
    return _COUNT.get()


def expect(nodes: int) -> None:
    """Add nodes that will run to the count of the current scope, if there is one."""
    if (count := current()) is not None:
        count.expected += nodes
