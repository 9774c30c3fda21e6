"""Conversion of a document with mutable names to SSA form: every name is written once.

w ──▶ step1 ──▶ w        becomes        w ──▶ step1 ──▶ w/1
w ──▶ step2 ──▶ w                     w/1 ──▶ step2 ──▶ w/2

The first version keeps the plain name; later versions have their original name as annotation `version_of`.
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

VERSION_OF = "version_of"  # annotation of a value: the name of which it is a version
MAX_DEPTH = 64  # maximum nesting of bodies to convert; deeper ones are unchanged and refused by the reader
_SLOT = re.compile(r"(inputs|outputs)\[\d+\]\Z")
_NONE: Mapping[str, int] = {}

#: Path of a scope ("" for the program) -> values that share one declaration with other versions.
SharedDeclarations = dict[str, frozenset[str]]


def convert_to_ssa(
    document: Document, findings: Findings, depth: int = MAX_DEPTH
) -> tuple[Document, SharedDeclarations]:
    """(document with one name per version, names that share a declaration and may differ in type).

    Version k of NAME is named `NAME/k`, or with a higher k if taken. Bodies are separate scopes, converted in the same
    way. A write is not ordered after the readers of the version it replaces: `graph.ssa.naming` assigns names to any
    order of the nodes. O(reads + writes).
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
    """Results shared by all scopes of one program."""

    findings: Findings
    shared: SharedDeclarations


@dataclass(slots=True)
class _RenamedOperands:
    """Old name -> new name of the operands of a node."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class _Scope:
    """One program or body: its version table, and the unique name of each version."""

    def __init__(
        self,
        values: Sequence[ValueRow],
        rows: Sequence[NodeRow],
        given: Sequence[str],
        path: str,
        context: _ScopeContext,
        depth: int,
    ):
        self.declared, self.rows, self.path, self.context, self.depth = values, rows, path, context, depth
        self.table = table_of(values, rows, given, _NONE, path, context.findings)
        self.names = unique_names(self.table, {value.name for value in values})
        self.given = len(set(given))  # number of names from the enclosing scope; their versions come first in the table
        context.shared[path] = self._shared()

    def name_at_end(self, name: str) -> str:
        v = self.table.final.get(name)
        return name if v is None else self.names[v]

    def _renamed(self) -> list[int]:
        return [v for v, name in enumerate(self.table.names) if self.names[v] != name]

    def values(self) -> list[ValueRow]:
        """Declarations of all versions; a later version copies that of its name and adds `version_of`."""
        declared = {value.name: value for value in self.declared}
        notes: dict[str, dict[str, Any]] = {}  # name -> annotations shared by its versions
        table, renamed = self.table, self._renamed()
        # First versions come before later ones, declared or not, so that the order is independent of declarations.
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
        """Unique names of the versions that share a declaration."""
        declared = {value.name: value.role for value in self.declared}
        renamed = [v for v in self._renamed() if self.table.names[v] in declared]
        first = {self.table.names[v] for v in renamed if declared[self.table.names[v]] == "activation"}
        return frozenset(self.names[v] for v in renamed) | frozenset(first)

    def nodes(self) -> list[NodeRow]:
        return [self._node(n, row) for n, row in enumerate(self.rows)]

    def _node(self, n: int, row: NodeRow) -> NodeRow:
        """The node with unique names."""
        names, table, width = self.names, self.table, len(row.inputs)
        read, written = table.reads[n], table.writes[n]
        inputs = [names[v] if v >= 0 else "" for v in (read[:width] if row.bodies else read)]
        outputs = [names[v] if v >= 0 else "" for v in written]
        if not (row.alias_of or row.in_place or row.takeover or row.gradient_reads or row.bodies):
            return replace(row, inputs=inputs, outputs=outputs)
        own = _RenamedOperands(dict(zip(row.inputs, inputs, strict=True)), dict(zip(row.outputs, outputs, strict=True)))
        reads = row.gradient_reads
        return replace(
            row,
            inputs=inputs,
            outputs=outputs,
            alias_of={own.outputs.get(o, o): own.inputs.get(i, i) for o, i in row.alias_of.items()},
            in_place={own.outputs.get(o, o): own.inputs.get(i, i) for o, i in row.in_place.items()},
            takeover={own.outputs.get(o, o): [own.inputs.get(i, i) for i in row.takeover[o]] for o in row.takeover},
            gradient_reads=None if reads is None else [self._gradient_read(own, name, n) for name in reads],
            bodies=self._bodies(row.bodies, read[width:], f"{self.path}nodes[{n}].bodies."),
        )

    def _gradient_read(self, own: _RenamedOperands, name: str, n: int) -> str:
        """Unique name for an entry of `gradient_reads`; a name that the node both reads and writes is ambiguous."""
        read, written = own.inputs.get(name), own.outputs.get(name)
        if read and written and read != written and not _SLOT.match(name):
            self.context.findings.add(
                "ambiguous_name",
                f"{self.path}nodes[{n}].gradient_reads",
                f"{quoted(name)}, which the node reads and writes",
                "the version before or after the write",
                "refer to the operand by position, such as inputs[0] or outputs[0]",
            )
        return written or read or name

    def _bodies(self, bodies: Mapping[str, BodyRow], captured: Sequence[int], path: str) -> dict[str, BodyRow]:
        """The converted bodies; their captures are versions of this scope."""
        if not self.depth:
            return dict(bodies)
        versions = iter(captured)
        return {
            key: self._body(body, [next(versions) for _ in body.captures], f"{path}{key}.")
            for key, body in bodies.items()
        }

    def _body(self, body: BodyRow, captured: Sequence[int], path: str) -> BodyRow:
        given = [*body.inputs, *body.captures]
        scope = _Scope(body.values, body.nodes, given, path, self.context, self.depth - 1)
        outside = [self.names[v] if v >= 0 else "" for v in captured]
        return replace(
            body,
            values=scope.values(),
            nodes=scope.nodes(),
            outputs=[scope.name_at_end(name) for name in body.outputs],
            captures=dict(zip(body.captures, outside, strict=True)),
        )


def unique_names(table: VersionTable, declared: set[str]) -> list[str]:
    """Per version a unique name: NAME for the first version, `NAME/k` for version k."""
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
