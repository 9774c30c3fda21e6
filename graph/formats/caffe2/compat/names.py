"""Version names as Caffe2's exporters write them: each version gets its own name, with the version number appended.

X, W ──▶ Y, Y ──▶ Y        "all":      X_0 W_0 Y_1 Y_2
                           "needed":   X W Y_1 Y_2        version 0 and names with one version keep their name

With "needed", a name that is already taken gets the next free number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from graph.errors import BadGraph, quoted
from graph.formats.shared.written_names import added_values
from graph.ir import Graph
from graph.ssa.naming import base_name, versions_of_graph, with_names
from graph.ssa.version_table import NameVersion

STYLES = ("all", "needed")


@dataclass(frozen=True, slots=True)
class VersionedProgram:
    """A program in which every name is written once."""

    graph: Graph
    initial: Graph | None  # graph that fills its parameters, under the same names
    names: dict[NameVersion, str]


def with_version_names(graph: Graph, style: str = "all", initial: Graph | None = None) -> VersionedProgram:
    """`graph` with one name per version; values that the reader of a net added keep their names.

    Raises BadGraph for an unknown style, and for an initial graph with nodes other than fills of one output.
    """
    if style not in STYLES:
        raise BadGraph.one("unknown_word", "style", quoted(style), " or ".join(STYLES), "use one of these")
    table = versions_of_graph(graph)
    count = Counter(table.names)
    added = added_values(graph)
    taken: set[str] = {table.names[v] for v in added}
    if style == "needed":
        taken.update(name for name, k in zip(table.names, table.numbers, strict=True) if k == 0 or count[name] == 1)
    names = []
    for v, (name, number) in enumerate(zip(table.names, table.numbers, strict=True)):
        if v in added:
            names.append(graph.values[v].name)
            continue
        if style == "needed" and (number == 0 or count[name] == 1):
            names.append(name)
            continue
        k = number
        while f"{name}_{k}" in taken:
            k += 1
        names.append(f"{name}_{k}")
        taken.add(names[-1])
    mapping = {table.version(v): names[v] for v in range(len(names))}
    result = with_names(graph, names)
    return VersionedProgram(result, None if initial is None else _named_like(initial, mapping), mapping)


def _named_like(initial: Graph, names: dict[NameVersion, str]) -> Graph:
    """The initial graph with its outputs named as the inputs of the main graph."""
    for n, node in enumerate(initial.nodes):
        if node.reads or len(node.writes) != 1:
            raise BadGraph.one(
                "not_a_fill",
                f"nodes[{n}]",
                f"{quoted(node.name)} with {len(node.reads)} inputs and {len(node.writes)} outputs",
                "fills of one output in a graph that makes parameters",
                "compute it in the main graph",
            )
    found = {v: names.get((base_name(value), 0)) for v, value in enumerate(initial.values)}
    return with_names(initial, {v: name for v, name in found.items() if name is not None})
