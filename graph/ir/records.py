"""The model: values, nodes and graphs as frozen records.

Ids are dense ints: a value's id is its index in `Graph.values`, a node's its index in
`Graph.nodes`. Nodes are in topological order. Each value is written by at most one node (SSA form).

    x ──▶ fc1 ──▶ h ──▶ relu1 ──▶ y        values: x h y     nodes: fc1 relu1

The records are structs of msgspec, since there are hundreds of thousands: copy one with `msgspec.structs.replace`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct

ABSENT = -1  # id of an omitted optional input or an unused output
OPERAND_OF = "operand_of"  # annotation of a value that no node reads: op of its file -> its name there as an operand
MAX_BYTES = 2**63 - 1

#: Bits per element, by ONNX name. Sub-byte elements are packed.
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
#: Annotation of a node that stays in inference mode in training: a normalization by running statistics, a Dropout off.
FROZEN = "frozen"
#: Annotation of a graph: warnings of the reader of its file.
IMPORT_WARNINGS = "import_warnings"
#: Ops that copy a value from device to host memory, and back.
OFFLOAD, FETCH = "remat::Offload", "remat::Fetch"
#: Element types in which training computes, but whose sums and counts need float32.
NARROW_FLOATS = ("float16", "bfloat16")

EMPTY: Mapping[str, Any] = MappingProxyType({})


class Role(StrEnum):
    """Origin of a value; all but ACTIVATION are resident in memory for the whole run."""

    INPUT = "input"
    PARAMETER = "parameter"
    CONSTANT = "constant"
    STATE = "state"
    ACTIVATION = "activation"


class Phase(IntEnum):
    """Part of a training step; with strict phases, first runs of nodes follow this order."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


class Effect(StrEnum):
    """Side effect or nondeterminism of a node."""

    PURE = "pure"
    RANDOM = "random"  # draws random numbers; repeatable only with a `stream`
    ONCE = "once"  # has a side effect; never repeated
    COLLECTIVE = "collective"  # communicates; repeated only in the same order on all ranks
    UNSTABLE = "unstable"  # nondeterministic: a repeat may differ in the last bits


class TensorType(Struct, frozen=True):
    """Element type (an ONNX name in lower case) and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed tensor; bits are rounded up to whole bytes."""
        return (self.elements * DTYPE_BITS[self.dtype] + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Value(Struct, frozen=True):
    """A named tensor. `type` is None when the document declares only its size in bytes."""

    name: str
    type: TensorType | None = None
    role: Role = Role.ACTIVATION
    bytes: int | None = None  # declared size; used when `type` is None or `fixed_bytes` is set
    fixed_bytes: bool = False  # `bytes` overrides the size of the type
    data: np.ndarray | None = None  # content of a constant, where known
    annotations: Mapping[str, Any] = EMPTY
    stop_gradient: bool = False  # gradients stop here; no gradient is computed for it unless named

    @property
    def nbytes(self) -> int:
        """Size in bytes, also for a view, whose bytes belong to its storage."""
        if self.type is None or self.fixed_bytes:
            return self.bytes or 0
        return self.type.nbytes


class Cost(Struct, frozen=True):
    """Declared cost of one run of a node; None where the document declares nothing."""

    seconds: float | None = None
    flops: int | None = None
    traffic_bytes: int | None = None  # bytes moved to and from memory
    workspace_bytes: int | None = None  # bytes allocated only during the run, inputs and outputs excluded


UNKNOWN_COST = Cost()


class Body(Struct, frozen=True):
    """Nested graph of a control-flow node. `graph.inputs` are its formal inputs, captures excluded."""

    graph: Graph
    captures: tuple[tuple[int, int], ...] = ()  # (value in the body, value outside)


class Node(Struct, frozen=True):
    """One application of an op. Positions in `views`, `in_place` and `takeover` count from 0."""

    name: str
    op: str  # an ONNX op ("MatMul") or "domain::Name"
    inputs: tuple[int, ...]  # value ids, ABSENT where left out
    outputs: tuple[int, ...]
    attributes: Mapping[str, Any] = EMPTY
    phase: Phase = Phase.FORWARD
    after: tuple[int, ...] = ()  # node ids that run before this one
    cost: Cost = UNKNOWN_COST
    effect: Effect | None = None  # None: as the op registry says, else pure
    stream: str | None = None  # random stream; runs with the same stream draw the same numbers
    views: tuple[tuple[int, int], ...] = ()  # (output, input): declared `alias_of`
    in_place: tuple[tuple[int, int], ...] = ()  # (output, input): the output overwrites the input's bytes
    recompute: str | None = None  # "allow" | "never" | "prefer"; None: allow
    heavy: bool | None = None  # None: as the op registry says
    gradient_reads: tuple[int, ...] | None = None  # value ids; for ops without a rule
    bodies: Mapping[str, Body] = EMPTY
    annotations: Mapping[str, Any] = EMPTY
    takeover: tuple[tuple[int, int], ...] = ()  # (output, input): the output may overwrite a dying input; first fit

    @property
    def reads(self) -> tuple[int, ...]:
        """Distinct value ids read by the node, in order, captures included, ABSENT excluded."""
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


class Graph(Struct, frozen=True):
    """A program in SSA form. Build one with `graph.builder.builder.Builder`, which validates it."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()  # values of role INPUT, in document order
    opset: Mapping[str, int] = MappingProxyType({"": 21})
    order_is_given: bool = False  # first runs of nodes keep the document's order
    gradients: tuple[tuple[int, int], ...] = ()  # (parameter, its gradient), after differentiation
    annotations: Mapping[str, Any] = EMPTY
    gradient_rules: Mapping[str, Any] = EMPTY  # op -> declaration, as in the document

    def value_named(self, name: str) -> int:
        """Id of the value called `name`. Raises KeyError if there is none."""
        for v, value in enumerate(self.values):
            if value.name == name:
                return v
        raise KeyError(name)

    def types_of(self, ids: Sequence[int]) -> tuple[TensorType | None, ...]:
        return tuple(None if v == ABSENT else self.values[v].type for v in ids)


def producers(graph: Graph) -> list[int]:
    """Per value the node that writes it, or -1."""
    producer = [-1] * (len(graph.values) + 1)  # the last entry is that of ABSENT
    for n, node in enumerate(graph.nodes):
        for v in node.outputs:
            producer[v] = n
    producer.pop()
    return producer


def consumers(graph: Graph) -> list[list[int]]:
    """Per value the nodes that read it, in order; captures count as reads."""
    readers: list[list[int]] = [[] for _ in graph.values]
    for n, node in enumerate(graph.nodes):
        for v in node.reads:
            readers[v].append(n)
    return readers


def walk(graph: Graph) -> Iterator[Graph]:
    """The graph and all nested graphs, in preorder."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from walk(body.graph)


class Val(Struct, frozen=True):
    """Typed handle of a value in a graph under construction."""

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
