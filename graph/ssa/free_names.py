"""Names a nested program shares with the one around it, where it refers to them by name alone.

outside: x, y        inside: x ──▶ a ──▶ t    t ──▶ b ──▶ y        reads x, writes y; t is its own
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
    """Names in the order they are met."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def external_names(
    nodes: Sequence[NodeRow], visible: Collection[str], declared: Sequence[str] = (), path: str = ""
) -> ExternalNames:
    """What a nested program reads before it writes it, with the names `declared` as external, and what it writes
    of the names visible outside. Raises BadGraph for a read of a name that is not visible.

    What bodies of its nodes capture is read by those nodes.
    """
    findings = Findings()
    table = table_of((), nodes, (), {}, path, findings)
    read = dict.fromkeys([*(table.names[v] for v in table.undefined()), *declared])
    there = frozenset(visible)
    for name in [name for name in read if name not in there][:MAX_FINDINGS]:
        n = next((n for n, row in enumerate(nodes) if name in (*row.inputs, *captured_names(row.bodies))), None)
        where = "" if n is None else f"nodes[{n}]"
        findings.add(
            "undefined_value",
            f"{path}{where}",
            f"{quoted(name)}, which is read inside and not there outside",
            "names that are written inside before, or visible outside",
            did_you_mean(name, there, "write it outside first, or hand it in"),
        )
    findings.settle()
    written = dict.fromkeys(name for row in nodes for name in row.outputs if name in there)
    return ExternalNames(tuple(read), tuple(written))
