"""Strict versions: a gradient may read a value only while its name still holds it.

x ──▶ use ──▶ out      x@0        the gradient of `use` reads x@0 after the forward part,
x ──▶ step ──▶ x       x@1        when x is x@1: refused in strict mode, kept as a value of its own otherwise
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graph.builder.builder import Builder
from graph.errors import Findings, quoted
from graph.ir import Graph, Role, producers


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """Which values are versions of one name. A name given from outside begins with 0, any other with 1."""

    name: Mapping[int, str]  # value -> the name it shares with others; those of one version only are left out
    number: Mapping[int, int]  # value -> which version
    versions: Mapping[str, Sequence[int]]  # name -> its values in order
    writer: Mapping[int, str]  # value -> the node that writes it, "" where it is given

    def current(self, v: int) -> int:
        """The value the name of `v` stands for at the end."""
        return self.versions[self.name[v]][-1] if v in self.name else v

    def told(self, v: int) -> str:
        """Who wrote which version."""
        told = [
            f"version {self.number[w]} by {quoted(self.writer[w])}" if self.writer[w] else "version 0 given"
            for w in self.versions[self.name[v]]
        ]
        more = f", ... ({len(told)} versions)" if len(told) > 8 else ""
        return ", ".join(told[:8]) + more


def version_history(graph: Graph) -> VersionHistory:
    """The names of `graph` that are written more than once."""
    named = [v for v, value in enumerate(graph.values) if "version_of" in value.annotations]
    producer = producers(graph) if named else []
    versions: dict[str, list[int]] = {str(graph.values[v].annotations["version_of"]): [] for v in named}
    for v, value in enumerate(graph.values if named else ()):
        name = str(value.annotations.get("version_of", value.name))
        if name in versions:
            versions[name].append(v)
    number, of, writer = {}, {}, {}
    for name, values in versions.items():
        values.sort(key=lambda v: producer[v])
        first = int(graph.values[values[0]].role is Role.ACTIVATION)
        for k, v in enumerate(values, first):
            number[v], of[v] = k, name
            writer[v] = graph.nodes[producer[v]].name if producer[v] >= 0 else ""
    return VersionHistory(of, number, versions, writer)


def check_versions(history: VersionHistory, builder: Builder, first: int, findings: Findings) -> None:
    """Collect reads of backward nodes, from node `first` on, of values whose name was written again."""
    for n in range(first, len(builder.nodes)):
        node = builder.nodes[n]
        for v in node.reads:
            if v in history.name and history.current(v) != v:
                _refuse(history, v, f"nodes[{n}]", f"the gradient {node.op} {quoted(node.name)}", findings)


def check_gradient_versions(
    history: VersionHistory, graph: Graph, complete: Collection[int], findings: Findings
) -> None:
    """Collect writes of a version without gradient while its name has that of a later one, not begun anew.

    `complete` are the values that have a gradient. A node that writes over a name it reads begins it anew.
    """
    known: dict[str, int] = {}  # name -> the version whose gradient it has while nodes are read backwards
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        for v in node.writes:
            name = history.name.get(v)
            if name is None:
                continue
            if v in complete:
                known[name] = v
            elif name in known:
                _refuse(
                    history, v, f"nodes[{n}]", f"the gradient of {node.op} {quoted(node.name)}", findings, known[name]
                )
        written = {history.name.get(v) for v in node.writes}
        for v in node.reads:
            name = history.name.get(v)
            if name is not None and v in complete:
                known[name] = v
            elif name is not None and name in written:
                known.pop(name, None)


def _refuse(
    history: VersionHistory, v: int, where: str, who: str, findings: Findings, current: int | None = None
) -> None:
    now = history.number[history.current(v) if current is None else current]
    findings.add(
        "version_conflict",
        where,
        f"{who} needs {quoted(history.name[v])} at version {history.number[v]}, it is now at version {now} "
        f"({history.told(v)})",
        "a name that still holds what the gradient needs",
        'write to another name, or say "versions": "keep"',
    )
