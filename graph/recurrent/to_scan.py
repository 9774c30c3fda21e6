"""Conversion of a recurrent net to one Scan: states are carried, sequences scanned, references captured.

    positions of a state   lo ........ n │ n+1 ...       n positions come from the initial value, position t + n is
    carried into step t    t+lo .. t+n-1                 written in step t; lo is the smallest offset read

A window of w positions is w scanned inputs over the sequence, each starting one position later.
Initial values: [size] is repeated over the rows, [rows, size] is one position, [n, rows, size] is n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, quoted
from graph.formats.shared.op_table import OpTable
from graph.ir import EMPTY, Body, Graph, Phase, Role, TensorType, Val
from graph.recurrent.net import Link, RecurrentNet
from graph.recurrent.step_graph import StepBuilder

#: Annotation of the Scan, read by `tables.py`.
NET_ANNOTATION = "recurrent"


def add_recurrent(
    builder: Builder,
    net: RecurrentNet,
    given: Mapping[str, int],
    *,
    table: OpTable | None = None,
    fetched: Sequence[str] = (),
    types: Mapping[str, TensorType] = EMPTY,
    gradient_rules: Mapping[str, Any] = EMPTY,
) -> dict[str, int]:
    """Add the net to a graph; name -> value of every alias, and of each step name in `fetched`.

    `given` are the outer values by name. `table` translates the ops of the step; None: remat ops. An op unknown to it
    is planned by the `types` declared for the names it writes; `gradient_rules` of such ops (`caffe2::Name`) are added
    to those of the graph. Fetched values are stacked over time: [steps, ...]. Raises BadGraph.
    """
    builder.gradient_rules = {**builder.gradient_rules, **gradient_rules}
    return _Scanning(builder, net.checked(), given, table, fetched, types).run()


@dataclass(slots=True)
class _State:
    """One state of the net under construction."""

    buffer: str
    write: Link
    reads: tuple[Link, ...]
    initial: Val  # [n, ...]

    @property
    def initial_steps(self) -> int:
        return self.initial.shape[0]

    @property
    def low(self) -> int:
        """The oldest position a step reads, relative to the step."""
        return min((link.offset for link in self.reads), default=self.initial_steps)

    @property
    def carried(self) -> TensorType:
        return TensorType(self.initial.dtype, (self.initial_steps - self.low, *self.initial.shape[1:]))


class _Scanning:
    """State of the conversion of one net."""

    def __init__(
        self,
        builder: Builder,
        net: RecurrentNet,
        given: Mapping[str, int],
        table: OpTable | None,
        fetched: Sequence[str],
        types: Mapping[str, TensorType],
    ):
        self.outer, self.net, self.given, self.fetched = builder, net, given, tuple(fetched)
        self.emit = Emit(builder, net.name, Phase.FORWARD)
        self.body = Builder(f"{net.name}/step", builder.opset)
        self.inner = Emit(self.body, net.name, Phase.FORWARD)
        self.captures: list[tuple[int, int]] = []
        self.step = StepBuilder(self.body, table, self._outside, again=net.recompute, types=types)
        self.read_links = {link.inner: link for link in net.readers()}
        self.states: dict[str, _State] = {}
        self.stacked: list[_State] = []  # states whose history an alias exposes
        self.carry: dict[str, int] = {}  # buffer -> formal input of the body

    def run(self) -> dict[str, int]:
        net = self.net
        self.states = {buffer: self._state(buffer, initial) for buffer, initial in net.buffers.items()}
        carried = [state for state in self.states.values() if state.carried.shape[0]]
        for state in carried:
            self._add_input(state)
        sequences, elements = self._elements()
        for op in net.ops:
            self.step.add(op)
        outputs = [self._carried_on(state).id for state in carried]
        self.stacked = [state for state in self.states.values() if self._is_shown(state)]
        emitted = [self._written(state).id for state in self.stacked]
        emitted += [self._named(name) for name in self.fetched]
        inputs = [*(self.carry[state.buffer] for state in carried), *elements]
        graph = Graph(
            self.body.name,
            tuple(self.body.values),
            tuple(self.body.nodes),
            (*outputs, *emitted),
            tuple(inputs),
            self.body.opset,
        )
        return self._results(graph, carried, sequences)

    def _add_input(self, state: _State) -> None:
        """Add the formal input of a carried state; one that the step reads as it is gets the name in the step."""
        plain = state.carried.shape[0] == 1 and [link.window for link in state.reads] == [1]
        name = state.reads[0].inner if plain else f"{state.buffer}/carried"
        self.carry[state.buffer] = self.body.value(name, state.carried, Role.INPUT)
        if plain:
            self.step.bind(name, self.carry[state.buffer])

    def _is_shown(self, state: _State) -> bool:
        """True if an alias exposes more of the state than its last position."""
        last = -1 if state.carried.shape[0] == 1 else None
        return any(alias.offset != last for alias in self.net.aliases if alias.buffer == state.buffer)

    def _results(self, graph: Graph, carried: Sequence[_State], sequences: Sequence[Val]) -> dict[str, int]:
        """Add the Scan and the aliases of its results; name -> value."""
        net, steps = self.net, sequences[0].shape[0]
        types = [graph.values[v].type for v in graph.outputs]
        stacks = [TensorType(t.dtype, (steps, *t.shape)) for t in types[len(carried) :] if t is not None]
        starts = [self._oldest(state) for state in carried]
        names = [f"{state.buffer}/final" for state in carried]
        names += [f"{state.buffer}/written" for state in self.stacked]
        names += [f"{net.name}/all/{name}" for name in self.fetched]
        made = self.outer.node(
            "Scan",
            [v.id for v in (*starts, *sequences)],
            name=net.name,
            outputs=names,
            types=[*types[: len(carried)], *stacks],
            attributes={"num_scan_inputs": len(sequences)},
            bodies=MappingProxyType({"body": Body(graph, tuple(self.captures))}),
            annotations=MappingProxyType({NET_ANNOTATION: net_annotation(net)}),
        )
        vals = [self.emit.val(v) for v in made]
        finals = {state.buffer: val for state, val in zip(carried, vals, strict=False)}
        rows = [self.emit.reshape(x, (steps, *x.shape[2:])) for x in vals[len(carried) :]]
        history = {state.buffer: x for state, x in zip(self.stacked, rows, strict=False)}
        results = {}
        for alias in net.aliases:
            state = self.states[alias.buffer]
            shown = self._alias(state, history.get(alias.buffer), finals.get(alias.buffer), steps, alias.offset)
            results[alias.name] = self._called(shown, alias.name)
        for name, x in zip(self.fetched, rows[len(self.stacked) :], strict=True):
            results[name] = self._called(x, f"{net.name}/{name}")
        return results

    def _alias(self, state: _State, history: Val | None, final: Val | None, steps: int, offset: int) -> Val:
        """The buffer from `offset` on; a negative offset counts from the end."""
        n = state.initial_steps
        if not -n - steps <= offset <= n + steps:
            raise BadGraph.one(
                "bad_link",
                f"{self.net.name}.aliases",
                f"offset {offset} into {quoted(state.buffer)}",
                f"an offset within its {n + steps} positions",
                "correct the offset",
            )
        start = offset if offset >= 0 else n + steps + offset
        if final is not None and start == n + steps - 1 and final.shape[0] == 1:
            return final
        assert history is not None
        if start >= n:
            return history if start == n else slice_steps(self.emit, history, start - n, steps)
        return self.emit.op("Concat", slice_steps(self.emit, state.initial, start, n), history, axis=0)  # type: ignore[no-any-return]

    def _called(self, x: Val, name: str) -> int:
        """A value called `name` with the content of `x`."""
        return self.outer.node("Identity", [x.id], name=f"{self.net.name}/show/{name}", outputs=[name])[0]

    def _state(self, buffer: str, initial: str) -> _State:
        write = self.net.writers()[buffer]
        reads = tuple(link for link in self.net.readers() if link.outer == buffer)
        x = initial_value(self.net, self.emit, self.given, initial)
        state = _State(buffer, write, reads, x)
        ahead = max((link.offset + link.window for link in reads), default=0)
        if write.window != 1 or state.initial_steps != write.offset or ahead > write.offset + 1:
            raise BadGraph.one(
                "state_length",
                f"{self.net.name}.states",
                f"{quoted(buffer)} starts with {state.initial_steps} positions, is written at offset {write.offset} "
                f"with window {write.window}, and read up to offset {ahead - 1}",
                "as many initial positions as the offset of the written name, one written position per step, and no "
                "read of a later write",
                "correct the initial value or the links",
            )
        return state

    def _oldest(self, state: _State) -> Val:
        """The positions passed to the first step."""
        whole = state.initial_steps
        return state.initial if not state.low else slice_steps(self.emit, state.initial, state.low, whole)

    def _elements(self) -> tuple[list[Val], list[int]]:
        """(scanned outer values, formal inputs of the body): sequences by window position, then step numbers."""
        links = [link for link in self.net.readers() if link.outer in self.net.sequences]
        lengths = {name: self.emit.val(self._given(name)) for name in self.net.sequences}
        count = count_steps(self.net, self.emit, self.given)
        sequences, elements = [], []
        for link in links:
            whole, parts = lengths[link.outer], []
            for k in range(link.offset, link.offset + link.window):
                short = whole if whole.shape[0] == count else slice_steps(self.emit, whole, k, k + count)
                sequences.append(short)
                elements.append(self._element(link.inner, whole))
                parts.append(self._leading(elements[-1], link.inner if link.window == 1 else f"{link.inner}/{k}"))
            self.step.bind(link.inner, parts[0].id if len(parts) == 1 else self._joined(parts, link.inner).id)
        if not sequences:  # the sequence only determines the number of steps
            name = self.net.sequences[0]
            sequences.append(lengths[name])
            elements.append(self._element(name, lengths[name]))
        if self.net.timestep is not None:
            sequences.append(self.emit.constant(np.arange(count, dtype=np.int32)))
            elements.append(self._element(self.net.timestep, sequences[-1]))
            self.step.bind(self.net.timestep, self._leading(elements[-1], self.net.timestep).id)
        return sequences, elements

    def _element(self, name: str, whole: Val) -> int:
        return self.body.value(f"{name}/element", TensorType(whole.dtype, whole.shape[1:]), Role.INPUT)

    def _leading(self, v: int, name: str) -> Val:
        """A view of an element with a leading window axis of length 1."""
        shape = self.inner.ints((1, *self.inner.val(v).shape))
        return self.inner.val(
            self.body.node("Reshape", [v, shape.id], name=name, outputs=[name], attributes={"allowzero": 1})[0]
        )

    def _joined(self, parts: Sequence[Val], name: str) -> Val:
        value = self.body.node("Concat", [x.id for x in parts], name=name, outputs=[name], attributes={"axis": 0})
        return self.inner.val(value[0])

    def _outside(self, name: str) -> int:
        """Resolve a name that no op of the step has written: a window of a state, or a reference."""
        if name in self.read_links:
            return self._window(self.read_links[name])
        if self.net.timestep == name:
            raise BadGraph.one("bad_link", self.net.name, quoted(name), "a step counter", "link it once")
        value = self.outer.values[self._given(name)]
        inner = self.body.value(name, value.type, Role.INPUT)
        self.captures.append((inner, self._given(name)))
        return inner

    def _window(self, link: Link) -> int:
        """The window of a state seen through a link: carried positions, then the position written by this step."""
        state = self.states[link.outer]
        begin, end = link.offset - state.low, link.offset - state.low + link.window
        carried = state.carried.shape[0]
        old = None
        if begin < carried:
            x = self.inner.val(self.carry[link.outer])
            old = (
                x
                if (begin, min(end, carried)) == (0, carried)
                else slice_steps(self.inner, x, begin, min(end, carried))
            )
        if end <= carried:
            assert old is not None
            return old.id
        if state.write.inner not in self.step.current:
            raise BadGraph.one(
                "bad_link",
                f"{self.net.name}.links",
                f"{quoted(link.inner)} includes {quoted(state.write.inner)}, but is read before it is written",
                "ops in topological order",
                f"write {quoted(state.write.inner)} first",
            )
        new = self._position(state)
        return new.id if old is None else self._joined([old, new], link.inner).id

    def _written(self, state: _State) -> Val:
        """The value that the step writes into the state, after its last op."""
        if state.write.inner not in self.step.current:
            self.step.read(state.write.inner)
        return self._position(state)

    def _position(self, state: _State) -> Val:
        x = self.inner.val(self.step.current[state.write.inner])
        wanted = TensorType(state.initial.dtype, (1, *state.initial.shape[1:]))
        if x.type != wanted:
            if x.dtype != wanted.dtype or x.type.elements != wanted.elements:
                raise BadGraph.one(
                    "state_length",
                    f"{self.net.name}.states",
                    f"{quoted(state.write.inner)} is {x.type}",
                    f"{wanted}, as {quoted(state.buffer)} starts",
                    "correct the initial value or the step",
                )
            x = self.inner.reshape(x, wanted.shape)
        return x

    def _carried_on(self, state: _State) -> Val:
        """The state of the next step: the carried positions, shifted by one."""
        new = self._written(state)
        if state.carried.shape[0] == 1:
            return new
        old = slice_steps(self.inner, self.inner.val(self.carry[state.buffer]), 1, state.carried.shape[0])
        return self._joined([old, new], f"{state.buffer}/carried")

    def _named(self, name: str) -> int:
        if name not in self.step.current and name not in {*self.net.read_before_write(), *self.read_links}:
            raise BadGraph.one(
                "undefined_value",
                f"{self.net.name}.fetched",
                quoted(name),
                "a name of the step",
                "name one of the step",
            )
        return self.step.read(name)

    def _given(self, name: str) -> int:
        return given_value(self.net, self.given, name)


def given_value(net: RecurrentNet, given: Mapping[str, int], name: str) -> int:
    """The outer value called `name`. Raises BadGraph if there is none."""
    if name not in given:
        raise BadGraph.one(
            "undefined_value",
            net.name,
            quoted(name),
            "a value of the enclosing graph",
            "declare it as an input, or write it before the net",
        )
    return given[name]


def initial_value(net: RecurrentNet, emit: Emit, given: Mapping[str, int], name: str) -> Val:
    """The initial positions of a state, [n, rows, ...], from a value of any rank. Raises BadGraph."""
    x = emit.val(given_value(net, given, name))
    if x.rank == 1:
        sequence = emit.val(given_value(net, given, net.sequences[0])).type
        if len(sequence.shape) < 2:
            raise BadGraph.one(
                "state_length",
                f"{net.name}.states",
                f"{quoted(name)} of rank 1, and a sequence {sequence}",
                "a sequence [steps, rows, ...]",
                "give the initial value a rows axis",
            )
        return emit.expand(x, (1, sequence.shape[1], *x.shape))
    return emit.reshape(x, (1, *x.shape)) if x.rank == 2 else x


def count_steps(net: RecurrentNet, emit: Emit, given: Mapping[str, int]) -> int:
    """Number of steps that the sequences and their windows allow. Raises BadGraph if they differ or if it is 0."""
    wholes = {name: emit.val(given_value(net, given, name)) for name in net.sequences}
    ahead = dict.fromkeys(wholes, 0)
    for link in net.readers():
        if link.outer in ahead:
            ahead[link.outer] = max(ahead[link.outer], link.offset + link.window - 1)
    steps = {x.shape[0] - ahead[name] if x.rank else 0 for name, x in wholes.items()}
    if len(steps) > 1 or min(steps) < 1:
        lengths = ", ".join(f"{quoted(name)} {x.type}" for name, x in wholes.items())
        raise BadGraph.one(
            "sequence_length",
            f"{net.name}.sequences",
            lengths,
            "the same number of steps for all, at least 1",
            "cut or pad the sequences to one length",
        )
    return steps.pop()


def slice_steps(e: Emit, x: Val, begin: int, end: int) -> Val:
    """Positions begin .. end - 1 along axis 0."""
    return e.op("Slice", x, e.ints([begin]), e.ints([end]), e.ints([0]), e.ints([1]))  # type: ignore[no-any-return]


def net_annotation(net: RecurrentNet) -> Mapping[str, Any]:
    """The net as a JSON object, for the annotation of its node."""
    return {
        "sequences": list(net.sequences),
        "states": dict(net.buffers),
        "references": list(net.references),
        "links": [[link.inner, link.outer, link.offset, link.window] for link in net.links],
        "aliases": [[alias.buffer, alias.name, alias.offset] for alias in net.aliases],
        **({"timestep": net.timestep} if net.timestep is not None else {}),
    }
