"""Description of a recurrent net: the ops of one step, and the roles of their names.

    step t      x_t, h_prev ──▶ ops ──▶ h           links: h_prev is states[t], h is states[t + 1]
    buffer      states  h0 │ h(0) │ h(1) │ ... │ h(T-1)      T steps behind those of the initial value
    alias       h_all = states[1:]     h_last = states[-1:]   views of the buffer

In a step, each linked name has the window as leading axis: [window, ...], usually [1, rows, size].
Names of a step may be written more than once. An outer name that is neither linked nor the step counter
is a reference: a weight, equal in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY


@dataclass(frozen=True, slots=True)
class StepOp:
    """One op of a step."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Link:
    """At step t, `inner` is positions t + offset .. t + offset + window - 1 of `outer`, a buffer or a sequence."""

    inner: str
    outer: str
    offset: int = 0
    window: int = 1


@dataclass(frozen=True, slots=True)
class Alias:
    """`name` is the buffer from `offset` on; a negative one counts from the end. A view: no bytes."""

    buffer: str
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class RecurrentNet:
    """A recurrent net, see above. Validated by `checked`, not on construction."""

    name: str
    ops: tuple[StepOp, ...]
    sequences: tuple[str, ...]  # outer values whose axis 0 is time; all have the same number of steps
    buffers: Mapping[str, str]  # buffer of a state -> its initial outer value
    links: tuple[Link, ...]
    aliases: tuple[Alias, ...]
    timestep: str | None = None  # name of the step counter in the step
    recompute: tuple[str, ...] = ()  # names recomputed in the backward pass instead of saved per step

    def written(self) -> dict[str, int]:
        """Name -> its last writer among the ops."""
        return {name: n for n, op in enumerate(self.ops) for name in op.outputs if name}

    def read_before_write(self) -> tuple[str, ...]:
        """Names read before any op writes them, in order."""
        names: dict[str, None] = {}
        written: set[str] = set()
        for op in self.ops:
            names.update(dict.fromkeys(name for name in op.inputs if name and name not in written))
            written.update(op.outputs)
        return tuple(names)

    def writers(self) -> dict[str, Link]:
        """Buffer -> the link that writes it: that of a written name, else the one with the largest offset."""
        written = self.written()
        result: dict[str, Link] = {}
        for link in self.links:
            if link.outer in self.buffers and (link.inner in written or link.offset > 0):
                best = result.get(link.outer)
                if best is None or (link.inner in written, link.offset) > (best.inner in written, best.offset):
                    result[link.outer] = link
        return result

    def readers(self) -> tuple[Link, ...]:
        """Links that pass values into the step."""
        writers = self.writers()
        return tuple(link for link in self.links if link is not writers.get(link.outer))

    @property
    def references(self) -> tuple[str, ...]:
        """Outer names that the step reads and that are neither linked nor the step counter."""
        linked = {link.inner for link in self.links} | {self.timestep}
        return tuple(name for name in self.read_before_write() if name not in linked)

    def checked(self) -> RecurrentNet:
        """The net itself. Raises BadGraph with up to ten findings."""
        findings = Findings()
        self._check_links(findings)
        self._check_buffers(findings)
        check_recompute(self, findings)
        findings.settle()
        return self

    def _check_links(self, findings: Findings) -> None:
        """Collect a missing sequence, links to unknown names or out of range, and second links of a written name."""
        known = {*self.buffers, *self.sequences}
        written, inputs = self.written(), set(self.read_before_write())
        if not self.sequences:
            findings.add(
                "no_sequence",
                f"{self.name}.sequences",
                "no sequence",
                "at least one",
                "link a value whose first axis is time; it determines the number of steps",
            )
        for i, link in enumerate(self.links):
            place = f"{self.name}.links[{i}]"
            if link.outer not in known:
                findings.add(
                    "undefined_value",
                    place,
                    quoted(link.outer),
                    "a state buffer or a sequence",
                    "give the buffer an initial value, or list the sequence",
                )
            if link.window < 1 or link.offset < 0:
                findings.add(
                    "bad_link",
                    place,
                    f"{quoted(link.inner)} at offset {link.offset} with window {link.window}",
                    "an offset of at least 0 and a window of at least 1",
                    "correct the link",
                )
        for link in self.readers():
            if link.inner in written and link.inner not in inputs:
                findings.add(
                    "bad_link",
                    f"{self.name}.links",
                    f"{quoted(link.inner)}, which the step writes, as an input linked to {quoted(link.outer)}",
                    "one link to a state per name that the step writes",
                    "link the name to one state only",
                )

    def _check_buffers(self, findings: Findings) -> None:
        """Collect states that the step does not write, and aliases of other names."""
        writers = self.writers()
        for buffer in self.buffers:
            if buffer not in writers:
                findings.add(
                    "state_not_written",
                    f"{self.name}.states",
                    f"no written name that is linked to {quoted(buffer)}",
                    "one output of the step per state",
                    "link the output that is the state of the next step",
                )
        for alias in self.aliases:
            if alias.buffer not in self.buffers:
                findings.add(
                    "undefined_value",
                    f"{self.name}.aliases",
                    quoted(alias.buffer),
                    "a state buffer",
                    "name the buffer of a state",
                )


def check_recompute(net: RecurrentNet, findings: Findings) -> None:
    """Collect listed names that the step does not write, and ops whose outputs are listed only in part."""
    written, listed = net.written(), set(net.recompute)
    for name in net.recompute:
        if name not in written:
            add_unknown_name(net.name, name, findings)
    for op in net.ops:
        check_declared(net.name, op.type, op.outputs, listed, findings)


def add_unknown_name(net: str, name: str, findings: Findings) -> None:
    findings.add(
        "recompute_unknown",
        f"{net}.recompute",
        quoted(name),
        "a name that an op of the step writes",
        "remove it, or use its name in the step",
    )


def check_declared(net: str, op: str, outputs: Collection[str], listed: Collection[str], findings: Findings) -> None:
    """Collect an op of which some, but not all outputs are listed."""
    missing = ", ".join(quoted(name) for name in outputs if name and name not in listed)
    listed_outputs = ", ".join(quoted(name) for name in outputs if name in listed)
    if listed_outputs and missing:
        findings.add(
            "recompute_undeclared",
            f"{net}.recompute",
            f"{op} writes {missing} in addition to {listed_outputs}",
            "all outputs of an op, or none",
            f"list {missing} as well",
        )


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """One state of an ordinary cell: `inner` at step t is `output` at step t - 1."""

    inner: str
    initial: str  # outer value
    output: str


def cell_net(
    name: str,
    ops: Iterable[StepOp],
    sequences: Mapping[str, str],
    states: Sequence[RecurrentState],
    outputs: Sequence[str] = (),
    *,
    timestep: str | None = None,
    recompute: Sequence[str] = (),
) -> RecurrentNet:
    """The net of a cell whose states look one step back. `sequences` maps inner names to outer values.

    `outputs` are, per state, names for its history and for its last value; "" or omitted: unused.
    Raises BadGraph.
    """
    ops = tuple(ops)
    if len(outputs) > 2 * len(states):
        raise BadGraph.one(
            "bad_link",
            f"{name}.outputs",
            f"{len(outputs)} outputs for {len(states)} states",
            "two per state",
            "name the history and the last value of each state",
        )
    links = [Link(inner, outer) for inner, outer in sequences.items()]
    aliases, buffers = [], {}
    for i, state in enumerate(states):
        buffer = f"{name}/{state.inner}_states"
        buffers[buffer] = state.initial
        links += [Link(state.inner, buffer, 0), Link(state.output, buffer, 1)]
        aliases += [Alias(buffer, out, k) for out, k in zip(outputs[2 * i : 2 * i + 2], (1, -1), strict=False) if out]
    return RecurrentNet(
        name,
        ops,
        tuple(dict.fromkeys(sequences.values())),
        buffers,
        tuple(links),
        tuple(aliases),
        timestep,
        tuple(recompute),
    ).checked()
