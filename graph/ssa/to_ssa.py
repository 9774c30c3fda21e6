"""A program whose names are written more than once, as one in which every name is written once.

w ──▶ step1 ──▶ w        becomes        w ──▶ step1 ──▶ w/1
w ──▶ step2 ──▶ w                     w/1 ──▶ step2 ──▶ w/2        after every reader of w/1

What is there first keeps the plain name; a later value says by the annotation `version_of` what it was called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.formats.document.schema import BodyRow, Document, NodeRow, ValueRow
from graph.ir import ABSENT
from graph.ssa.version_table import VersionTable, table_of

VERSION_OF = "version_of"  # annotation of a value: the name it shares with others
MAX_DEPTH = 64  # of nested bodies; what lies deeper is left as it is, for the reader to refuse
_SLOT = re.compile(r"(inputs|outputs)\[\d+\]\Z")
_NONE: Mapping[str, int] = {}

#: Per scope, by its path ("" is the program itself), the values whose declaration is that of several versions.
SharedDeclarations = dict[str, frozenset[str]]


def convert_to_ssa(
    document: Document, findings: Findings, depth: int = MAX_DEPTH
) -> tuple[Document, SharedDeclarations]:
    """The document with one name for each version, and which of them share a declaration and may differ in type.

    A write comes `after` the reads and the write of the version it replaces, so that the document can be
    turned back. Version k of NAME is called `NAME/k`, or by a higher k where that is taken. Bodies are scopes
    of their own, converted alike. O(reads + writes).
    """
    shared: SharedDeclarations = {}
    scope = _Scope(document.values, document.nodes, (), "", _ScopeContext(findings, shared), depth)
    name = scope.name_at_end
    result = replace(
        document,
        values=scope.values(),
        nodes=scope.nodes(),
        outputs=[name(output) for output in document.outputs],
        naming="single",
        gradients={p: name(g) for p, g in document.gradients.items()},
    )
    return result, shared


@dataclass(frozen=True, slots=True)
class _ScopeContext:
    """What all scopes of one program add to."""

    findings: Findings
    shared: SharedDeclarations


@dataclass(slots=True)
class _RenamedOperands:
    """What the names a node uses became."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class _Scope:
    """One program or body, its table, and the name of each version."""

    def __init__(
        self,
        values: Sequence[ValueRow],
        rows: Sequence[NodeRow],
        given: Sequence[str],
        path: str,
        whole: _ScopeContext,
        depth: int,
    ):
        self.declared, self.rows, self.path, self.whole, self.depth = values, rows, path, whole, depth
        self.table = table_of(values, rows, given, _NONE, path, whole.findings)
        self.names = unique_names(self.table, {value.name for value in values})
        self.given = len(set(given))  # their versions come first in the table
        whole.shared[path] = self._shared()

    def name_at_end(self, name: str) -> str:
        v = self.table.final.get(name)
        return name if v is None else self.names[v]

    def _renamed(self) -> list[int]:
        return [v for v, name in enumerate(self.table.names) if self.names[v] != name]

    def values(self) -> list[ValueRow]:
        """The declarations; a later version has that of its name, and says what it is a version of."""
        declared = {value.name: value for value in self.declared}
        notes: dict[str, dict[str, Any]] = {}  # one record for all versions of a name
        table, renamed = self.table, self._renamed()
        # First versions stand in front of later ones, declared or not, so that the order does not depend on it.
        first = [v for v, old in enumerate(table.replaced) if old == ABSENT and (table.numbers[v] or v < self.given)]
        more = [ValueRow(self.names[v]) for v in first if renamed and table.names[v] not in declared]
        for v in renamed:
            name = table.names[v]
            row = declared.get(name)
            if name not in notes:
                notes[name] = {**((row.annotations if row is not None else None) or {}), VERSION_OF: name}
            if row is None:
                more.append(ValueRow(self.names[v], annotations=notes[name]))
            else:
                more.append(replace(row, name=self.names[v], role="activation", data=None, annotations=notes[name]))
        return [*self.declared, *more]

    def _shared(self) -> frozenset[str]:
        """Unique names of declared versions of names that have several."""
        declared = {value.name: value.role for value in self.declared}
        renamed = [v for v in self._renamed() if self.table.names[v] in declared]
        first = {self.table.names[v] for v in renamed if declared[self.table.names[v]] == "activation"}
        return frozenset(self.names[v] for v in renamed) | frozenset(first)

    def nodes(self) -> list[NodeRow]:
        order = overwrite_dependencies(self.table)
        return [self._node(n, row, order.get(n, ())) for n, row in enumerate(self.rows)]

    def _node(self, n: int, row: NodeRow, before: Sequence[int]) -> NodeRow:
        """The node with versions for names, after everything its writes replace."""
        names, table, width = self.names, self.table, len(row.inputs)
        read, written = table.reads[n], table.writes[n]
        inputs = [names[v] if v >= 0 else "" for v in (read[:width] if row.bodies else read)]
        outputs = [names[v] if v >= 0 else "" for v in written]
        after = row.after
        if before:
            after = list(dict.fromkeys([*row.after, *(self.rows[m].name for m in before)]))
        if not (row.alias_of or row.in_place or row.gradient_reads or row.bodies):
            return replace(row, inputs=inputs, outputs=outputs, after=after)
        own = _RenamedOperands(dict(zip(row.inputs, inputs, strict=True)), dict(zip(row.outputs, outputs, strict=True)))
        reads = row.gradient_reads
        return replace(
            row,
            inputs=inputs,
            outputs=outputs,
            after=after,
            alias_of={own.outputs.get(o, o): own.inputs.get(i, i) for o, i in row.alias_of.items()},
            in_place={own.outputs.get(o, o): own.inputs.get(i, i) for o, i in row.in_place.items()},
            gradient_reads=None if reads is None else [self._own(own, name, n) for name in reads],
            bodies=self._bodies(row.bodies, read[width:], f"{self.path}nodes[{n}].bodies."),
        )

    def _own(self, own: _RenamedOperands, name: str, n: int) -> str:
        """The version of one of the node's own names; a name it both reads and writes does not tell which."""
        read, written = own.inputs.get(name), own.outputs.get(name)
        if read and written and read != written and not _SLOT.match(name):
            self.whole.findings.add(
                "ambiguous_name",
                f"{self.path}nodes[{n}].gradient_reads",
                f"{quoted(name)}, which the node reads and writes",
                "the version before or after the write",
                "write inputs[0] or outputs[0] with its place instead",
            )
        return written or read or name

    def _bodies(self, bodies: Mapping[str, BodyRow], captured: Sequence[int], path: str) -> dict[str, BodyRow]:
        """The bodies, each a scope of its own whose captures are versions of this one."""
        if not self.depth:
            return dict(bodies)
        versions = iter(captured)
        return {
            key: self._body(body, [next(versions) for _ in body.captures], f"{path}{key}.")
            for key, body in bodies.items()
        }

    def _body(self, body: BodyRow, captured: Sequence[int], path: str) -> BodyRow:
        given = [*body.inputs, *body.captures]
        scope = _Scope(body.values, body.nodes, given, path, self.whole, self.depth - 1)
        outside = [self.names[v] if v >= 0 else "" for v in captured]
        return replace(
            body,
            values=scope.values(),
            nodes=scope.nodes(),
            outputs=[scope.name_at_end(name) for name in body.outputs],
            captures=dict(zip(body.captures, outside, strict=True)),
        )


def unique_names(table: VersionTable, declared: set[str]) -> list[str]:
    """Per version a name nothing else has: the plain one for the first of a name, `NAME/k` for version k."""
    taken = declared.union(table.names)
    last: dict[str, int] = {}
    names = []
    for name, number, old in zip(table.names, table.numbers, table.replaced, strict=True):
        if old == ABSENT:
            names.append(name)
            continue
        k = max(number, last.get(name, 0) + 1)
        while f"{name}/{k}" in taken:
            k += 1
        last[name] = k
        names.append(f"{name}/{k}")
    return names


def overwrite_dependencies(table: VersionTable) -> dict[int, tuple[int, ...]]:
    """Per op those it must follow because it takes a name over: who made and who read the version before."""
    found: dict[int, tuple[int, ...]] = {}
    readers, maker = _ops(table)
    for n, written in enumerate(table.writes):
        before: dict[int, None] = {}
        for v in written:
            old = table.replaced[v] if v >= 0 else ABSENT
            if old >= 0:
                before.update(dict.fromkeys(readers[old]))
                if maker[old] >= 0:
                    before[maker[old]] = None
        before.pop(n, None)
        if before:
            found[n] = tuple(before)
    return found


def _ops(table: VersionTable) -> tuple[list[list[int]], list[int]]:
    """(ops that read each version, the op that makes it or -1)."""
    readers: list[list[int]] = [[] for _ in table.names]
    maker = [-1] * len(table.names)
    for op, (read, written) in enumerate(zip(table.reads, table.writes, strict=True)):
        for v in read:
            if v >= 0:
                readers[v].append(op)
        for v in written:
            if v >= 0:
                maker[v] = op
    return readers, maker
