"""RecurrentNetwork as a Scan over time.

link  x_t      <- input        at 0          x_t shows step t of the input, with a leading dimension of one
link  h_prev   <- h_states     at 0          the state a step finds ...
link  h        <- h_states     at 1          ... and the one it leaves
alias h_all    =  h_states from 1            all steps
alias h_last   =  h_states from -1           the last one
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
from graph.formats.shared.program import Program
from graph.ir import TensorType
from graph.recurrent.net import Alias, Link, RecurrentNet, StepOp

if TYPE_CHECKING:
    from graph.formats.caffe2.reader import NetReader


@dataclass(frozen=True, slots=True)
class RecurrentNetworkState:
    """A value handed from step to step. `all` and `last` are names outside, "" where nobody asks for them."""

    initial: str
    entering: str
    leaving: str
    all: str
    last: str


@dataclass(frozen=True, slots=True)
class RecurrentNetworkArgs:
    """The lists of the op, sorted by what they mean."""

    sequences: Mapping[str, str]  # inner name -> outer
    states: Sequence[RecurrentNetworkState]
    timestep: str
    recompute: frozenset[str]


def add_recurrent_network(
    net: NetReader, name: str, attributes: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    """Add the op to the net's program. Raises ValueError."""
    step = nested_net(attributes, "step_net")
    if step is None:
        raise missing_net_error(name, "RecurrentNetwork", "step_net")
    to_recurrent_net(name, step, attributes, inputs).checked()
    parts = parse_recurrent_args(name, attributes, inputs, outputs)
    program = net.program
    first = program.types.get(next(iter(parts.sequences.values())))
    bound: dict[str, TensorType | None] = {v: program.types.get(v) for v in inputs}
    for inner, outer in parts.sequences.items():
        whole = program.types.get(outer)
        bound[inner] = None if whole is None or not whole.shape else TensorType(whole.dtype, (1, *whole.shape[1:]))
    begun = []
    for state in parts.states:
        value, bound[state.entering] = _begun(program, state.initial, first, f"{name}/{state.entering}")
        begun.append(value)
    bound[parts.timestep] = TensorType("int32", (1,))
    inside = NestedNet(net, step, bound)
    counts = parts.timestep in inside.first_reads
    for row in inside.program.nodes:
        if parts.recompute.intersection(row.outputs):
            row.recompute = "prefer"
    formal, results = _ends(inside, name, parts, counts)
    formal_names = {*parts.sequences, *(state.entering for state in parts.states), parts.timestep}
    captures = captures_of(net, name, inside, sorted(formal_names))
    if counts:
        begun.append(program.constant(f"{name}/zero", np.zeros(1, np.int32)))
    trips = None if first is None or not first.shape else first.shape[0]
    last = [state.last for state in parts.states] + [""] * counts
    stacked = [state for state in parts.states if state.all]
    row = NodeRow(
        name,
        "Scan",
        [*begun, *parts.sequences.values()],
        [*last, *(state.all for state in stacked)],
        {"num_scan_inputs": len(parts.sequences)},
        bodies={"body": inside.body(formal, captures, results)},
    )
    types = [inside.type_of(state.leaving) for state in parts.states] + [None] * counts
    types += [_over(inside.type_of(state.leaving), trips) for state in stacked]
    program.add(row, types)


def to_recurrent_net(name: str, step: Any, attributes: Mapping[str, Any], inputs: Sequence[str]) -> RecurrentNet:
    """The net as `graph.recurrent` has it, to be checked by its rules."""
    a = Attributes(attributes)
    ops = tuple(StepOp(op.type, tuple(op.input), tuple(op.output)) for op in step.op)
    links = tuple(Link(*row) for row in _table(attributes, "link_internal", "link_external", "link_offset"))
    aliases = tuple(Alias(*row) for row in _table(attributes, "alias_src", "alias_dst", "alias_offset"))
    initial = [inputs[i] for i in a.integers("initial_recurrent_state_ids", default=())]
    buffers = dict(zip(_words(attributes, "recurrent_states"), initial, strict=True))
    sequences = tuple(dict.fromkeys(link.outer for link in links if link.outer in set(inputs) - set(buffers)))
    recompute = tuple(_words(attributes, "recompute_blobs_on_backward"))
    timestep = a.text("timestep", default="timestep")
    return RecurrentNet(name, ops, sequences, buffers, links, aliases, timestep, recompute)


def parse_recurrent_args(
    name: str, attributes: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
) -> RecurrentNetworkArgs:
    """The op's lists by meaning. Raises BadGraph for links that no Scan of one step has, ValueError for other lists."""
    a = Attributes(attributes)
    links = _table(attributes, "link_internal", "link_external", "link_offset")
    aliases = _table(attributes, "alias_src", "alias_dst", "alias_offset")
    buffers = _words(attributes, "recurrent_states")
    initial = [inputs[i] for i in a.integers("initial_recurrent_state_ids", default=())]
    if any(window != 1 for window in a.integers("link_window", default=())):
        raise _unread(name, "a link over several steps")
    states = []
    for buffer, start in zip(buffers, initial, strict=True):
        entering = [inner for inner, outer, offset in links if outer == buffer and offset == 0]
        leaving = [inner for inner, outer, offset in links if outer == buffer and offset > 0]
        if len(entering) != 1 or len(leaving) != 1:
            raise _unread(name, f"state {quoted(buffer)} without one link at 0 and one behind")
        shown = [(dst, offset) for src, dst, offset in aliases if src == buffer and dst in outputs]
        every = [dst for dst, offset in shown if offset == 1]
        final = [dst for dst, offset in shown if offset == -1]
        if len(every) > 1 or len(final) > 1 or len(every) + len(final) < len(shown):
            raise _unread(name, f"state {quoted(buffer)} shown twice, or at other offsets than 1 and -1")
        states.append(RecurrentNetworkState(start, entering[0], leaving[0], "".join(every), "".join(final)))
    sequences = {inner: outer for inner, outer, _ in links if outer not in buffers}
    recompute = frozenset(_words(attributes, "recompute_blobs_on_backward"))
    return RecurrentNetworkArgs(sequences, states, a.text("timestep", default="timestep"), recompute)


def _unread(name: str, found: str) -> BadGraph:
    return BadGraph.one(
        "link_window",
        f"op {quoted(name)}",
        found,
        "states that look one step back, shown as a whole or by their end",
        "build the net with `graph.recurrent`, which has windows and offsets",
    )


def _ends(inside: NestedNet, name: str, parts: RecurrentNetworkArgs, counts: bool) -> tuple[list[str], list[str]]:
    """(formal inputs, results) of the body. Elements and rows have no leading dimension, what is inside has."""
    program, before = inside.program, []
    elements = []
    for inner in parts.sequences:
        type = program.types.get(inner) if inner not in inside.written else None
        lengths = program.constant(f"{name}/{inner}/shape", np.array(() if type is None else type.shape, np.int64))
        before.append(
            NodeRow(program.free_name(f"{name}/{inner}/step"), "Reshape", [f"{inner}/element", lengths], [inner])
        )
        elements.append(f"{inner}/element")
    formal = [state.entering for state in parts.states]
    results = [state.leaving for state in parts.states]
    if counts:
        one = program.constant(f"{name}/one", np.ones(1, np.int32))
        following = f"{parts.timestep}/next"
        program.add(NodeRow(f"{name}/count", "Add", [parts.timestep, one], [following]), [TensorType("int32", (1,))])
        formal.append(parts.timestep)
        results.append(following)
    for state in parts.states:
        if state.all:
            type = inside.type_of(state.leaving)
            lengths = program.constant(
                f"{name}/{state.leaving}/row", np.array(() if type is None else type.shape[1:], np.int64)
            )
            program.add(
                NodeRow(f"{name}/{state.leaving}/emit", "Reshape", [state.leaving, lengths], [f"{state.leaving}/row"]),
                [None],
            )
            results.append(f"{state.leaving}/row")
    program.nodes[:0] = before
    return formal + elements, results


def _begun(program: Program, start: str, sequence: TensorType | None, prefix: str) -> tuple[str, TensorType | None]:
    """An initial state as one step: rank 3 as it is, rank 2 with a leading one, rank 1 repeated over the batch."""
    type = program.types.get(start)
    if type is None or sequence is None or len(sequence.shape) < 2:
        return start, type
    if len(type.shape) >= 3:
        if type.shape[0] != 1:
            raise ValueError(f"initial state {quoted(start)} of {type.shape[0]} steps")
        return start, type
    shape = (1, *type.shape) if len(type.shape) == 2 else (1, sequence.shape[1], *type.shape)
    lengths = program.constant(f"{prefix}/shape", np.array(shape, np.int64))
    op = "Reshape" if len(type.shape) == 2 else "Expand"
    made = TensorType(type.dtype, shape)
    program.add(NodeRow(f"{prefix}/begin", op, [start, lengths], [f"{prefix}/begin"]), [made])
    return f"{prefix}/begin", made


def _over(type: TensorType | None, trips: int | None) -> TensorType | None:
    return None if type is None or trips is None else TensorType(type.dtype, (trips, *type.shape[1:]))


def _table(attributes: Mapping[str, Any], *names: str) -> list[tuple[str, str, int]]:
    """Rows of parallel lists: two of names and one of offsets. Raises ValueError."""
    inner, outer = (_words(attributes, name) for name in names[:2])
    return list(zip(inner, outer, Attributes(attributes).integers(names[2], default=()), strict=True))


def _words(attributes: Mapping[str, Any], name: str) -> list[str]:
    """A list of names. Raises ValueError."""
    found = attributes.get(name, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError(f"{name} is no list of names")
    return found
