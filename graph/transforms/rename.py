"""Renaming of one version of a name, with all its readers; other versions keep the name.

A: x ──▶ y    B: y ──▶ z    C: y ──▶ y    D: y ──▶ w        output 0 of A to q:
A: x ──▶ q    B: q ──▶ z    C: q ──▶ y    D: y ──▶ w
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Graph, Role, consumers, producers
from graph.ssa.naming import base_name, naming_of, with_names


def rename_value(graph: Graph, value: int, name: str) -> Graph:
    """`graph` with another name for one value. Raises BadGraph when the name is empty or taken."""
    _check_free(graph, value, name)
    return with_names(graph, {value: name})


def rename_output(graph: Graph, node: int, position: int, name: str) -> Graph:
    """`graph` with another name for an output of a node; readers and the outputs of the graph follow."""
    return rename_value(graph, _slot(graph, node, "outputs", position), name)


def rename_input(graph: Graph, node: int, position: int, name: str, *, from_producer: bool = False) -> Graph:
    """`graph` with another name for an input of a node, if that node is its only reader.

    With `from_producer` the producer writes the new name, and all readers follow. Raises BadGraph when the value has
    other readers, or no producer. For a parameter, rename it in the initialization graph too: see
    `rename_initial_graph`.
    """
    v = _slot(graph, node, "inputs", position)
    path = f"nodes[{node}].inputs[{position}]"
    own, reader = quoted(graph.values[v].name), quoted(graph.nodes[node].name)
    if from_producer:
        if producers(graph)[v] < 0:
            raise BadGraph.one(
                "no_producer",
                path,
                f"{own}, which no node of the graph writes",
                "a value that a node writes",
                "rename it without from_producer",
            )
    elif len(consumers(graph)[v]) > 1:
        others = [quoted(graph.nodes[n].name) for n in consumers(graph)[v] if n != node]
        raise BadGraph.one(
            "several_readers",
            path,
            f"{own}, read by {reader} and by {', '.join(others[:4])}",
            "a value that only this node reads",
            "rename it at its producer: set from_producer",
        )
    return rename_value(graph, v, name)


def rename_initial_graph(before: Graph, after: Graph, initial: Graph) -> Graph:
    """The initialization graph `initial` with the renames of inputs and parameters between `before` and `after`.

    `before` and `after` are the same graph before and after a renaming: value ids are equal.
    """
    for old, new in zip(before.values, after.values, strict=True):
        if old.role is not Role.ACTIVATION and old.name != new.name:
            renamed = [v for v in initial.outputs if base_name(initial.values[v]) == old.name]
            for v in renamed:
                initial = rename_value(initial, v, new.name)
    return initial


def _slot(graph: Graph, node: int, side: str, position: int) -> int:
    """The value at an input or output of a node. Raises BadGraph when there is none."""
    slots: Sequence[int] = ()
    if 0 <= node < len(graph.nodes):
        slots = graph.nodes[node].inputs if side == "inputs" else graph.nodes[node].outputs
    if not 0 <= position < len(slots) or slots[position] == ABSENT:
        raise BadGraph.one(
            "unknown_id",
            f"nodes[{node}].{side}[{position}]",
            "no value at this position",
            f"one of its {len(slots)} {side}" if 0 <= node < len(graph.nodes) else f"one of {len(graph.nodes)} nodes",
            "count from 0",
        )
    return slots[position]


def _check_free(graph: Graph, value: int, name: str) -> None:
    if not name:
        raise BadGraph.one("empty_name", "to", "an empty name", "a name", "choose a name")
    names = naming_of(graph).names
    for v, other in enumerate(graph.values):
        if v != value and name in (other.name, names[v]):
            raise BadGraph.one(
                "name_taken",
                "to",
                f"{quoted(name)}, the name of another value",
                "an unused name",
                "choose another name",
            )
