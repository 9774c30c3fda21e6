"""If, Loop and Scan: their bodies run once, once a trip, once an element of a sequence.

A body's inputs are its formal ones, in order; what it captures is read outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graph.errors import CannotExecute
from graph.ir import Body, Graph, Node
from graph.ops.standard_ops import numpy_dtype

#: run(body's graph, arrays by value of it, trip) -> its outputs
RunBody = Callable[[Graph, Mapping[int, np.ndarray], int], list[np.ndarray]]
Read = Callable[[int], np.ndarray]


def run(node: Node, inputs: Sequence[np.ndarray | None], read: Read, run_body: RunBody) -> Sequence[np.ndarray | None]:
    """Outputs of a node with bodies. Raises CannotExecute for an op other than If, Loop and Scan."""
    if node.op == "If":
        return _if(node, inputs, read, run_body)
    if node.op == "Loop":
        return _loop(node, inputs, read, run_body)
    if node.op == "Scan":
        return _scan(node, inputs, read, run_body)
    raise CannotExecute(f"op {node.op} has bodies, and only If, Loop and Scan are executed")


def _given(body: Body, arrays: Sequence[np.ndarray], read: Read) -> dict[int, np.ndarray]:
    """Formal inputs and captures of a body by value id."""
    if len(arrays) != len(body.graph.inputs):
        raise CannotExecute(f"the body takes {len(body.graph.inputs)} inputs, but {len(arrays)} are bound to them")
    return {
        **dict(zip(body.graph.inputs, arrays, strict=True)),
        **{inner: read(outer) for inner, outer in body.captures},
    }


def _if(node: Node, inputs: Sequence[np.ndarray | None], read: Read, run_body: RunBody) -> list[np.ndarray]:
    condition = inputs[0]
    assert condition is not None
    body = node.bodies["then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"]
    return run_body(body.graph, _given(body, (), read), 0)


def _loop(node: Node, inputs: Sequence[np.ndarray | None], read: Read, run_body: RunBody) -> list[np.ndarray]:
    """Final states, then what each trip emitted, stacked."""
    body = node.bodies["body"]
    limit, condition = inputs[0], inputs[1]
    states = [state for state in inputs[2:] if state is not None]
    emitted: list[list[np.ndarray]] = [[] for _ in node.outputs[len(states) :]]
    going, trip = condition is None or bool(condition.reshape(-1)[0]), 0
    while going and (limit is None or trip < int(limit.reshape(-1)[0])):
        given = _given(body, [np.asarray(trip, np.int64), np.asarray(going), *states], read)
        again, *rest = run_body(body.graph, given, trip)
        states, each = rest[: len(states)], rest[len(states) :]
        for row, array in zip(emitted, each, strict=True):
            row.append(array)
        going, trip = bool(again.reshape(-1)[0]), trip + 1
    scans = [
        np.stack(row) if row else _no_trips(body.graph, v)
        for row, v in zip(emitted, body.graph.outputs[1 + len(states) :], strict=True)
    ]
    return [*states, *scans]


def _no_trips(graph: Graph, v: int) -> np.ndarray:
    """What a loop emits that never runs its body."""
    type = graph.values[v].type
    if type is None:
        raise CannotExecute(f"the loop runs no trip, and its output {graph.values[v].name} has no type")
    return np.zeros((0, *type.shape), numpy_dtype(type.dtype))


def _scan(node: Node, inputs: Sequence[np.ndarray | None], read: Read, run_body: RunBody) -> list[np.ndarray]:
    """Final states, then what each element emitted, stacked along its axis."""
    body, count = node.bodies["body"], int(node.attributes["num_scan_inputs"])
    arrays = [array for array in inputs if array is not None]
    states, scanned = arrays[: len(arrays) - count], arrays[len(arrays) - count :]
    outputs = len(node.outputs) - len(states)
    axes = node.attributes.get("scan_input_axes") or [0] * count
    backwards = node.attributes.get("scan_input_directions") or [0] * count
    out_axes = node.attributes.get("scan_output_axes") or [0] * outputs
    out_backwards = node.attributes.get("scan_output_directions") or [0] * outputs
    emitted: list[list[np.ndarray]] = [[] for _ in range(outputs)]
    trips = scanned[0].shape[axes[0]]
    if trips == 0:
        raise CannotExecute("a scan over nothing is not executed")
    for trip in range(trips):
        elements = [
            np.array(np.take(array, trips - 1 - trip if back else trip, axis=axis), order="C")
            for array, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        made = run_body(body.graph, _given(body, [*states, *elements], read), trip)
        states = made[: len(states)]
        for row, array in zip(emitted, made[len(states) :], strict=True):
            row.append(array)
    stacked = [
        np.stack(row[::-1] if back else row, axis=axis)
        for row, axis, back in zip(emitted, out_axes, out_backwards, strict=True)
    ]
    return [*states, *stacked]
