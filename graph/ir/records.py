"""The model: values, nodes and graphs as frozen records.

Ids are dense ints: a value's id is its place in `Graph.values`, a node's its place in
`Graph.nodes`. Nodes stand in a legal order. Each value is written by at most one node.

    x ──▶ fc1 ──▶ h ──▶ relu1 ──▶ y        values: x h y     nodes: fc1 relu1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from graph.ir.fast_init import quick_init

ABSENT = -1  # an input that is left out, or an output nobody wants
MAX_BYTES = 2**63 - 1

#: Bits of one element, by ONNX name. Sub-byte elements are packed.
DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "bool": 8,
        "int8": 8,
        "uint8": 8,
        "int16": 16,
        "uint16": 16,
        "int32": 32,
        "uint32": 32,
        "int64": 64,
        "uint64": 64,
        "float16": 16,
        "bfloat16": 16,
        "float32": 32,
        "float64": 64,
        "complex64": 64,
        "complex128": 128,
        "float8e4m3fn": 8,
        "float8e4m3fnuz": 8,
        "float8e5m2": 8,
        "float8e5m2fnuz": 8,
        "float8e8m0": 8,
        "int4": 4,
        "uint4": 4,
        "float4e2m1": 4,
        "int2": 2,
        "uint2": 2,
    }
)

FLOAT_DTYPES = frozenset(name for name in DTYPE_BITS if name.startswith(("float", "bfloat")))

EMPTY: Mapping[str, Any] = MappingProxyType({})


class Role(StrEnum):
    """Where a value comes from; all but ACTIVATION are resident."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    STATE = "state"
    ACTIVATION = "activation"


class Phase(IntEnum):
    """Part of a training step; under strict phases first runs come in this order."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


class Effect(StrEnum):
    """What running a node does beside writing its outputs."""

    PURE = "pure"
    RANDOM = "random"  # draws numbers; repeatable only with a `stream`
    ONCE = "once"  # changes something outside; never repeated
    COLLECTIVE = "collective"  # repeated only in the same order on all ranks
    UNSTABLE = "unstable"  # a repeat may differ in the last bits


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (an ONNX name in lower case) and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a packed tensor; a sub-byte tail is rounded up to a byte."""
        return (self.elements * DTYPE_BITS[self.dtype] + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@quick_init
@dataclass(frozen=True, slots=True)
class Value:
    """A tensor with a name. `type` is None when the document gives a size only."""

    name: str
    type: TensorType | None = None
    role: Role = Role.ACTIVATION
    bytes: int | None = None  # given size; replaces the type's when there is no type or it is fixed
    fixed_bytes: bool = False  # `bytes` holds whatever the type says
    data: np.ndarray | None = None  # content of a constant, where known
    annotations: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    stop_gradient: bool = False  # no gradient passes it, and it is not differentiated by unless named

    @property
    def nbytes(self) -> int:
        """Bytes of the value alone; a view's bytes belong to its storage."""
        if self.type is None or self.fixed_bytes:
            return self.bytes or 0
        return self.type.nbytes


@quick_init
@dataclass(frozen=True, slots=True)
class Cost:
    """What a document says a run takes; None where it says nothing."""

    seconds: float | None = None
    flops: int | None = None
    traffic_bytes: int | None = None  # bytes moved to and from memory
    workspace_bytes: int | None = None  # bytes held during the run beside inputs and outputs


UNKNOWN_COST = Cost()


@dataclass(frozen=True, slots=True)
class Body:
    """A nested graph of a node. `graph.inputs` are its formal inputs, captures excluded."""

    graph: Graph
    captures: tuple[tuple[int, int], ...] = ()  # (value in the body, value outside)


@quick_init
@dataclass(frozen=True, slots=True)
class Node:
    """One run of an op. Positions in `views`, `in_place` and `gradient_reads` count from 0."""

    name: str
    op: str  # an ONNX op ("MatMul") or "domain::Name"
    inputs: tuple[int, ...]  # value ids, ABSENT where left out
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    phase: Phase = Phase.FORWARD
    after: tuple[int, ...] = ()  # node ids that run before this one
    cost: Cost = UNKNOWN_COST
    effect: Effect | None = None  # None: what the op table says, else pure
    stream: str | None = None  # makes a random op repeatable
    views: tuple[tuple[int, int], ...] = ()  # (output, input): declared `alias_of`
    in_place: tuple[tuple[int, int], ...] = ()  # (output, input): output takes the input's bytes over
    recompute: str | None = None  # "allow" | "never" | "prefer"; None: allow
    heavy: bool | None = None  # None: what the op table says
    gradient_reads: tuple[int, ...] | None = None  # value ids; for ops without a rule
    bodies: Mapping[str, Body] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    @property
    def reads(self) -> tuple[int, ...]:
        """Value ids read by the node, captures included, absent ones left out, in order, once each."""
        inputs = self.inputs
        if self.bodies:
            inputs += tuple([outer for body in self.bodies.values() for _, outer in body.captures])
        once = dict.fromkeys(inputs)
        once.pop(ABSENT, None)
        return tuple(once)

    @property
    def writes(self) -> tuple[int, ...]:
        outputs = self.outputs
        return tuple([v for v in outputs if v != ABSENT]) if ABSENT in outputs else outputs


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole program. Build one with `graph.builder.builder.Builder`, which checks it."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()  # values of role INPUT, in the caller's order
    opset: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({"": 21}))
    order_is_given: bool = False  # first runs keep the document's order
    gradients: tuple[tuple[int, int], ...] = ()  # (parameter, its gradient), after differentiation
    annotations: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    gradient_rules: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # op -> declaration, as it was sent

    def value_named(self, name: str) -> int:
        """Id of the value called `name`; KeyError when there is none."""
        for v, value in enumerate(self.values):
            if value.name == name:
                return v
        raise KeyError(name)

    def types_of(self, ids: Sequence[int]) -> tuple[TensorType | None, ...]:
        return tuple(None if v == ABSENT else self.values[v].type for v in ids)


def producers(graph: Graph) -> list[int]:
    """Per value the node that writes it, or -1."""
    producer = [-1] * len(graph.values)
    for n, node in enumerate(graph.nodes):
        for v in node.writes:
            producer[v] = n
    return producer


def consumers(graph: Graph) -> list[list[int]]:
    """Per value the nodes that read it, in order, captures of bodies included."""
    readers: list[list[int]] = [[] for _ in graph.values]
    for n, node in enumerate(graph.nodes):
        for v in node.reads:
            readers[v].append(n)
    return readers


def walk(graph: Graph) -> Iterator[Graph]:
    """The graph and every nested one, outermost first."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from walk(body.graph)


@dataclass(frozen=True, slots=True)
class Val:
    """A value of the graph being built: its id and type."""

    id: int
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)
