"""Correspondence of the inputs and outputs of a control-flow node and of its body.

        node                                            body
Loop    [count, condition, states...]             <->   [trip, condition, states...]
        [states..., stacks...]                    <->   [condition, states..., emitted...]
Scan    [states..., sequences...]                 <->   [states..., elements...]
        [states..., stacks...]                    <->   [states..., emitted...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.ir import ABSENT, Body, Graph, Node, Role, TensorType, Value

CALL = "remat::Call"
#: Op: the leading rows of a stack, those written by a loop that stopped early.
FIRST_ROWS = "remat::FirstRows"
#: Annotation of a node whose output may be shorter than its type, such as a NonZero: the length in its type.
MAX_LENGTH = "max_length"
#: Annotation of a Scan: SLICED if the runtime takes a row of a sequence when the body first reads it.
ROWS, SLICED = "rows", "sliced"
#: Values by id.
Values = Sequence[Value] | Mapping[int, Value]
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", CALL})
#: Forward nodes of checkpointed scans; see `checkpointed_scan.py`.
SNAPSHOT_SCAN, TAIL_SCAN = "remat::SnapshotScan", "remat::TailScan"
#: Ops that run their body once per element, in order.
SCANS = frozenset({"Scan", SNAPSHOT_SCAN, TAIL_SCAN})
#: (axis, direction) of a sequence or stack; direction 1: from the last row to the first.
Layout = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LoopInterface:
    """Inputs and outputs of a Loop or Scan by kind; states come before sequences and stacks."""

    node: Node
    lead: int  # number of inputs, and of formal inputs, before the states
    lead_out: int  # number of outputs of the body before the states
    states: int
    scanned: int  # number of sequences

    @classmethod
    def of(cls, node: Node) -> LoopInterface:
        """The interface of a Loop or Scan."""
        if node.op == "Loop":
            return cls(node, 2, 1, max(0, len(node.inputs) - 2), 0)
        scanned = min(max(0, int(node.attributes.get("num_scan_inputs", 1))), len(node.inputs))
        return cls(node, 0, 0, len(node.inputs) - scanned, scanned)

    @property
    def body(self) -> Body:
        return self.node.bodies["body"]

    @property
    def emitted(self) -> int:
        """Number of outputs of the body that are stacked."""
        return len(self.body.graph.outputs) - self.lead_out - self.states

    def state_in(self, i: int) -> int:
        """Value of the body: state `i` before an iteration."""
        return self.body.graph.inputs[self.lead + i]

    def state_out(self, i: int) -> int:
        """Value of the body: state `i` after an iteration."""
        return self.body.graph.outputs[self.lead_out + i]

    def element(self, k: int) -> int:
        """Value of the body: the element of sequence `k`."""
        return self.body.graph.inputs[self.lead + self.states + k]

    def sequence(self, k: int) -> int:
        """Outer value: sequence `k`."""
        return self.node.inputs[self.states + k]

    def emission(self, k: int) -> int:
        """Value of the body: the row of stack `k`."""
        return self.body.graph.outputs[self.lead_out + self.states + k]

    def input_layouts(self) -> list[Layout]:
        """Layout of each sequence."""
        return scan_layouts(self.node, "input", self.scanned)

    def output_layouts(self) -> list[Layout]:
        """Layout of each stack."""
        return scan_layouts(self.node, "output", self.emitted)


def scan_layouts(node: Node, side: str, count: int) -> list[Layout]:
    """Layouts of the `count` sequences ("input") or stacks ("output") of a scan."""
    directions = node.attributes.get(f"scan_{side}_directions") or [0] * count
    return list(zip(scan_axes(node, side, count), directions, strict=True))


def scan_axes(node: Node, side: str, count: int) -> list[int]:
    return list(node.attributes.get(f"scan_{side}_axes") or [0] * count)


@dataclass(frozen=True, slots=True)
class TripCount:
    """Upper bound on the trip count, None if unbounded; equal to the trip count if `exact`."""

    bound: int | None
    exact: bool


def may_be_shorter(node: Node) -> bool:
    """True for a node without bodies whose output may be shorter than its type by its own data."""
    return node.op == FIRST_ROWS or MAX_LENGTH in node.annotations


def trip_count(values: Values, node: Node) -> TripCount:
    """Trip count of a Loop or Scan from constants, shapes and `max_trips`."""
    if node.op in SCANS:
        trips = LoopInterface.of(node)
        for k, axis in enumerate(scan_axes(node, "input", trips.scanned)):
            type = values[trips.sequence(k)].type
            if type is not None and -len(type.shape) <= axis < len(type.shape):
                return TripCount(type.shape[axis], True)
        return TripCount(None, False)
    declared = node.annotations.get("max_trips", node.attributes.get("max_trips"))
    count = _content(values, node, 0)
    bounds = [max(0, int(number)) for number in (declared, count) if number is not None]
    return TripCount(min(bounds, default=None), count is not None and _always_goes_on(values, node))


def _content(values: Values, node: Node, position: int) -> Any:
    """The number in a constant input, None if unknown."""
    if position >= len(node.inputs) or node.inputs[position] == ABSENT:
        return None
    data = values[node.inputs[position]].data
    return None if data is None or data.size != 1 else data.reshape(-1)[0]


def _always_goes_on(values: Values, node: Node) -> bool:
    """True if the condition of a Loop is absent, or initially true and never changed."""
    given = len(node.inputs) > 1 and node.inputs[1] != ABSENT
    if given and not _content(values, node, 1):
        return False
    graph = node.bodies["body"].graph
    v, producer = graph.outputs[0], {v: inner for inner in graph.nodes for v in inner.writes}
    while v in producer and producer[v].op == "Identity":
        v = producer[v].inputs[0]
    data = graph.values[v].data
    passes = len(graph.inputs) > 1 and v == graph.inputs[1]
    return passes or (data is not None and data.size == 1 and bool(data.reshape(-1)[0]))


def with_else_branch(node: Node, types: Sequence[TensorType | None]) -> Node:
    """The If node with an else branch; a missing one returns the further inputs.

    `types` are those of the node's inputs.
    """
    if "else_branch" in node.bodies:
        return node
    captures: dict[int, int] = {}  # outside -> inside
    values: list[Value] = []
    outputs: list[int] = []
    for v, type in zip(node.inputs[1:], types[1:], strict=True):
        if v not in captures:
            captures[v] = len(values)
            values.append(Value(f"kept_{len(values)}", type, Role.INPUT))
        outputs.append(captures[v])
    kept = Graph("kept", tuple(values), (), tuple(outputs))
    body = Body(kept, tuple((inner, outer) for outer, inner in captures.items()))
    return replace(node, inputs=node.inputs[:1], bodies=MappingProxyType({**node.bodies, "else_branch": body}))
