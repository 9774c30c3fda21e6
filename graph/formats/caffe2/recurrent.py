"""RecurrentNetwork converted to a Scan over time.

link  x_t      <- input        at 0          x_t is step t of the input, with a leading dimension of 1
link  h_prev   <- h_states     at 0          state at the start of a step
link  h        <- h_states     at 1          state at the end of a step
alias h_all    =  h_states from 1            states of all steps
alias h_last   =  h_states from -1           state of the last step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graph.errors import BadGraph, quoted
from graph.formats.caffe2.nested_nets import NestedNet, captures_of, missing_net_error, nested_net
from graph.formats.document.schema import NodeRow
from graph.formats.shared.attributes import Attributes
from graph.ir import TensorType
from graph.recurrent.net import Alias, Link, RecurrentNet, StepOp

if TYPE_CHECKING:
    from graph.formats.caffe2.reader import NetReader


@dataclass(frozen=True, slots=True)
class RecurrentNetworkState:
    """A value carried from step to step."""

    initial: str  # outer value before the first step
    start: str  # name inside at the start of a step
    end: str  # name inside at the end of a step
    all: str  # outer name of the states of all steps; "" without one
    last: str  # outer name of the state of the last step; "" without one


def add_recurrent_network(
    net: NetReader, name: str, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    """Add the op to the net's program. Raises BadGraph, ValueError for malformed arguments."""
    step = nested_net(attributes, "step_net")
    if step is None:
        raise missing_net_error(name, "RecurrentNetwork", "step_net")
    recurrent = _recurrent_net(name, step, attributes, inputs)
    recurrent.checked()
    if any(window != 1 for window in Attributes(attributes).integers("link_window", default=())):
        raise _unsupported_link(name, "a link over several steps")
    _ScanBuilder(net, recurrent, outputs).add(step, inputs)


def _recurrent_net(name: str, step: Any, attributes: Mapping[str, Any], inputs: Sequence[str]) -> RecurrentNet:
    """The op as a recurrent net, to be checked by `RecurrentNet.checked`. Raises ValueError for malformed arguments."""
    a = Attributes(attributes)
    ops = tuple(StepOp(op.type, tuple(op.input), tuple(op.output)) for op in step.op)
    links = tuple(Link(*row) for row in _rows(attributes, "link_internal", "link_external", "link_offset"))
    aliases = tuple(Alias(*row) for row in _rows(attributes, "alias_src", "alias_dst", "alias_offset"))
    initial = [inputs[i] for i in a.integers("initial_recurrent_state_ids", default=())]
    buffers = dict(zip(_strings(attributes, "recurrent_states"), initial, strict=True))
    sequences = tuple(dict.fromkeys(link.outer for link in links if link.outer in set(inputs) - set(buffers)))
    recompute = tuple(_strings(attributes, "recompute_blobs_on_backward"))
    timestep = a.text("timestep", default="timestep")
    return RecurrentNet(name, ops, sequences, buffers, links, aliases, timestep, recompute)


class _ScanBuilder:
    """Scan of one recurrent net. Elements and emitted rows lack the leading dimension that values inside have."""

    def __init__(self, net: NetReader, recurrent: RecurrentNet, outputs: Sequence[str]):
        self.net, self.program, self.name = net, net.program, recurrent.name
        self.timestep, self.recompute = str(recurrent.timestep), frozenset(recurrent.recompute)
        self.states = [_state(recurrent, buffer, outputs) for buffer in recurrent.buffers]
        #: name inside -> outer sequence
        self.sequences = {link.inner: link.outer for link in recurrent.links if link.outer not in recurrent.buffers}
        self.sequence = self.program.types.get(next(iter(self.sequences.values())))  # type of the first one

    def add(self, step: Any, inputs: Sequence[str]) -> None:
        bound: dict[str, TensorType | None] = {v: self.program.types.get(v) for v in inputs}
        bound |= {inner: _step_type(self.program.types.get(outer)) for inner, outer in self.sequences.items()}
        initial = []
        for state in self.states:
            value, bound[state.start] = self._initial(state)
            initial.append(value)
        bound[self.timestep] = TensorType("int32", (1,))
        inside = NestedNet(self.net, step, bound)
        listed = {_op_of(row) for row in inside.program.nodes if self.recompute.intersection(row.outputs)}
        for row in inside.program.nodes:
            if _op_of(row) in listed:  # all rows of an op rerun with the one that writes its blob
                row.recompute = "prefer"
        counts_steps = self.timestep in inside.first_reads
        formal, results = self._interface(inside, counts_steps)
        own = {*self.sequences, *(state.start for state in self.states), self.timestep}
        captures = captures_of(self.net, self.name, inside, sorted(own))
        if counts_steps:
            initial.append(self.program.constant(f"{self.name}/zero", np.zeros(1, np.int32)))
        emitted = [state for state in self.states if state.all]
        row = NodeRow(
            self.name,
            "Scan",
            [*initial, *self.sequences.values()],
            [*(state.last for state in self.states), *[""] * counts_steps, *(state.all for state in emitted)],
            {"num_scan_inputs": len(self.sequences)},
            bodies={"body": inside.body(formal, captures, results)},
        )
        types = [inside.type_of(state.end) for state in self.states] + [None] * counts_steps
        self.program.add(row, types + [self._over_time(inside.type_of(state.end)) for state in emitted])

    def _interface(self, inside: NestedNet, counts_steps: bool) -> tuple[list[str], list[str]]:
        """(formal inputs, results) of the body; adds the reshapes between elements or rows and values inside."""
        program = inside.program
        formal = [state.start for state in self.states]
        results = [state.end for state in self.states]
        reshapes = []
        for inner in self.sequences:
            type = program.types.get(inner) if inner not in inside.written else None
            lengths = program.constant(f"{self.name}/{inner}/shape", _lengths(type))
            reshape = program.free_name(f"{self.name}/{inner}/step")
            reshapes.append(NodeRow(reshape, "Reshape", [f"{inner}/element", lengths], [inner]))
        if counts_steps:
            one, following = program.constant(f"{self.name}/one", np.ones(1, np.int32)), f"{self.timestep}/next"
            count = NodeRow(f"{self.name}/count", "Add", [self.timestep, one], [following])
            program.add(count, [TensorType("int32", (1,))])
            formal.append(self.timestep)
            results.append(following)
        for state in self.states:
            if state.all:
                type, emitted = inside.type_of(state.end), f"{state.end}/row"
                lengths = program.constant(f"{self.name}/{emitted}", _lengths(type)[1:])
                program.add(
                    NodeRow(f"{self.name}/{state.end}/emit", "Reshape", [state.end, lengths], [emitted]), [None]
                )
                results.append(emitted)
        program.nodes[:0] = reshapes
        return formal + [f"{inner}/element" for inner in self.sequences], results

    def _initial(self, state: RecurrentNetworkState) -> tuple[str, TensorType | None]:
        """Initial state as one step: rank 3 unchanged, rank 2 with a leading 1, rank 1 repeated over the batch."""
        program, start, sequence = self.program, state.initial, self.sequence
        type = program.types.get(start)
        if type is None or sequence is None or len(sequence.shape) < 2:
            return start, type
        if len(type.shape) >= 3:
            if type.shape[0] != 1:
                raise ValueError(f"initial state {quoted(start)} of {type.shape[0]} steps")
            return start, type
        is_matrix, prefix = len(type.shape) == 2, f"{self.name}/{state.start}"
        shape = (1, *type.shape) if is_matrix else (1, sequence.shape[1], *type.shape)
        lengths = program.constant(f"{prefix}/shape", np.array(shape, np.int64))
        result = TensorType(type.dtype, shape)
        op = "Reshape" if is_matrix else "Expand"
        program.add(NodeRow(f"{prefix}/begin", op, [start, lengths], [f"{prefix}/begin"]), [result])
        return f"{prefix}/begin", result

    def _over_time(self, type: TensorType | None) -> TensorType | None:
        """Type of the values of all steps."""
        if type is None or self.sequence is None or not self.sequence.shape:
            return None
        return TensorType(type.dtype, (self.sequence.shape[0], *type.shape[1:]))


def _state(recurrent: RecurrentNet, buffer: str, outputs: Sequence[str]) -> RecurrentNetworkState:
    """State stored in a buffer. Raises BadGraph for links and aliases without an equivalent in a Scan of one step."""
    links = [link for link in recurrent.links if link.outer == buffer]
    start = [link.inner for link in links if link.offset == 0]
    end = [link.inner for link in links if link.offset > 0]
    if len(start) != 1 or len(end) != 1:
        found = f"state {quoted(buffer)} without one link at offset 0 and one at a later offset"
        raise _unsupported_link(recurrent.name, found)
    names: dict[int, str] = {}  # offset -> outer name
    for alias in recurrent.aliases:
        if alias.buffer == buffer and alias.name in outputs:
            if alias.offset in names or alias.offset not in (1, -1):
                found = f"state {quoted(buffer)} shown twice, or at other offsets than 1 and -1"
                raise _unsupported_link(recurrent.name, found)
            names[alias.offset] = alias.name
    return RecurrentNetworkState(recurrent.buffers[buffer], start[0], end[0], names.get(1, ""), names.get(-1, ""))


def _unsupported_link(name: str, found: str) -> BadGraph:
    return BadGraph.one(
        "link_window",
        f"op {quoted(name)}",
        found,
        "states that look one step back, shown as a whole or by their end",
        "build the net with `graph.recurrent`, which has windows and offsets",
    )


def _step_type(sequence: TensorType | None) -> TensorType | None:
    """Type of one step of a sequence."""
    return TensorType(sequence.dtype, (1, *sequence.shape[1:])) if sequence is not None and sequence.shape else None


def _lengths(type: TensorType | None) -> np.ndarray:
    return np.array(() if type is None else type.shape, np.int64)


def _rows(attributes: Mapping[str, Any], *names: str) -> list[tuple[str, str, int]]:
    """Rows of parallel lists: two of names and one of offsets. Raises ValueError."""
    inner, outer = (_strings(attributes, name) for name in names[:2])
    return list(zip(inner, outer, Attributes(attributes).integers(names[2], default=()), strict=True))


def _op_of(row: NodeRow) -> str:
    """Id of the op that a row belongs to."""
    note = (row.annotations or {}).get("caffe2", {})
    return str(note.get("part_of") or note.get("id") or row.name)


def _strings(attributes: Mapping[str, Any], name: str) -> list[str]:
    """A list of names. Raises ValueError."""
    found = attributes.get(name, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError(f"{name} is no list of names")
    return found
