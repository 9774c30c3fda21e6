"""Names of the values of a graph in a program with mutable names.

x ──▶ a ──▶ h ──▶ b ──▶ h/1 (a version of h)       b may overwrite h if the first h has no reader after b:
            h ──▶ c                                if c is before b; otherwise h/1 keeps a unique name

A value takes its shared name only when the value that holds the name is dead. So no live value is overwritten,
whatever passes changed in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from graph.formats.document.type_inference import TYPE_RULE_ERRORS, TypeInference
from graph.ir import ABSENT, EMPTY, Graph, Node, Role, Value, producers
from graph.ssa.to_ssa import VERSION_OF
from graph.ssa.version_table import VersionTable


@dataclass(frozen=True, eq=False, slots=True)
class Naming:
    """Names of the values of one graph, without nested graphs."""

    names: list[str]  # per value
    replaced: list[int]  # per value: the value whose name it takes over, or ABSENT


class UniqueNames:
    """Allocates unique names: the wanted one, or the wanted one with the suffix `/1`, `/2`, ..."""

    def __init__(self, taken: set[str]):
        self.taken = taken
        self.last: dict[str, int] = {}  # name -> last suffix used; all lower ones are taken

    def name(self, wanted: str) -> str:
        candidate, k = wanted, self.last.get(wanted, 0)
        while candidate in self.taken:
            k += 1
            candidate = f"{wanted}/{k}"
        self.last[wanted] = k
        self.taken.add(candidate)
        return candidate


def base_name(value: Value) -> str:
    """The name of which the value is a version, else its own name."""
    name = value.annotations.get(VERSION_OF) if value.annotations else None
    return name if isinstance(name, str) and name else value.name


def naming_of(graph: Graph, one_declaration: bool = True) -> Naming:
    """Names of the values, assigned in the order of the nodes. O(nodes + reads).

    With `one_declaration` values share a name only if one declaration fits all of them, as a document requires.
    """
    wanted = [base_name(value) for value in graph.values]
    unshared = Naming([value.name for value in graph.values], [ABSENT] * len(graph.values))
    if wanted == unshared.names:
        return unshared
    return _NameAssignment(graph, wanted, one_declaration).naming()


class _NameAssignment:
    """Assigns names in one pass over the nodes; `holder` maps a name to the value that has it now."""

    def __init__(self, graph: Graph, wanted: list[str], one_declaration: bool):
        self.graph, self.wanted, self.one_declaration = graph, wanted, one_declaration
        self.names = [value.name for value in graph.values]
        self.replaced = [ABSENT] * len(graph.values)
        self.producer = producers(graph)
        self.readers: list[list[int]] = [[] for _ in graph.values]
        for n, node in enumerate(graph.nodes):
            for v in node.reads:
                self.readers[v].append(n)
        self.kept = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
        self.unique = UniqueNames({*wanted, *self.names})
        self.shared_names = {name for name, own in zip(wanted, self.names, strict=True) if name != own}
        self.holder: dict[str, int] = {}
        self.declared: dict[str, int] = {}  # name -> the value whose declaration applies to all versions
        self.inference: TypeInference | None = None

    def naming(self) -> Naming:
        for v, name in enumerate(self.names):
            if self.producer[v] < 0:
                self._take(v, name)
        for n, node in enumerate(self.graph.nodes):
            for v in node.writes:
                old = self.holder.get(self.wanted[v], ABSENT)
                if old == ABSENT:
                    self._take(v, self.wanted[v])
                elif self._may_replace(n, node, old, v):
                    self._take(v, self.wanted[v])
                    self.replaced[v] = old
                else:
                    self._take(v, self._free(self.names[v]))
        return Naming(self.names, self.replaced)

    def _take(self, v: int, name: str) -> None:
        self.names[v] = name
        self.holder[name] = v
        self.declared.setdefault(name, v)

    def _free(self, name: str) -> str:
        """`name`, or a unique variant when it is also a shared name."""
        return name if name not in self.shared_names else self.unique.name(name)

    def _may_replace(self, n: int, node: Node, old: int, v: int) -> bool:
        """True when `old` has no reader after node `n`, and if needed one declaration fits both values."""
        if self.producer[old] == n or old in self.kept or (self.readers[old] and self.readers[old][-1] > n):
            return False
        if not self.one_declaration:
            return True
        one, other = self.graph.values[self.declared[self.wanted[v]]], self.graph.values[v]
        notes, others = own_annotations(one), own_annotations(other)
        if one.fixed_bytes is not other.fixed_bytes or (notes is not others and dict(notes) != dict(others)):
            return False
        if one.bytes == other.bytes and (one.type is other.type or one.type == other.type):
            return True
        return not other.fixed_bytes and other.bytes is None and one.bytes is None and self._is_inferred(node, v)

    def _is_inferred(self, node: Node, v: int) -> bool:
        """True when type inference yields the type of `v` without its declaration."""
        values = self.graph.values
        if self.inference is None:
            contents = {c: value.data for c, value in enumerate(values) if value.data is not None}
            self.inference = TypeInference(self.graph.opset.get("", 21), contents)
        try:
            types = None if node.bodies else self.inference.outputs(node, [value.type for value in values])
        except TYPE_RULE_ERRORS:
            return False
        position = node.outputs.index(v)
        return types is not None and position < len(types) and types[position] == values[v].type


def own_annotations(value: Value) -> Mapping[str, Any]:
    """Annotations of a value without `version_of`."""
    if VERSION_OF not in value.annotations:
        return value.annotations
    if len(value.annotations) == 1:
        return EMPTY
    return {key: entry for key, entry in value.annotations.items() if key != VERSION_OF}


def versions_of_graph(graph: Graph, start: Mapping[str, int] = EMPTY) -> VersionTable:
    """The version table of a graph; ids are value ids.

    `start`: name -> its initial version number, 0 by default.
    """
    naming = naming_of(graph)
    numbers = [start.get(name, 0) for name in naming.names]
    final = {naming.names[v]: v for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION}
    writes = [node.outputs for node in graph.nodes]
    for node in graph.nodes:
        for v in node.writes:
            old = naming.replaced[v]
            numbers[v] = numbers[v] + 1 if old == ABSENT else numbers[old] + 1
            final[naming.names[v]] = v
    captures = [
        tuple([outer for body in node.bodies.values() for _, outer in body.captures]) if node.bodies else ()
        for node in graph.nodes
    ]
    reads = [node.inputs + captured for node, captured in zip(graph.nodes, captures, strict=True)]
    return VersionTable(naming.names, numbers, naming.replaced, reads, writes, final, ())


def with_names(graph: Graph, names: Sequence[str] | Mapping[int, str]) -> Graph:
    """`graph` with new names for all or some values; renamed values lose `version_of`."""
    chosen: Iterable[tuple[int, str]] = names.items() if isinstance(names, Mapping) else enumerate(names)
    values = list(graph.values)
    for v, name in chosen:
        values[v] = replace(values[v], name=name, annotations=own_annotations(values[v]))
    return replace(graph, values=tuple(values))
