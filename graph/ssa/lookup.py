"""Lookup of values and nodes by name: `y` is the value named y, `y@2` its version 2, `y@last` its last version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graph.errors import MAX_FINDINGS, Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.ir import Graph
from graph.ssa.naming import versions_of_graph
from graph.ssa.version_table import VersionTable

LAST = "last"


def find_values(graph: Graph, references: Sequence[str], field: str, findings: Findings) -> list[int]:
    """Ids of the referenced values; an unknown reference is omitted and adds a finding at `field[i]`.

    A value with the literal name `y@2` takes precedence over version 2 of y.
    """
    ids = {value.name: v for v, value in enumerate(graph.values)}
    table: VersionTable | None = None
    values = []
    for i, reference in enumerate(references):
        v = ids.get(reference)
        name, at, number = reference.rpartition("@")
        if v is None and at:
            table = table or versions_of_graph(graph)
            v = _version(table, name, number)
        if v is None:
            findings.add(
                "undefined_value",
                f"{field}[{i}]",
                f"{quoted(reference)}, which is not a value",
                "the name of a value, or one with its version such as y@2 or y@last",
                _remedy(name or reference, ids, "see the analysis of the graph for its names", findings),
            )
        else:
            values.append(v)
    return values


def find_value(graph: Graph, reference: str, field: str) -> int:
    """Id of one value. Raises BadGraph."""
    findings = Findings()
    ids = find_values(graph, [reference], field, findings)
    findings.settle()
    return ids[0]


def find_nodes(graph: Graph, names: Sequence[str], field: str, findings: Findings) -> list[int]:
    """Ids of nodes by name; an unknown name is omitted and adds a finding at `field[i]`."""
    ids = {node.name: n for n, node in enumerate(graph.nodes)}
    for i, name in enumerate(names):
        if name not in ids:
            findings.add(
                "unknown_node",
                f"{field}[{i}]",
                quoted(name),
                "the name of a node",
                _remedy(name, ids, "name a node of the graph", findings),
            )
    return [ids[name] for name in names if name in ids]


def _remedy(word: str, words: Mapping[str, int], otherwise: str, findings: Findings) -> str:
    """A remedy with the most similar name; skipped when the finding is not kept, since the search is linear."""
    return did_you_mean(word, words, otherwise) if len(findings) < MAX_FINDINGS else otherwise


def _version(table: VersionTable, name: str, number: str) -> int | None:
    if number == LAST:
        return table.final.get(name)
    if not (number.isascii() and number.isdigit()) or len(number) > 18:
        return None
    return table.ids().get((name, int(number)))
