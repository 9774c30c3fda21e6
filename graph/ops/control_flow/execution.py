"""Execution of nodes with bodies: a branch or a call once, a loop once per iteration, a scan once per element.

A body gets its formal inputs in order; captures are read from the enclosing graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graph.errors import CannotExecute
from graph.ir import Body, Graph, Node
from graph.ops.control_flow.checkpointed_scan import (
    ADVANCE,
    CHECKPOINTED_SCANS,
    RESTORE,
    STORE,
    CheckpointedGrad,
    Checkpoints,
)
from graph.ops.control_flow.interface import CALL, SCANS, Layout, LoopInterface, scan_layouts
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
    if node.op in SCANS:
        return _scan(node, inputs, read, run_body)
    if node.op == CALL:
        return _call(node, inputs, read, run_body)
    if node.op in CHECKPOINTED_SCANS:
        return _checkpointed_grad(node, inputs, read, run_body)
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


def _scan(node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody) -> list[np.ndarray]:
    """Final states, the emissions stacked along their axes, then the rows of states that a SnapshotScan saves.

    The trip count is the shortest sequence's length: only bounded lengths may differ.
    """
    trips, saves = LoopInterface.of(node), Checkpoints.of(node)
    body, arrays = trips.body, [array for array in inputs if array is not None]
    states, scanned = arrays[: trips.states], arrays[trips.states :]
    layouts = trips.input_layouts()
    count = min(array.shape[axis] for array, (axis, _) in zip(scanned, layouts, strict=True))
    emitted: list[list[np.ndarray]] = [[] for _ in range(trips.emitted)]
    rows = [np.zeros((saves.rows, *states[i].shape), states[i].dtype) for i in saves.states]
    is_reversed = bool(node.annotations.get(LAST_TRIP_FIRST))
    for trip in range(count):
        if trip in saves.row_of:
            for stack, i in zip(rows, saves.states, strict=True):
                stack[saves.row_of[trip]] = states[i]
        elements = [_element(array, layout, trip, count) for array, layout in zip(scanned, layouts, strict=True)]
        given = _given(body, [*states, *elements], read)
        results = run_body(body.graph, given, count - 1 - trip if is_reversed else trip)
        states = results[: len(states)]
        for row, array in zip(emitted, results[len(states) :], strict=True):
            row.append(array)
    for row in emitted[trips.emitted - saves.tail_stacks :]:
        del row[: -saves.tail]
    stacked = [
        _stacked(body.graph, trips.emission(k), row[::-1] if back else row, axis)
        for k, (row, (axis, back)) in enumerate(zip(emitted, trips.output_layouts(), strict=True))
    ]
    return [*states, *stacked, *rows]


def _element(sequence: np.ndarray, layout: Layout, trip: int, trips: int) -> np.ndarray:
    """The contiguous element of a sequence in an iteration, of `trips` iterations."""
    axis, is_reversed = layout
    return np.array(np.take(sequence, trips - 1 - trip if is_reversed else trip, axis=axis), order="C")


def _checkpointed_grad(
    node: Node, inputs: Sequence[np.ndarray | None], read: ReadValue, run_body: RunBody
) -> list[np.ndarray]:
    """Gradients after iteration 0, the emissions stacked along their axes, then the final rows."""
    scan, arrays = CheckpointedGrad.of(node), [array for array in inputs if array is not None]
    gradients, sequences = arrays[: scan.gradients], arrays[scan.gradients + scan.rows :]
    rows = [np.array(stack) for stack in arrays[scan.gradients : scan.gradients + scan.rows]]
    layouts, count = scan_layouts(node, "input", scan.scanned), scan.trips()
    emitted: list[list[np.ndarray]] = [[] for _ in range(scan.emitted)]  # from the last iteration to the first
    current: list[np.ndarray] = []

    def run_trip(key: str, carried: Sequence[np.ndarray], trip: int) -> list[np.ndarray]:
        # a backward node counts iterations from the last: direction 1 reads the first row at trip 0
        elements = [_element(sequences[k], (layouts[k][0], 1 - layouts[k][1]), trip, count) for k in scan.reads(key)]
        return run_body(scan.body(key).graph, _given(scan.body(key), [*carried, *elements], read), trip)

    for kind, begin, end in scan.schedule():
        if kind == STORE:
            for stack, state in zip(rows, current, strict=True):
                stack[end] = state
        elif kind == RESTORE:
            current = [np.array(stack[end]) for stack in rows]
        elif kind == ADVANCE:
            for trip in range(begin, end):
                current = run_trip("advance", current, trip)
        else:
            key = scan.key_at(begin, count)
            results = run_trip(key, [*gradients, *current[: scan.row_reads(key)]], begin)
            gradients, refills = results[: scan.gradients], results[scan.gradients + scan.emitted :]
            for row, array in zip(emitted, results[scan.gradients :], strict=False):
                row.append(array)
            for k, array in zip(scan.refilled(key), refills, strict=True):
                rows[k][0] = array
    graph = scan.body("body").graph
    stacked = [
        _stacked(graph, graph.outputs[scan.gradients + k], row[::-1] if back else row, axis)
        for k, (row, (axis, back)) in enumerate(zip(emitted, scan_layouts(node, "output", scan.emitted), strict=True))
    ]
    return [*gradients, *stacked, *rows]
