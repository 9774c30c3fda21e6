"""The version table: per op the versions of names that it reads and writes.

    w ──▶ step1 ──▶ w        reads w@0, writes w@1        w is an input
    w ──▶ step2 ──▶ w        reads w@1, writes w@2        w@2 is final

Versions have dense ids in order of first appearance; in the table of a Graph they are value ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graph.errors import Findings, quoted
from graph.formats.document.schema import BodyRow, Document, NodeRow, ValueRow
from graph.ir import ABSENT

NameVersion = tuple[str, int]  # (name, version number); 0 is the version before any write
OpSlot = tuple[int, int]  # (op, index of an input or output)
_NONE: Mapping[str, int] = {}


@dataclass(frozen=True, eq=False, slots=True)
class VersionTable:
    """All versions of all names of one program, and the ops that read and write them."""

    names: list[str]  # per version: its name
    numbers: list[int]  # per version: its number within the name
    replaced: list[int]  # per version: the previous version of the name, ABSENT for the first
    reads: list[tuple[int, ...]]  # per op: the version in each input slot, ABSENT if omitted; then captures
    writes: list[tuple[int, ...]]  # per op: the version in each output slot, ABSENT if omitted
    final: Mapping[str, int]  # name -> its last version; without undeclared names that are never written
    undeclared: tuple[int, ...]  # versions read but neither declared nor written before; number 0

    def version(self, v: int) -> NameVersion:
        return self.names[v], self.numbers[v]

    def versioned(self, op: int) -> tuple[list[NameVersion], list[NameVersion]]:
        """(inputs, outputs) of an op as (name, number), without absent operands."""
        return (
            [self.version(v) for v in self.reads[op] if v != ABSENT],
            [self.version(v) for v in self.writes[op] if v != ABSENT],
        )

    def final_numbers(self) -> dict[str, int]:
        return {name: self.numbers[v] for name, v in self.final.items()}

    def undefined(self) -> list[int]:
        """Versions with number 0 that are read, in order of first read."""
        return [v for v in dict.fromkeys(v for read in self.reads for v in read if v != ABSENT) if not self.numbers[v]]

    def producers(self) -> list[OpSlot | None]:
        """Per version the op and output slot that writes it; None for a version without a writer."""
        writers: list[OpSlot | None] = [None] * len(self.names)
        for op, written in enumerate(self.writes):
            for slot, v in enumerate(written):
                if v != ABSENT:
                    writers[v] = (op, slot)
        return writers

    def consumers(self) -> list[list[OpSlot]]:
        """Per version the ops and input slots that read it, in order; slots after the inputs are captures."""
        readers: list[list[OpSlot]] = [[] for _ in self.names]
        for op, read in enumerate(self.reads):
            for slot, v in enumerate(read):
                if v != ABSENT:
                    readers[v].append((op, slot))
        return readers

    def overwrite_order(self) -> list[list[int]]:
        """Per op: the other ops that read or write the versions it replaces; with these names they run before it."""
        readers, writers = self.consumers(), self.producers()
        order = []
        for op, written in enumerate(self.writes):
            slots = [
                slot
                for v in written
                if v != ABSENT and (old := self.replaced[v]) != ABSENT
                for slot in (*readers[old], writers[old])
                if slot is not None
            ]
            order.append(list(dict.fromkeys(other for other, _ in slots if other != op)))
        return order

    def ids(self) -> dict[NameVersion, int]:
        """(name, number) -> version id."""
        return {version: v for v, version in enumerate(zip(self.names, self.numbers, strict=True))}


def versions_of(document: Document, start: Mapping[str, int] = _NONE) -> VersionTable:
    """The version table of a document. `start`: name -> initial version number, e.g. from an earlier program.

    In a document without inputs, parameters, constants and states, names read before they are written count as
    inputs. Raises BadGraph for an op that writes one name twice. O(reads + writes).
    """
    findings = Findings()
    table = table_of(document.values, document.nodes, (), start, "", findings)
    findings.settle()
    return table


def versions_of_each(documents: Sequence[Document]) -> list[VersionTable]:
    """Tables of programs run in sequence: each starts with the final version numbers of the previous ones."""
    tables: list[VersionTable] = []
    numbers: dict[str, int] = {}
    for document in documents:
        tables.append(versions_of(document, numbers))
        numbers |= tables[-1].final_numbers()
    return tables


def table_of(
    values: Sequence[ValueRow],
    nodes: Sequence[NodeRow],
    given: Sequence[str],
    start: Mapping[str, int],
    path: str,
    findings: Findings,
) -> VersionTable:
    """The version table of one scope. `given`: names from the enclosing scope, in addition to declared ones."""
    outer = [*given, *(value.name for value in values if value.role != "activation")]
    declared = dict.fromkeys([*outer, *start])
    names, numbers = list(declared), [start.get(name, 0) for name in declared]
    current = {name: v for v, name in enumerate(names)}
    replaced = [ABSENT] * len(names)
    current[""] = ABSENT
    undeclared: list[int] = []
    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []

    def first_reads(read: Sequence[str]) -> tuple[int, ...]:
        for name in read:
            if name not in current:
                current[name] = len(names)
                if outer:
                    undeclared.append(len(names))
                names.append(name)
                numbers.append(0)
                replaced.append(ABSENT)
        return tuple([current[name] for name in read])

    for n, row in enumerate(nodes):
        read = row.inputs if not row.bodies else [*row.inputs, *captured_names(row.bodies)]
        try:
            reads.append(tuple([current[name] for name in read]))
        except KeyError:
            reads.append(first_reads(read))
        if len(row.outputs) > 1:
            _check_once(row, f"{path}nodes[{n}]", findings)
        written = []
        for name in row.outputs:
            if not name:
                written.append(ABSENT)
                continue
            old = current.get(name, ABSENT)
            written.append(len(names))
            current[name] = len(names)
            names.append(name)
            numbers.append(1 if old < 0 else numbers[old] + 1)
            replaced.append(old)
        writes.append(tuple(written))
    undefined = set(undeclared)
    final = {name: v for name, v in current.items() if v != ABSENT and v not in undefined}
    return VersionTable(names, numbers, replaced, reads, writes, final, tuple(undeclared))


def captured_names(bodies: Mapping[str, BodyRow]) -> list[str]:
    """Names of the outer scope that bodies capture, body by body, one entry per capture."""
    return [outer for body in bodies.values() for outer in body.captures.values()]


def _check_once(row: NodeRow, path: str, findings: Findings) -> None:
    """Add a finding for each name that the op writes more than once."""
    if len(set(row.outputs)) == len(row.outputs):
        return
    seen: set[str] = set()
    for i, name in enumerate(row.outputs):
        if name and name in seen:
            findings.add(
                "output_twice",
                f"{path}.outputs[{i}]",
                f"{quoted(name)}, already an output of {quoted(row.name)}",
                "a unique name",
                "give each output of an op a different name",
            )
        seen.add(name)
