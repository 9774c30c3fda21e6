"""Renaming one version of a name, with everything that reads it; other versions keep theirs.

A: x ──▶ y    B: y ──▶ z    C: y ──▶ y    D: y ──▶ w        output 0 of A to q:
A: x ──▶ q    B: q ──▶ z    C: q ──▶ y    D: y ──▶ w
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Graph, Role, consumers, producers
from graph.ssa.naming import base_name, naming_of, with_name_order, with_names, without_name_order


def rename_value(graph: Graph, value: int, name: str) -> Graph:
    """`graph` with another name for one value. Raises BadGraph when the name is empty or stands for another value."""
    _check_free(graph, value, name)
    return with_name_order(with_names(without_name_order(graph), {value: name}))


def rename_output(graph: Graph, node: int, position: int, name: str) -> Graph:
    """`graph` with another name for what the node writes there; readers and the outputs of the graph follow."""
    return rename_value(graph, _slot(graph, node, "outputs", position), name)


def rename_input(graph: Graph, node: int, position: int, name: str, *, from_producer: bool = False) -> Graph:
    """`graph` with another name for what the node reads there, if it is the only node that does.

    With `from_producer` the node that writes it writes the new name, and all readers follow. Raises BadGraph
    when others read it, or there is no such node. A value that comes from outside is renamed there as well:
    see `rename_initial_graph`.
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
                "rename it without from_producer, or where it comes from",
            )
    elif len(consumers(graph)[v]) > 1:
        others = [quoted(graph.nodes[n].name) for n in consumers(graph)[v] if n != node]
        raise BadGraph.one(
            "several_readers",
            path,
            f"{own}, which {', '.join(others[:4])} read beside {reader}",
            "a value that only this node reads",
            "rename it where it is written: say from_producer",
        )
    return rename_value(graph, v, name)


def rename_initial_graph(before: Graph, after: Graph, initial: Graph) -> Graph:
    """The graph that makes what `before` is given, with the names that its inputs have in `after`.

    The two are one graph before and after a renaming: values have the same ids.
    """
    for old, new in zip(before.values, after.values, strict=True):
        if old.role is not Role.ACTIVATION and old.name != new.name:
            made = [v for v in initial.outputs if base_name(initial.values[v]) == old.name]
            for v in made:
                initial = rename_value(initial, v, new.name)
    return initial


def _slot(graph: Graph, node: int, side: str, position: int) -> int:
    """The value at an input or output. Raises BadGraph when there is none."""
    slots: Sequence[int] = ()
    if 0 <= node < len(graph.nodes):
        slots = graph.nodes[node].inputs if side == "inputs" else graph.nodes[node].outputs
    if not 0 <= position < len(slots) or slots[position] == ABSENT:
        raise BadGraph.one(
            "unknown_id",
            f"nodes[{node}].{side}[{position}]",
            "a place with nothing in it",
            f"one of its {len(slots)} {side}" if 0 <= node < len(graph.nodes) else f"one of {len(graph.nodes)} nodes",
            "count from 0",
        )
    return slots[position]


def _check_free(graph: Graph, value: int, name: str) -> None:
    if not name:
        raise BadGraph.one("empty_name", "to", "an empty name", "a name", "name it")
    names = naming_of(graph).names
    for v, other in enumerate(graph.values):
        if v != value and name in (other.name, names[v]):
            raise BadGraph.one(
                "name_taken",
                "to",
                f"{quoted(name)}, which stands for another value already",
                "a free name",
                "choose another name",
            )
