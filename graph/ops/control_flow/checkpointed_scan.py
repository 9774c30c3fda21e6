"""Checkpointed scans: the forward node saves rows of some iterations only, the backward node recomputes the others.

    SnapshotScan      trip   0 1 2 3 4 5 6 7    states before trips 0, 4 and 6 go to rows 0, 1, 2 of a stack
    SnapshotScanGrad  trip   7 6 5 4 3 2 1 0    before each, its states are restored or recomputed
    TailScan          trip   0 1 2 3 4 5 6 7    values for the backward pass of trips 6 and 7 are stacked
    TailScanGrad      trip   7 6                body `tail` reads one row per trip
                                 5 4 3 2 1 0    body `body` recomputes them into row 0

    forward node            [states..., sequences...]           -> [states..., stacks..., rows...]
    backward node           [gradients..., rows..., sequences...]  -> [gradients..., stacks..., rows...]
      body (SnapshotScan)   [gradients..., states..., elements...] -> [gradients..., emitted...]
      advance               [states..., elements it reads...]      -> [states...]
      tail                  [gradients..., a row of each stack..., elements it reads...] -> [gradients..., emitted...]
      body (TailScan)       [gradients..., elements it reads...]   -> [gradients..., emitted..., values for row 0...]

The rows are working memory of the backward node, which returns them in place. It runs a schedule of actions, the
attribute `schedule` of a SnapshotScanGrad, three integers each:
    ADVANCE begin end     current states, before trip `begin`, become those before trip `end`
    STORE trip row        copy the current states to a row
    RESTORE trip row      make a row the current states
    BACKWARD trip trip    run the backward body of a trip, with its states current
The schedule of a TailScanGrad restores a row before each of the last `tail_trips` trips; all rows have been read when
`body` overwrites row 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graph.ir import Body, Node
from graph.ops.control_flow.interface import SNAPSHOT_SCAN, TAIL_SCAN

SNAPSHOT_GRAD, TAIL_GRAD = "remat::SnapshotScanGrad", "remat::TailScanGrad"
CHECKPOINTED_SCANS = frozenset({SNAPSHOT_SCAN, SNAPSHOT_GRAD, TAIL_SCAN, TAIL_GRAD})
ADVANCE, STORE, RESTORE, BACKWARD = range(4)
Action = tuple[int, int, int]  # kind, then two integers as above


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What a scan saves of some iterations only."""

    row_of: Mapping[int, int]  # trip -> row of the states before it
    rows: int  # rows of each stack of states
    states: tuple[int, ...]  # states with a stack
    tail: int  # number of last trips
    tail_stacks: int  # number of last stacks that have rows of the last trips only

    @classmethod
    def of(cls, node: Node) -> Checkpoints:
        """The checkpoints of a scan; none of a plain Scan."""
        given = node.attributes
        if node.op == SNAPSHOT_SCAN:
            row_of = {int(trip): row for row, trip in enumerate(given["snapshots"])}
            return cls(row_of, int(given["rows"]), tuple(map(int, given["snapshot_states"])), 0, 0)
        if node.op == TAIL_SCAN:
            return cls({}, 0, (), int(given["tail_trips"]), int(given["num_tail_stacks"]))
        return cls({}, 0, (), 0, 0)


@dataclass(frozen=True, slots=True)
class CheckpointedGrad:
    """Inputs of the backward node by kind, its bodies and its schedule."""

    node: Node
    gradients: int  # number of gradients carried from iteration to iteration
    rows: int  # number of stacks of rows
    scanned: int  # number of sequences

    @classmethod
    def of(cls, node: Node) -> CheckpointedGrad:
        name = "num_tail_inputs" if node.op == TAIL_GRAD else "num_row_inputs"
        scanned, rows = int(node.attributes["num_scan_inputs"]), int(node.attributes[name])
        return cls(node, len(node.inputs) - scanned - rows, rows, scanned)

    @property
    def tail(self) -> int:
        """Number of last trips, which run the body `tail`."""
        return int(self.node.attributes["tail_trips"]) if self.node.op == TAIL_GRAD else 0

    def trips(self) -> int:
        """Number of backward iterations."""
        if self.node.op == TAIL_GRAD:
            return int(self.node.attributes["trips"])
        return sum(kind == BACKWARD for kind, _, _ in self.schedule())

    def schedule(self) -> Iterator[Action]:
        if self.node.op != TAIL_GRAD:
            flat = iter(self.node.attributes["schedule"])
            yield from zip(flat, flat, flat, strict=True)
            return
        first = self.trips() - self.tail
        for trip in range(self.trips() - 1, -1, -1):
            if trip >= first:
                yield RESTORE, trip, trip - first
            yield BACKWARD, trip, trip

    def runs(self) -> dict[str, int]:
        """Number of runs of each body."""
        if self.node.op == TAIL_GRAD:
            return {"body": self.trips() - self.tail, "tail": self.tail}
        advanced = sum(end - begin for kind, begin, end in self.schedule() if kind == ADVANCE)
        return {"body": self.trips(), "advance": advanced}

    def key_at(self, trip: int, trips: int) -> str:
        """Name of the backward body of a trip, of `trips` trips."""
        return "tail" if trip >= trips - self.tail else "body"

    def body(self, key: str) -> Body:
        return self.node.bodies[key]

    def reads(self, key: str) -> list[int]:
        """Sequences whose elements a body reads."""
        all_of = range(self.scanned) if self.node.op == SNAPSHOT_GRAD and key == "body" else ()
        return list(self.node.attributes.get(f"{key}_scan_inputs", all_of))

    def row_reads(self, key: str) -> int:
        """Number of rows, one of each stack, that a body reads."""
        return 0 if self.node.op == TAIL_GRAD and key == "body" else self.rows

    @property
    def emitted(self) -> int:
        """Number of outputs of a backward body that are stacked."""
        return len(self.body("tail" if self.node.op == TAIL_GRAD else "body").graph.outputs) - self.gradients

    def refilled(self, key: str) -> list[int]:
        """Stacks whose row 0 a body writes, in the order of its last outputs."""
        return list(self.node.attributes.get("laid_rows", ())) if key == "body" else []

    def state_bytes(self) -> int:
        """Bytes of the states of one iteration, held twice while the next states are computed from them."""
        if "advance" not in self.node.bodies:
            return 0
        graph = self.body("advance").graph
        return sum(graph.values[v].nbytes for v in graph.outputs)
