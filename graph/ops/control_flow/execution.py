"""Execution of nodes with bodies: a branch or a call once, a loop once per iteration, a scan once per element.

A body gets its formal inputs in order; captures are read from the enclosing graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graph.errors import CannotExecute
from graph.ir import Body, Graph, Node
from graph.ops.control_flow.interface import CALL, LoopInterface
from graph.ops.control_flow.snapshot_scan import SNAPSHOT_GRAD, SNAPSHOT_SCAN, SnapshotRows, run_snapshot_backward
from graph.ops.control_flow.tail_scan import TAIL_GRAD, TAIL_SCAN, run_tail_backward, tail_stack_counts
from graph.ops.registry.onnx_fallback import numpy_dtype

#: run(body's graph, arrays by value of it, trip) -> its outputs
RunBody = Callable[[Graph, Mapping[int, np.ndarray], int], list[np.ndarray]]
ReadValue = Callable[[int], np.ndarray]

LAST_TRIP_FIRST = "last_trip_first"  # annotation of a node that runs another node's iterations in reverse order


def run(
    node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody
) -> Sequence[np.ndarray | None]:
    """Outputs of a node with bodies. Raises CannotExecute for an op that is not control flow."""
    if node.op == "If":
        return _if(node, inputs, read, run_body)
    if node.op == "Loop":
        return _loop(node, inputs, read, run_body)
    if node.op == "Scan":
        return _scan(node, inputs, read, run_body)
    if node.op == CALL:
        return _call(node, inputs, read, run_body)
    if node.op == SNAPSHOT_SCAN:
        rows = SnapshotRows(node)
        return [*_scan(node, inputs, read, run_body, rows.keep), *rows.stacks]
    if node.op == TAIL_SCAN:
        return _scan(node, inputs, read, run_body, tail=tail_stack_counts(node))
    if node.op in (SNAPSHOT_GRAD, TAIL_GRAD):
        return _scheduled(node, inputs, read, run_body)
    raise CannotExecute(f"op {node.op} has bodies; only If, Loop, Scan and {CALL} can be executed")


def _given(body: Body, arrays: Sequence[np.ndarray], read: ReadValue) -> dict[int, np.ndarray]:
    """Arrays of formal inputs and captures of a body by value id."""
    if len(arrays) != len(body.graph.inputs):
        raise CannotExecute(f"the body takes {len(body.graph.inputs)} inputs, but {len(arrays)} are passed")
    return {
        **dict(zip(body.graph.inputs, arrays, strict=True)),
        **{inner: read(outer) for inner, outer in body.captures},
    }


def _if(node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody) -> list[np.ndarray]:
    condition = _flag(inputs[0])
    if not condition and "else_branch" not in node.bodies:
        return [array for array in inputs[1:] if array is not None]
    body = node.bodies["then_branch" if condition else "else_branch"]
    return run_body(body.graph, _given(body, (), read), 0)


def _call(node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody) -> list[np.ndarray]:
    body = node.bodies["body"]
    return run_body(body.graph, _given(body, [array for array in inputs if array is not None], read), 0)


def _loop(node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody) -> list[np.ndarray]:
    """Final states, then the stacked emissions."""
    trips = LoopInterface.of(node)
    body, limit = trips.body, inputs[0]
    max_trips = node.annotations.get("max_trips", node.attributes.get("max_trips"))
    states = [state for state in inputs[2:] if state is not None]
    emitted: list[list[np.ndarray]] = [[] for _ in range(trips.emitted)]
    is_running, trip = inputs[1] is None or _flag(inputs[1]), 0
    while is_running and (limit is None or trip < int(limit.reshape(-1)[0])):
        if max_trips is not None and trip >= int(max_trips):
            raise CannotExecute(f"the loop runs more than its `max_trips` of {max_trips}; raise `max_trips`")
        given = _given(body, [np.asarray(trip, np.int64), np.asarray(is_running), *states], read)
        condition, *rest = run_body(body.graph, given, trip)
        states, emissions = rest[: len(states)], rest[len(states) :]
        for row, array in zip(emitted, emissions, strict=True):
            row.append(array)
        is_running, trip = _flag(condition), trip + 1
    return [*states, *(_stacked(body.graph, trips.emission(k), row, 0) for k, row in enumerate(emitted))]


def _flag(array: np.ndarray | None) -> bool:
    """The value of a condition. Raises CannotExecute unless it has one element."""
    if array is None or array.size != 1:
        raise CannotExecute(f"a condition of {'no' if array is None else array.size} elements; one is required")
    return bool(array.reshape(-1)[0])


def _stacked(graph: Graph, v: int, rows: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The rows stacked along a new axis; an empty array of that shape if there are none."""
    if rows:
        return np.stack(rows, axis=axis)
    type = graph.values[v].type
    if type is None:
        raise CannotExecute(f"the loop has no trips, and its stacked {graph.values[v].name} has no type; declare one")
    shape = list(type.shape)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 0)
    return np.zeros(shape, numpy_dtype(type.dtype))


def _scan(
    node: Node,
    inputs: Sequence[np.ndarray | None],
    read: ReadValue,
    run_body: RunBody,
    before: Callable[[int, Sequence[np.ndarray]], None] = lambda trip, states: None,
    tail: tuple[int, int] = (0, 0),
) -> list[np.ndarray]:
    """Final states, then the emissions stacked along their axes.

    `tail` = (k, n): the last k stacks keep only their last n rows. `before(trip, states)` runs before each iteration.
    The trip count is the shortest sequence's length: only bounded lengths may differ.
    """
    trips = LoopInterface.of(node)
    body, arrays = trips.body, [array for array in inputs if array is not None]
    states, scanned = arrays[: trips.states], arrays[trips.states :]
    axes, backwards = trips.input_axes(), trips.input_directions()
    count = min(array.shape[axis] for array, axis in zip(scanned, axes, strict=True))
    emitted: list[list[np.ndarray]] = [[] for _ in range(trips.emitted)]
    is_reversed = bool(node.annotations.get(LAST_TRIP_FIRST))
    for trip in range(count):
        elements = [
            np.array(np.take(array, count - 1 - trip if back else trip, axis=axis), order="C")
            for array, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        before(trip, states)
        given = _given(body, [*states, *elements], read)
        results = run_body(body.graph, given, count - 1 - trip if is_reversed else trip)
        states = results[: len(states)]
        for row, array in zip(emitted, results[len(states) :], strict=True):
            row.append(array)
    for row in emitted[trips.emitted - tail[0] :]:
        del row[: -tail[1]]
    stacked = [
        _stacked(body.graph, trips.emission(k), row[::-1] if back else row, axis)
        for k, (row, axis, back) in enumerate(zip(emitted, trips.output_axes(), trips.output_directions(), strict=True))
    ]
    return [*states, *stacked]


def _scheduled(node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody) -> list[np.ndarray]:
    """Outputs of a backward node: gradients after iteration 0, stacked emissions, and the final rows."""

    def run_one(body: Body, arrays: Sequence[np.ndarray], trip: int) -> list[np.ndarray]:
        return run_body(body.graph, _given(body, arrays, read), trip)

    run_backward = run_snapshot_backward if node.op == SNAPSHOT_GRAD else run_tail_backward
    gradients, emitted, rows = run_backward(node, [array for array in inputs if array is not None], run_one)
    graph, first = node.bodies["body"].graph, len(gradients)
    axes, directions = (node.attributes.get(f"scan_output_{name}", ()) for name in ("axes", "directions"))
    layouts = zip(axes, directions, strict=True)
    stacked = [
        _stacked(graph, graph.outputs[first + k], emitted[k][::-1] if back else emitted[k], axis)
        for k, (axis, back) in enumerate(layouts)
    ]
    return [*gradients, *stacked, *rows]
