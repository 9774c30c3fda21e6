"""Nested blocks of ops over mutable names, converted to If and Loop nodes with bodies.

    if c:  y = f(x)              If(c)   then: captures x    returns y        outside: y is a new version
    else:  z = g(x)                      else: captures x, y returns y
                                 (z likewise: the branch that does not write a name passes it through)

Scoping: a name read before it is written is captured; a written name that is visible outside is an output; other
names are local.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graph.errors import BadGraph, quoted
from graph.formats.document.schema import BodyRow, NodeRow, ValueRow
from graph.formats.shared.program import Program
from graph.ir import TensorType


@dataclass(frozen=True, slots=True)
class NameUses:
    """Names read and written by a list of rows."""

    reads: tuple[str, ...]  # names read before any row writes them, in order
    writes: tuple[str, ...]  # names written, in order


def name_uses(rows: Sequence[NodeRow], own: Mapping[str, ValueRow]) -> NameUses:
    """Names read before any row writes them, and names written; `own` values exist from the start."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for row in rows:
        captured = [outer for body in row.bodies.values() for outer in body.captures.values()]
        for name in (*row.inputs, *captured):
            if name and name not in writes and name not in own:
                reads[name] = None
        writes.update((name, None) for name in row.outputs if name)
    return NameUses(tuple(reads), tuple(writes))


class Block:
    """Nested block under construction: `program` collects its ops and knows the types of visible outer names."""

    def __init__(
        self,
        outer: Program,
        formals: Mapping[str, TensorType | None] | None = None,
        local: Sequence[str] = (),
        *,
        sees: bool = True,
    ):
        """Start an empty block.

        `formals`: formal inputs and their types. `local`: names that hide outer names. `sees`: whether outer names
        are visible.
        """
        self.outer, self.formals = outer, dict(formals or {})
        self.outside = (set(outer.types) if sees else set()) - set(local)
        self.program = outer.nested()
        self.program.types.update((name, outer.types[name]) for name in self.outside)
        self.program.types.update(self.formals)

    @property
    def names(self) -> NameUses:
        return name_uses(self.program.nodes, self.program.values)

    def handed_out(self) -> list[str]:
        """Written names that are visible outside."""
        return [name for name in self.names.writes if name in self.outside]

    def body(self, outputs: Sequence[str], what: str, lead: Mapping[str, str] | None = None) -> BodyRow:
        """The finished body. `lead` adds scalar formal inputs in front: name -> dtype.

        Raises BadGraph naming a read or returned name that is defined neither inside nor outside; `what` is the place
        in its message.
        """
        names, own = self.names, self.program.values
        missing = [name for name in outputs if name not in names.writes and name not in own]
        captures = {}
        for name in dict.fromkeys((*names.reads, *missing)):
            if name in self.formals or name in (lead or {}):
                continue
            if name not in self.outside:
                raise BadGraph.one(
                    "undefined_value",
                    what,
                    f"{quoted(name)}, neither written inside nor defined outside",
                    "a name written before it is read",
                    "write it in every branch, or give it a value outside first",
                )
            captures[name] = name
        formals = [ValueRow(name, [], dtype, "input") for name, dtype in (lead or {}).items()]
        inputs = [*(lead or {}), *self.formals]
        return BodyRow(inputs, self.program.nodes, list(outputs), [*own.values(), *formals], captures)


def add_if(
    program: Program,
    name: str,
    condition: str,
    then: Block,
    other: Block | None = None,
    returns: Sequence[tuple[str, str, str]] | None = None,
) -> NodeRow:
    """Add an If whose outputs are the outer names written by either branch; a branch passes through the others.

    `returns` overrides the outputs: (name outside, name in the then branch, name in the else branch).
    Raises BadGraph.
    """
    other = Block(program) if other is None else other
    if returns is None:
        written = dict.fromkeys([*then.handed_out(), *other.handed_out()])
        returns = [(output, output, output) for output in written]
    what = f"If {quoted(name)}"
    bodies = {
        "then_branch": then.body([inside for _, inside, _ in returns], f"{what}, then branch"),
        "else_branch": other.body([inside for _, _, inside in returns], f"{what}, else branch"),
    }
    row = NodeRow(name, "If", [condition], [outside for outside, _, _ in returns], bodies=bodies)
    types = [then.program.types.get(a) or other.program.types.get(b) for _, a, b in returns]
    program.add(row, types)
    return row


@dataclass(frozen=True, slots=True)
class CarriedState:
    """Names of one loop-carried value; all four may be equal."""

    before: str  # outside, before the loop
    inside: str  # in the body, at the start of an iteration
    after: str  # in the body, at the end of an iteration
    result: str  # outside, after the loop


def add_loop(
    program: Program,
    name: str,
    first: str,
    block: Block,
    condition: str,
    states: Sequence[CarriedState],
    max_trips: int | None = None,
) -> NodeRow:
    """Add a while loop: it runs while `first` (before the loop), then `condition` (end of the body), holds.

    The caller adds the ops of both conditions. Every state must exist before the loop: zero iterations return the
    initial states. Raises BadGraph.
    """
    what = f"loop {quoted(name)}"
    for state in states:
        if state.before not in program.types:
            raise BadGraph.one(
                "undefined_value",
                what,
                f"{quoted(state.before)}, undefined before the loop",
                "an initial value",
                "give it a value before the loop",
            )
    block.formals.update((state.inside, program.types[state.before]) for state in states)
    lead = {f"{name}/trip": "int64", f"{name}/going": "bool"}
    body = block.body([condition, *(state.after for state in states)], what, lead)
    row = NodeRow(
        name,
        "Loop",
        ["", first, *(state.before for state in states)],
        [state.result for state in states],
        bodies={"body": body},
        annotations=None if max_trips is None else {"max_trips": max_trips},
    )
    program.add(row, [program.types[state.before] for state in states])
    return row


def carried_states(block: Block) -> list[CarriedState]:
    """Loop-carried values of a body that writes outer names in place."""
    return [CarriedState(name, name, name, name) for name in block.handed_out()]


def check_condition_written(name: str, condition: str, rows: Sequence[NodeRow]) -> None:
    """Raise BadGraph when the condition graph of a loop does not write the condition."""
    if not any(condition in row.outputs for row in rows):
        raise BadGraph.one(
            "condition_not_written",
            f"loop {quoted(name)}",
            f"a condition graph that does not write {quoted(condition)}",
            "ops that recompute the condition",
            "write the condition in its graph, or test another name",
        )
