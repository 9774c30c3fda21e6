"""Gradient of Loop and Scan: a Scan over the values saved by the iterations, last iteration first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from graph.autodiff.gradients.control_flow.backward_body import BackwardBody, build_backward_body, require_type
from graph.autodiff.gradients.control_flow.bounded_rows import add_padded_inputs, bounded_values, with_padded_rows
from graph.autodiff.gradients.control_flow.registry import BodyGradientContext, BodyGradients, body_gradient
from graph.autodiff.gradients.registry import NON_DIFFERENTIABLE
from graph.autodiff.gradients.spec import carries_gradient
from graph.errors import CannotDifferentiate
from graph.ir import ABSENT, Body, Graph, Role, TensorType
from graph.ops.control_flow.execution import LAST_TRIP_FIRST
from graph.ops.control_flow.interface import Layout, LoopInterface, trip_count


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A scanned input of the backward Scan."""

    formal: int  # value of the backward body
    outside: int  # value of the outer graph
    axis: int
    direction: int


@body_gradient("Scan", "Loop")
def loop_gradient(context: BodyGradientContext) -> BodyGradients:
    """Gradients from a Scan over the values saved by the iterations, last iteration first."""
    return _LoopGradient(context).gradients()


class _LoopGradient:
    """Gradient of one Loop or Scan. `carried`: states that depend on a needed value and that a gradient reaches."""

    def __init__(self, context: BodyGradientContext):
        self.context, self.trips = context, LoopInterface.of(context.node)
        node, needed, trips = context.node, context.needed, self.trips
        self.graph, self.outside = trips.body.graph, dict(trips.body.captures)
        self.count = trip_count(context.builder.values, node)
        given = [*context.incoming, *[None] * (trips.states + trips.emitted - len(context.incoming))]
        self.of_state, self.of_stack = given[: trips.states], given[trips.states :]
        self.stacks = [k for k, gradient in enumerate(self.of_stack) if gradient is not None]
        self.elements = [k for k in range(trips.scanned) if trips.sequence(k) in needed]
        self.captured = [inner for inner, outer in self.outside.items() if outer in needed]
        depending = fixed_point(
            {i for i in range(trips.states) if node.inputs[trips.lead + i] in needed},
            lambda states: self._depending(states, [*map(trips.element, self.elements), *self.captured]),
        )
        reached = fixed_point(
            {i for i, gradient in enumerate(self.of_state) if gradient is not None},
            lambda states: self._reached(states, map(trips.emission, self.stacks)),
        )
        self.carried = sorted(depending & reached)

    def _depending(self, states: set[int], others: Iterable[int]) -> set[int]:
        """States that, after an iteration, depend on `states` before it or on `others`."""
        trips = self.trips
        depends = differentiable_descendants(self.graph, [*map(trips.state_in, states), *others])
        return {i for i in range(trips.states) if depends[trips.state_out(i)]}

    def _reached(self, states: set[int], others: Iterable[int]) -> set[int]:
        """States on which, before an iteration, `states` after it or `others` depend."""
        trips = self.trips
        reaches = differentiable_ancestors(self.graph, [*map(trips.state_out, states), *others])
        return {i for i in range(trips.states) if reaches[trips.state_in(i)]}

    def gradients(self) -> BodyGradients:
        if not self.carried and not self.stacks:
            return []
        trips, context = self.trips, self.context
        wanted = [*map(trips.state_in, self.carried), *map(trips.element, self.elements), *self.captured]
        part = build_backward_body(
            "body",
            trips.body,
            [trips.lead_out + i for i in self.carried] + [self._position(k) for k in self.stacks],
            wanted,
            context.differentiate,
            available=[trips.element(k) for k in range(trips.scanned)],
        )
        emit = part.emit(f"grad/{context.node.name}")
        states = [part.heads[trips.lead_out + i] for i in self.carried]
        inputs = [self._initial(i) for i in self.carried]
        outputs = [self._result(part, trips.state_in(i)) for i in self.carried]
        owners = [context.node.inputs[trips.lead + i] for i in self.carried]
        for v in self.captured:
            if v in part.results:
                type = require_type(self.graph, v)
                sum_ = part.body.value(f"grad/{self.graph.values[v].name}/sum", type, Role.INPUT)
                states.append(sum_)
                outputs.append(emit.add(emit.val(sum_), emit.val(part.results[v])).id)
                inputs.append(context.emit.zeros(type).id)
                owners.append(self.outside[v])
        scanned = [k for k in self.elements if trips.element(k) in part.results]
        sequences = self._sequences(part)
        body = part.as_body(
            [*states, *(sequence.formal for sequence in sequences)],
            [*outputs, *(part.results[trips.element(k)] for k in scanned)],
            self.outside,
        )
        gradients = self._backward_node(body, inputs, sequences, owners, scanned)
        owners += [trips.sequence(k) for k in scanned]
        return [(v, gradient) for v, gradient in zip(owners, gradients, strict=True) if gradient != ABSENT]

    def _position(self, k: int) -> int:
        """Position of scan output `k` among the outputs of the body."""
        return self.trips.lead_out + self.trips.states + k

    def _initial(self, i: int) -> int:
        """The gradient of a state after the last iteration."""
        gradient = self.of_state[i]
        if gradient is None:
            return self.context.emit.zeros(require_type(self.graph, self.trips.state_in(i))).id
        return gradient

    def _result(self, part: BackwardBody, v: int) -> int:
        if v in part.results:
            return part.results[v]
        return part.emit(f"grad/{self.graph.values[v].name}").zeros(require_type(self.graph, v)).id

    def _sequences(self, part: BackwardBody) -> list[_Sequence]:
        """Scanned inputs of the backward Scan; adds outputs to the forward node for the values it has to save."""
        trips, node = self.trips, self.context.node
        stacked = self._stack_layouts()
        sequences = self._given_sequences(part)
        bounded = len(sequences)  # gradients of stacks may have more rows than iterations that ran
        emitted = {
            trips.emission(k): k
            for k in range(trips.emitted)
            if trips.states + k < len(node.outputs) and node.outputs[trips.states + k] != ABSENT
        }
        fresh: dict[int, int] = {}  # value of the forward body -> formal input that receives its rows
        for v, here in part.saved.items():
            if v in emitted:
                k = emitted[v]
                sequences.append(_Sequence(here, node.outputs[trips.states + k], *stacked[k]))
            else:
                fresh[v] = here
        if not (self.count.exact or len(sequences) > bounded or fresh):
            condition = self.graph.inputs[1]
            fresh[condition] = part.body.value("going", require_type(self.graph, condition), Role.INPUT)
        short = bounded_values(
            part.forward, [inner for inner, outer in self.outside.items() if outer in self.context.bounded]
        )
        for v in [v for v in fresh if v in short]:
            part.forward, full, lengths = with_padded_rows(part.forward, v)
            fresh[full], fresh[lengths] = add_padded_inputs(part.body, fresh.pop(v))
        stacks = self._stacked(part.forward, list(fresh))
        sequences += [_Sequence(here, stack, 0, 1) for here, stack in zip(fresh.values(), stacks, strict=True)]
        if not sequences:
            marks = TensorType("bool", (self._length(),))
            formal = part.body.value("trip", TensorType("bool", ()), Role.INPUT)
            sequences.append(_Sequence(formal, self.context.emit.zeros(marks).id, 0, 0))
        return sequences

    def _given_sequences(self, part: BackwardBody) -> list[_Sequence]:
        """Sequences that exist: those of the forward node, and gradients of its stacks."""
        trips, stacked = self.trips, self._stack_layouts()
        sequences = [
            _Sequence(part.formals[trips.element(k)], trips.sequence(k), axis, 1 - direction)
            for k, (axis, direction) in enumerate(trips.input_layouts())
            if trips.element(k) in part.formals
        ]
        for k in self.stacks:
            gradient, here = self.of_stack[k], part.heads[self._position(k)]
            if gradient is not None and part.reads(here):
                sequences.append(_Sequence(here, gradient, *stacked[k]))
        return sequences

    def _stack_layouts(self) -> list[Layout]:
        """Layout of each stack of the forward node as a sequence of the backward node."""
        return [(axis, 1 - direction) for axis, direction in self.trips.output_layouts()]

    def _length(self) -> int:
        """Rows of a stack."""
        if self.count.bound is None:
            code = "unknown_trips"
            raise CannotDifferentiate(
                "the number of iterations is unknown, so the saved values have no size",
                "annotate the node with `max_trips`, an upper bound on its iterations, or pass --max LOOP=N (ONNX)",
                code,
            )
        return self.count.bound

    def _stacked(self, forward: Graph, saved: Sequence[int]) -> list[int]:
        """Ids of new outputs of the forward node that stack these values of its body."""
        context, trips, node = self.context, self.trips, self.context.node
        stacks = []
        for v in saved:
            type = require_type(forward, v)
            stack = TensorType(type.dtype, (self._length(), *type.shape))
            stacks.append(context.builder.value(f"{node.name}/saved/{forward.values[v].name}", stack))
        attributes = dict(node.attributes)
        for key in ("scan_output_axes", "scan_output_directions"):
            if attributes.get(key):
                attributes[key] = [*attributes[key], *[0] * len(saved)]
        missing = trips.states + trips.emitted - len(node.outputs)
        body = Body(replace(forward, outputs=(*forward.outputs, *saved)), trips.body.captures)
        context.builder.nodes[context.n] = replace(
            node,
            outputs=(*node.outputs, *[ABSENT] * missing, *stacks),
            attributes=MappingProxyType(attributes),
            bodies=MappingProxyType({"body": body}),
        )
        return stacks

    def _backward_node(
        self,
        body: Body,
        inputs: Sequence[int],
        sequences: Sequence[_Sequence],
        owners: Sequence[int],
        scanned: Sequence[int],
    ) -> tuple[int, ...]:
        """Gradients of the owners of states, then of the sequences `scanned`; ABSENT where not needed."""
        trips, layouts = self.trips, self.trips.input_layouts()
        return self.context.add_backward(
            "Scan",
            [*inputs, *(sequence.outside for sequence in sequences)],
            [*owners, *(trips.sequence(k) for k in scanned)],
            {"body": body},
            {
                "num_scan_inputs": len(sequences),
                "scan_input_axes": [sequence.axis for sequence in sequences],
                "scan_input_directions": [sequence.direction for sequence in sequences],
                "scan_output_axes": [layouts[k][0] for k in scanned],
                "scan_output_directions": [1 - layouts[k][1] for k in scanned],
            },
            **{LAST_TRIP_FIRST: not self.context.node.annotations.get(LAST_TRIP_FIRST)},
        )


def fixed_point(start: set[int], more: Callable[[set[int]], set[int]]) -> set[int]:
    """The least superset of `start` that is closed under `more`."""
    closure = set(start)
    while not (added := more(closure)) <= closure:
        closure |= added
    return closure


def differentiable_descendants(graph: Graph, sources: Iterable[int]) -> bytearray:
    """Per value 1 where a gradient can flow from it back to one of the sources."""
    depends = bytearray(len(graph.values) + 1)
    for v in sources:
        depends[v] = 1
    for node in graph.nodes:
        if node.op not in NON_DIFFERENTIABLE and any(depends[v] for v in node.reads):
            for output in node.writes:
                depends[output] = carries_gradient(graph.values[output])
    return depends


def differentiable_ancestors(graph: Graph, targets: Iterable[int]) -> bytearray:
    """Per value 1 where a gradient of one of the targets reaches it."""
    reaches = bytearray(len(graph.values) + 1)
    for v in targets:
        reaches[v] = 1
    for node in reversed(graph.nodes):
        if node.op not in NON_DIFFERENTIABLE and any(reaches[v] for v in node.writes):
            for source in node.reads:
                reaches[source] = carries_gradient(graph.values[source])
    return reaches
