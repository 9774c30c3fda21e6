"""The version table: per op which write of a name it reads, and which it makes.

    w ──▶ step1 ──▶ w        reads w@0, writes w@1        w is given from outside
    w ──▶ step2 ──▶ w        reads w@1, writes w@2        w@2 is final

Versions have dense ids in the order they first appear; a table of a Graph has the ids of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graph.errors import Findings, quoted
from graph.formats.document.schema import BodyRow, Document, NodeRow, ValueRow
from graph.ir import ABSENT

NameVersion = tuple[str, int]  # a name, and which write of it; 0 is what was there before any
OpSlot = tuple[int, int]  # an op, and which of its inputs or outputs
_NONE: Mapping[str, int] = {}


@dataclass(frozen=True, eq=False, slots=True)
class VersionTable:
    """Every version of every name of one program, and the ops that read and write it."""

    names: list[str]  # per version
    numbers: list[int]  # per version: which write of the name it is
    replaced: list[int]  # per version: the one it takes the name from, ABSENT for the first
    reads: list[tuple[int, ...]]  # per op the version in each input slot, ABSENT where left out; then captures
    writes: list[tuple[int, ...]]  # per op the version in each output slot, ABSENT where left out
    final: Mapping[str, int]  # name -> the version that stands at the end; undeclared names only once written
    undeclared: tuple[int, ...]  # read, though neither declared nor written before; number 0

    def version(self, v: int) -> NameVersion:
        return self.names[v], self.numbers[v]

    def versioned(self, op: int) -> tuple[list[NameVersion], list[NameVersion]]:
        """(inputs, outputs) of an op as names with numbers; absent ones and captures are left out."""
        return (
            [self.version(v) for v in self.reads[op] if v != ABSENT],
            [self.version(v) for v in self.writes[op] if v != ABSENT],
        )

    def final_numbers(self) -> dict[str, int]:
        return {name: self.numbers[v] for name, v in self.final.items()}

    def undefined(self) -> list[int]:
        """Versions read although no op made them and no number was handed in: number 0, in order of first read."""
        return [v for v in dict.fromkeys(v for read in self.reads for v in read if v != ABSENT) if not self.numbers[v]]

    def producers(self) -> list[OpSlot | None]:
        """Per version the op and output slot that writes it; None where it was there from the start."""
        made: list[OpSlot | None] = [None] * len(self.names)
        for op, written in enumerate(self.writes):
            for slot, v in enumerate(written):
                if v != ABSENT:
                    made[v] = (op, slot)
        return made

    def consumers(self) -> list[list[OpSlot]]:
        """Per version the ops and input slots that read it, in order; slots past the inputs are captures."""
        readers: list[list[OpSlot]] = [[] for _ in self.names]
        for op, read in enumerate(self.reads):
            for slot, v in enumerate(read):
                if v != ABSENT:
                    readers[v].append((op, slot))
        return readers

    def ids(self) -> dict[NameVersion, int]:
        """Id by name and number."""
        return {version: v for v, version in enumerate(zip(self.names, self.numbers, strict=True))}


def versions_of(document: Document, start: Mapping[str, int] = _NONE) -> VersionTable:
    """The table of a program. `start` are numbers that names come with, such as those an earlier program ends with.

    Where nothing is declared as given from outside, names read first are. Raises BadGraph for an op that
    writes one name twice. O(reads + writes).
    """
    findings = Findings()
    table = table_of(document.values, document.nodes, (), start, "", findings)
    findings.settle()
    return table


def versions_of_each(documents: Sequence[Document]) -> list[VersionTable]:
    """Tables of programs that run one after the other: each goes on with the numbers the one before ends with."""
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
    """The table of one scope. `given` are names that come from outside beside the declared ones."""
    outside = [*given, *(value.name for value in values if value.role != "activation")]
    declared = dict.fromkeys([*outside, *start])
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
                if outside:
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
        made = []
        for name in row.outputs:
            if not name:
                made.append(ABSENT)
                continue
            old = current.get(name, ABSENT)
            made.append(len(names))
            current[name] = len(names)
            names.append(name)
            numbers.append(1 if old < 0 else numbers[old] + 1)
            replaced.append(old)
        writes.append(tuple(made))
    unmade = set(undeclared)
    final = {name: v for name, v in current.items() if v != ABSENT and v not in unmade}
    return VersionTable(names, numbers, replaced, reads, writes, final, tuple(undeclared))


def captured_names(bodies: Mapping[str, BodyRow]) -> list[str]:
    """Names outside that bodies read, body after body, once for each capture."""
    return [outer for body in bodies.values() for outer in body.captures.values()]


def _check_once(row: NodeRow, path: str, findings: Findings) -> None:
    """Collect names that the op writes more than once: which of both stands afterwards, nobody can say."""
    if len(set(row.outputs)) == len(row.outputs):
        return
    seen: set[str] = set()
    for i, name in enumerate(row.outputs):
        if name and name in seen:
            findings.add(
                "output_twice",
                f"{path}.outputs[{i}]",
                f"{quoted(name)}, which {quoted(row.name)} writes already",
                "a name of its own",
                "give each output of an op another name",
            )
        seen.add(name)
