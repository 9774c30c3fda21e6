"""Inferred interface of a nested list of ops under lexical scoping: inputs, outputs and local names.

read before it is written      input; must be defined outside
written, and visible outside   output; its last version is returned
written otherwise              local
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graph.errors import Findings, quoted


@dataclass(frozen=True, slots=True)
class NamedOp:
    """Names that an op reads and writes."""

    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bindings:
    """Interface of a scoped subgraph; every inner name is bound to the outer name of the same spelling."""

    inputs: tuple[str, ...]  # in order of the first read
    outputs: tuple[str, ...]  # in order of the first write
    local: tuple[str, ...]
    scope: str  # unused name for the scope handle

    @property
    def bindings(self) -> dict[str, str]:
        """Inner name -> outer name."""
        return {name: name for name in dict.fromkeys((*self.inputs, *self.outputs))}


def inferred_bindings(ops: Sequence[NamedOp], visible: Collection[str], name: str = "do") -> Bindings:
    """Interface of the ops when `visible` names exist outside. Raises BadGraph naming each undefined name."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for op in ops:
        reads.update((read, None) for read in op.inputs if read and read not in writes)
        writes.update((written, None) for written in op.outputs if written)
    findings, outside = Findings(), set(visible)
    for read in reads:
        if read not in outside:
            findings.add(
                "undefined_value",
                f"scope {quoted(name)}",
                f"{quoted(read)}, which is read before it is written",
                "a name written before, or known outside",
                "write it first, or give it a value outside",
            )
    findings.settle()
    scope, number = f"{name}/scope", 0
    while scope in outside or scope in writes:
        number += 1
        scope = f"{name}/scope/{number}"
    outputs = tuple(written for written in writes if written in outside)
    return Bindings(tuple(reads), outputs, tuple(written for written in writes if written not in outside), scope)
