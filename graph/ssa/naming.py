"""What the values of a graph are called in a program that writes names more than once, and the order that asks for.

x ──▶ a ──▶ h ──▶ b ──▶ h/1 (a version of h)       b may write h again: nobody reads the first h after b
            h ──▶ c                                ... if c stands before b; else h/1 keeps a name of its own

A value takes the name it is a version of when the value that has it is never read again; so whatever a pass
did to the graph, no live value is written over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graph.formats.document.type_inference import TYPE_RULE_ERRORS, TypeInference
from graph.ir import ABSENT, EMPTY, Body, Graph, Node, Role, Value, producers
from graph.ssa.to_ssa import VERSION_OF
from graph.ssa.version_table import VersionTable

_FOREVER = 1 << 62  # outputs are read after every node


@dataclass(frozen=True, eq=False, slots=True)
class Naming:
    """Names of the values of one graph, nested ones apart."""

    names: list[str]  # per value
    replaced: list[int]  # per value the one whose name it takes over, or ABSENT
    before: Mapping[int, tuple[int, ...]]  # per node those that must run before it writes over names


class UniqueNames:
    """Hands out names nobody has: the one asked for, or with `/1`, `/2`, ... behind it."""

    def __init__(self, taken: set[str]):
        self.taken = taken
        self.last: dict[str, int] = {}  # name -> the number that was handed out last; none below is free

    def name(self, wanted: str) -> str:
        candidate, k = wanted, self.last.get(wanted, 0)
        while candidate in self.taken:
            k += 1
            candidate = f"{wanted}/{k}"
        self.last[wanted] = k
        self.taken.add(candidate)
        return candidate


def base_name(value: Value) -> str:
    """The name a value shares with others, or its own."""
    name = value.annotations.get(VERSION_OF) if value.annotations else None
    return name if isinstance(name, str) and name else value.name


def naming_of(graph: Graph) -> Naming:
    """What each value is called, reading nodes in their order. O(nodes + reads)."""
    wanted = [base_name(value) for value in graph.values]
    unshared = Naming([value.name for value in graph.values], [ABSENT] * len(graph.values), {})
    if wanted == unshared.names:
        return unshared
    return _NameAssignment(graph, wanted).naming()


class _NameAssignment:
    """One sweep over the nodes of a graph: which value has which name at the moment."""

    def __init__(self, graph: Graph, wanted: list[str]):
        self.graph, self.wanted = graph, wanted
        self.names = [value.name for value in graph.values]
        self.replaced = [ABSENT] * len(graph.values)
        self.made_by = producers(graph)
        self.readers: list[list[int]] = [[] for _ in graph.values]
        for n, node in enumerate(graph.nodes):
            for v in node.reads:
                self.readers[v].append(n)
        self.kept = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
        self.fresh = UniqueNames({*wanted, *self.names})
        self.shared_words = {name for name, own in zip(wanted, self.names, strict=True) if name != own}
        self.holder: dict[str, int] = {}
        self.declared: dict[str, int] = {}  # the value whose declaration stands for all versions of the name
        self.inference: TypeInference | None = None

    def naming(self) -> Naming:
        before: dict[int, tuple[int, ...]] = {}
        for v, name in enumerate(self.names):
            if self.made_by[v] < 0:
                self._take(v, name)
        for n, node in enumerate(self.graph.nodes):
            waits: dict[int, None] = {}
            for v in node.writes:
                old = self.holder.get(self.wanted[v], ABSENT)
                if old == ABSENT:
                    self._take(v, self.wanted[v])
                elif self._may_replace(n, node, old, v):
                    self._take(v, self.wanted[v])
                    self.replaced[v] = old
                    waits.update(dict.fromkeys(self.readers[old]))
                    if self.made_by[old] >= 0:
                        waits[self.made_by[old]] = None
                else:
                    self._take(v, self._free(self.names[v]))
            waits.pop(n, None)
            if waits:
                before[n] = tuple(waits)
        return Naming(self.names, self.replaced, before)

    def _take(self, v: int, name: str) -> None:
        self.names[v] = name
        self.holder[name] = v
        self.declared.setdefault(name, v)

    def _free(self, name: str) -> str:
        """`name`, or the next of its kind that no other value has or wants."""
        return name if name not in self.shared_words else self.fresh.name(name)

    def _may_replace(self, n: int, node: Node, old: int, v: int) -> bool:
        """True when `old` is read for the last time by node `n` or before, and one declaration does for both."""
        if self.made_by[old] == n or old in self.kept or (self.readers[old] and self.readers[old][-1] > n):
            return False
        one, other = self.graph.values[self.declared[self.wanted[v]]], self.graph.values[v]
        notes, others = own_annotations(one), own_annotations(other)
        if one.fixed_bytes is not other.fixed_bytes or (notes is not others and dict(notes) != dict(others)):
            return False
        if one.bytes == other.bytes and (one.type is other.type or one.type == other.type):
            return True
        return not other.fixed_bytes and other.bytes is None and one.bytes is None and self._is_inferred(node, v)

    def _is_inferred(self, node: Node, v: int) -> bool:
        """True when the op table tells the type of `v`, whatever is declared."""
        values = self.graph.values
        if self.inference is None:
            contents = {c: value.data for c, value in enumerate(values) if value.data is not None}
            self.inference = TypeInference(self.graph.opset.get("", 21), contents)
        try:
            told = None if node.bodies else self.inference.outputs(node, [value.type for value in values])
        except TYPE_RULE_ERRORS:
            return False
        place = node.outputs.index(v)
        return told is not None and place < len(told) and told[place] == values[v].type


def own_annotations(value: Value) -> Mapping[str, Any]:
    """Annotations of a value but for what it is a version of."""
    if VERSION_OF not in value.annotations:
        return value.annotations
    if len(value.annotations) == 1:
        return EMPTY
    return {key: entry for key, entry in value.annotations.items() if key != VERSION_OF}


def versions_of_graph(graph: Graph, start: Mapping[str, int] = EMPTY) -> VersionTable:
    """The version table of a graph, under its names where they are written more than once. Ids are value ids.

    `start` are numbers that names come with; 0 for one that it leaves out.
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
    reads = [node.inputs + caught for node, caught in zip(graph.nodes, captures, strict=True)]
    return VersionTable(naming.names, numbers, naming.replaced, reads, writes, final, ())


def without_name_order(graph: Graph) -> Graph:
    """`graph` without the order that only its names ask for, nested graphs included."""
    return _with_after(graph, lambda node, before: tuple([m for m in node.after if m not in before]))


def with_name_order(graph: Graph) -> Graph:
    """`graph` with every write of a name after the readers and the writer of the version it replaces."""
    return _with_after(graph, lambda node, before: tuple(dict.fromkeys((*node.after, *before))))


def _with_after(graph: Graph, after: Any) -> Graph:
    before = naming_of(graph).before
    nodes = list(graph.nodes)
    for n, node in enumerate(nodes):
        if n in before:
            node = replace(node, after=after(node, before[n]))
        if node.bodies:
            node = replace(node, bodies=_nested(node.bodies, after))
        nodes[n] = node
    same = not before and not any(node.bodies for node in nodes)
    return graph if same else replace(graph, nodes=tuple(nodes))


def _nested(bodies: Mapping[str, Body], after: Any) -> Mapping[str, Body]:
    return {name: replace(body, graph=_with_after(body.graph, after)) for name, body in bodies.items()}


def with_names(graph: Graph, names: Sequence[str] | Mapping[int, str]) -> Graph:
    """`graph` with other names for values, all or some, which are versions of nothing from then on."""
    chosen: Iterable[tuple[int, str]] = names.items() if isinstance(names, Mapping) else enumerate(names)
    values = list(graph.values)
    for v, name in chosen:
        values[v] = replace(values[v], name=name, annotations=own_annotations(values[v]))
    return replace(graph, values=tuple(values))
