"""SnapshotScan saves its states before some iterations only; its backward node recomputes the others.

    SnapshotScan      trip   0 1 2 3 4 5 6 7        states before trips 0, 4 and 6 go to rows 0, 1, 2 of a stack
    SnapshotScanGrad  trip   7 6 5 4 3 2 1 0        before each, its states are restored or recomputed

    SnapshotScan        [states..., sequences...]           -> [states..., stacks..., rows of states...]
    SnapshotScanGrad    [gradients..., rows of states..., sequences...]  -> [gradients..., stacks..., rows of states...]
      body     [gradients..., states..., elements...]       -> [gradients..., emitted...]
      advance  [states..., elements it reads...]            -> [states...]

The rows are working memory of the backward node, which returns them in place. Its attribute `schedule`
has three integers per action:
    ADVANCE begin end     current states, before trip `begin`, become those before trip `end`
    STORE trip row        copy the current states to a row
    RESTORE trip row      make a row the current states
    BACKWARD trip trip    run the body for a trip, with its states current
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graph.ir import Body, Node

SNAPSHOT_SCAN, SNAPSHOT_GRAD = "remat::SnapshotScan", "remat::SnapshotScanGrad"
ADVANCE, STORE, RESTORE, BACKWARD = range(4)


@dataclass(frozen=True, slots=True)
class SnapshotGrad:
    """Inputs of a SnapshotScanGrad by kind."""

    node: Node
    scanned: int
    rows: int  # number of stacks of rows of states, one per state
    gradients: int

    @classmethod
    def of(cls, node: Node) -> SnapshotGrad:
        scanned, rows = int(node.attributes["num_scan_inputs"]), int(node.attributes["num_row_inputs"])
        return cls(node, scanned, rows, len(node.inputs) - scanned - rows)

    @property
    def body(self) -> Body:
        return self.node.bodies["body"]

    @property
    def advance(self) -> Body:
        return self.node.bodies["advance"]

    @property
    def advance_reads(self) -> list[int]:
        """Sequences whose elements the body `advance` reads."""
        return list(self.node.attributes.get("advance_scan_inputs", ()))

    def schedule(self) -> Iterator[tuple[int, int, int]]:
        flat = iter(self.node.attributes["schedule"])
        return zip(flat, flat, flat, strict=True)

    def recomputed_trips(self) -> int:
        """Number of forward iterations that are recomputed."""
        return sum(end - begin for kind, begin, end in self.schedule() if kind == ADVANCE)

    def trips(self) -> int:
        """Number of backward iterations."""
        return sum(kind == BACKWARD for kind, _, _ in self.schedule())

    def state_bytes(self) -> int:
        """Bytes of the states of one iteration, held twice while the next states are computed from them."""
        body = self.advance.graph
        return sum(body.values[v].nbytes for v in body.outputs)


#: run(body, arrays of its formal inputs, trip) -> its outputs
RunTrip = Callable[[Body, Sequence[np.ndarray], int], list[np.ndarray]]


class SnapshotRows:
    """Rows of states, filled during a Scan."""

    def __init__(self, node: Node):
        self.trip_row = {int(trip): row for row, trip in enumerate(node.attributes["snapshots"])}
        self.count = int(node.attributes["rows"])
        self.states = [int(i) for i in node.attributes["snapshot_states"]]
        self.stacks: list[np.ndarray] = []

    def keep(self, trip: int, states: Sequence[np.ndarray]) -> None:
        """Store the states before `trip` if the node saves them."""
        if not self.stacks:
            self.stacks = [np.zeros((self.count, *states[i].shape), states[i].dtype) for i in self.states]
        if trip in self.trip_row:
            for stack, i in zip(self.stacks, self.states, strict=True):
                stack[self.trip_row[trip]] = states[i]


def run_snapshot_backward(
    node: Node, inputs: Sequence[np.ndarray], run: RunTrip
) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[np.ndarray]]:
    """(gradients, per emission its rows from the last iteration to the first, rows of states)."""
    parts = SnapshotGrad.of(node)
    gradients, rest = list(inputs[: parts.gradients]), inputs[parts.gradients :]
    rows = [np.array(stack) for stack in rest[: parts.rows]]
    sequences = rest[parts.rows :]
    axes, directions = node.attributes.get("scan_input_axes", ()), node.attributes.get("scan_input_directions", ())
    count = parts.trips()
    emitted: list[list[np.ndarray]] = [[] for _ in parts.body.graph.outputs[parts.gradients :]]
    current: list[np.ndarray] = []

    def element(k: int, trip: int) -> np.ndarray:
        place = trip if directions[k] else count - 1 - trip
        return np.array(np.take(sequences[k], place, axis=axes[k]), order="C")

    for kind, begin, end in parts.schedule():
        if kind == STORE:
            for stack, state in zip(rows, current, strict=True):
                stack[end] = state
        elif kind == RESTORE:
            current = [np.array(stack[end]) for stack in rows]
        elif kind == ADVANCE:
            for trip in range(begin, end):
                current = run(parts.advance, [*current, *(element(k, trip) for k in parts.advance_reads)], trip)
        else:
            elements = [element(k, begin) for k in range(parts.scanned)]
            results = run(parts.body, [*gradients, *current, *elements], begin)
            gradients = results[: parts.gradients]
            for row, array in zip(emitted, results[parts.gradients :], strict=True):
                row.append(array)
    return gradients, emitted, rows
