"""Strict versions: a gradient may read a value only if its name was not overwritten since.

x ──▶ use ──▶ out      x@0        the gradient of `use` reads x@0 after the forward pass,
x ──▶ step ──▶ x       x@1        when x is x@1: an error in strict mode, else x@0 is kept as a value of its own
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graph.builder.builder import Builder
from graph.errors import Findings, quoted
from graph.ir import Graph, Role, producers


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """Versions of each name. Numbers start at 0 for inputs and parameters, at 1 for other names."""

    name: Mapping[int, str]  # value -> the name it shares with others; names with one version are omitted
    number: Mapping[int, int]  # value -> version number
    versions: Mapping[str, Sequence[int]]  # name -> its values in order
    writer: Mapping[int, str]  # value -> name of the node that writes it, "" for an input or parameter

    def current(self, v: int) -> int:
        """The last version of the name of `v`."""
        return self.versions[self.name[v]][-1] if v in self.name else v

    def describe(self, v: int) -> str:
        """The versions of the name of `v` with their writers, as text."""
        writes = [
            f"version {self.number[w]} by {quoted(self.writer[w])}" if self.writer[w] else "version 0 given"
            for w in self.versions[self.name[v]]
        ]
        more = f", ... ({len(writes)} versions)" if len(writes) > 8 else ""
        return ", ".join(writes[:8]) + more


def version_history(graph: Graph) -> VersionHistory:
    """Versions of the names of `graph` that are written more than once."""
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
    """Add a finding for each read of an overwritten version by the nodes from `first` on (the backward pass)."""
    for n in range(first, len(builder.nodes)):
        node = builder.nodes[n]
        for v in node.reads:
            if v in history.name and history.current(v) != v:
                _refuse(history, v, f"nodes[{n}]", f"the gradient {node.op} {quoted(node.name)}", findings)


def check_gradient_versions(
    history: VersionHistory, graph: Graph, complete: Collection[int], findings: Findings
) -> None:
    """Add a finding for each version without a gradient whose name has the gradient of a later version.

    `complete`: values that have a gradient. A node that overwrites a name it reads resets the gradient of that name.
    """
    known: dict[str, int] = {}  # name -> the version whose gradient it holds, walking backwards
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
    history: VersionHistory, v: int, where: str, reader: str, findings: Findings, current: int | None = None
) -> None:
    now = history.number[history.current(v) if current is None else current]
    findings.add(
        "version_conflict",
        where,
        f"{reader} needs {quoted(history.name[v])} at version {history.number[v]}, it is now at version {now} "
        f"({history.describe(v)})",
        "a name that is not overwritten before the gradient reads it",
        'write to another name, or set "versions": "keep"',
    )
