"""Free names of a nested program: names of the enclosing program that it reads or writes.

outer: x, y        nested: x ──▶ a ──▶ t    t ──▶ b ──▶ y        reads x, writes y; t is local
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graph.errors import MAX_FINDINGS, Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.formats.document.schema import NodeRow
from graph.ssa.version_table import captured_names, table_of


@dataclass(frozen=True, slots=True)
class ExternalNames:
    """Names shared with the enclosing program, in order of first use."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def external_names(
    nodes: Sequence[NodeRow], visible: Collection[str], declared: Sequence[str] = (), path: str = ""
) -> ExternalNames:
    """Free names of a nested program: names read before they are written, and visible names that it writes.

    `visible`: names of the enclosing program. `declared`: names that count as read. Captures of a body are reads of
    the node with the body. Raises BadGraph for a read of a name that is not visible.
    """
    findings = Findings()
    table = table_of((), nodes, (), {}, path, findings)
    read = dict.fromkeys([*(table.names[v] for v in table.undefined()), *declared])
    outer = frozenset(visible)
    for name in [name for name in read if name not in outer][:MAX_FINDINGS]:
        n = next((n for n, row in enumerate(nodes) if name in (*row.inputs, *captured_names(row.bodies))), None)
        where = "" if n is None else f"nodes[{n}]"
        findings.add(
            "undefined_value",
            f"{path}{where}",
            f"{quoted(name)}, read in the nested graph and undefined in the outer one",
            "names written earlier in the nested graph, or visible in the outer one",
            did_you_mean(name, outer, "write it in the outer graph first, or pass it as an input"),
        )
    findings.settle()
    written = dict.fromkeys(name for row in nodes for name in row.outputs if name in outer)
    return ExternalNames(tuple(read), tuple(written))
