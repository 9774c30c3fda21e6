"""TailScan saves more in its last iterations than in the others; its backward node recomputes the difference.

    TailScan          trip   0 1 2 3 4 5 6 7        values for the backward pass of trips 6 and 7 are stacked
    TailScanGrad      trip   7 6                    body `tail` reads one row per trip
                                 5 4 3 2 1 0        body `body` recomputes them into row 0

    TailScan        [states..., sequences...]            -> [states..., stacks..., stacks of the last trips...]
    TailScanGrad    [gradients..., stacks of the last iterations..., sequences...]
                                                         -> [gradients..., stacks..., stacks of the last trips...]
      tail   [gradients..., a row of each such stack..., elements it reads...]  -> [gradients..., emitted...]
      body   [gradients..., elements it reads...]        -> [gradients..., emitted..., values for row 0...]

The stacks of the last iterations have `tail_trips` rows, which are read in place. In earlier iterations a TailScan
writes its emissions to row 0. The backward node has read all rows when `body` overwrites row 0, and returns
the stacks in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graph.ir import Body, Node
from graph.ops.control_flow.snapshot_scan import RunTrip

TAIL_SCAN, TAIL_GRAD = "remat::TailScan", "remat::TailScanGrad"


@dataclass(frozen=True, slots=True)
class TailGrad:
    """Inputs of a TailScanGrad by kind."""

    node: Node
    scanned: int
    rows: int  # number of stacks of the last iterations
    states: int  # number of gradients carried from iteration to iteration
    trips: int
    tail: int  # number of last iterations, which have rows

    @classmethod
    def of(cls, node: Node) -> TailGrad:
        scanned, rows, trips, tail = (
            int(node.attributes[name]) for name in ("num_scan_inputs", "num_tail_inputs", "trips", "tail_trips")
        )
        return cls(node, scanned, rows, len(node.inputs) - scanned - rows, trips, tail)

    @property
    def body(self) -> Body:
        """Backward iteration without saved rows."""
        return self.node.bodies["body"]

    @property
    def tail_body(self) -> Body:
        """Backward iteration with saved rows."""
        return self.node.bodies["tail"]

    @property
    def emitted(self) -> int:
        """Number of outputs of either body that are stacked."""
        return len(self.tail_body.graph.outputs) - self.states

    def reads(self, key: str) -> list[int]:
        """Sequences whose elements a body reads."""
        return list(self.node.attributes.get(f"{key}_scan_inputs", ()))

    @property
    def refilled_stacks(self) -> list[int]:
        """Stacks of the last iterations whose row 0 `body` writes, in the order of its outputs."""
        return list(self.node.attributes.get("laid_rows", ()))


def tail_stack_counts(node: Node) -> tuple[int, int]:
    """(number of stacks of the last iterations of a TailScan, number of these iterations)."""
    return int(node.attributes["num_tail_stacks"]), int(node.attributes["tail_trips"])


def run_tail_backward(
    node: Node, inputs: Sequence[np.ndarray], run: RunTrip
) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[np.ndarray]]:
    """(gradients, per emission its rows from the last iteration to the first, stacks of the last iterations)."""
    parts = TailGrad.of(node)
    gradients, rest = list(inputs[: parts.states]), inputs[parts.states :]
    rows = [np.array(stack) for stack in rest[: parts.rows]]
    sequences = rest[parts.rows :]
    axes, directions = node.attributes.get("scan_input_axes", ()), node.attributes.get("scan_input_directions", ())
    emitted: list[list[np.ndarray]] = [[] for _ in range(parts.emitted)]
    for trip in range(parts.trips - 1, -1, -1):
        place = trip - (parts.trips - parts.tail)
        key, body = ("tail", parts.tail_body) if place >= 0 else ("body", parts.body)
        elements = [
            np.array(np.take(sequences[k], trip if directions[k] else parts.trips - 1 - trip, axis=axes[k]), order="C")
            for k in parts.reads(key)
        ]
        results = run(body, [*gradients, *(stack[place] for stack in rows if place >= 0), *elements], trip)
        gradients = results[: parts.states]
        for row, array in zip(emitted, results[parts.states : parts.states + parts.emitted], strict=True):
            row.append(array)
        for k, array in zip(
            parts.refilled_stacks if place < 0 else (), results[parts.states + parts.emitted :], strict=True
        ):
            rows[k][0] = array
    return gradients, emitted, rows
