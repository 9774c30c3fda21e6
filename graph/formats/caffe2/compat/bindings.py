"""Which names of a nested list of ops come from outside, which it hands out and which are its own, by lexical scope.

read before it is written      must exist outside, and is an input
written, and visible outside   an output; its last version is what is handed out
written otherwise              local to the scope
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graph.errors import Findings, quoted


@dataclass(frozen=True, slots=True)
class NamedOp:
    """What an op of the list does with names."""

    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bindings:
    """The interface of a scoped subgraph around a list of ops, every name bound to the one outside that is its own."""

    inputs: tuple[str, ...]  # in the order they are read
    outputs: tuple[str, ...]  # in the order they are written
    local: tuple[str, ...]
    scope: str  # a name for the scope handle that nothing else has

    @property
    def bindings(self) -> dict[str, str]:
        """Inner name -> outer name."""
        return {name: name for name in dict.fromkeys((*self.inputs, *self.outputs))}


def inferred_bindings(ops: Sequence[NamedOp], visible: Collection[str], name: str = "do") -> Bindings:
    """The interface of the ops where `visible` are the names outside. Raises BadGraph with each undefined name."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for op in ops:
        reads.update((word, None) for word in op.inputs if word and word not in writes)
        writes.update((word, None) for word in op.outputs if word)
    findings, around = Findings(), set(visible)
    for word in reads:
        if word not in around:
            findings.add(
                "undefined_value",
                f"scope {quoted(name)}",
                f"{quoted(word)}, which is read before it is written",
                "a name written before, or known outside",
                "write it first, or give it a value outside",
            )
    findings.settle()
    scope, number = f"{name}/scope", 0
    while scope in around or scope in writes:
        number += 1
        scope = f"{name}/scope/{number}"
    outputs = tuple(word for word in writes if word in around)
    return Bindings(tuple(reads), outputs, tuple(word for word in writes if word not in around), scope)
