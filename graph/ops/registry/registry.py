"""The records of the operator registry and the decorators that fill it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from graph.ir import Effect, Graph, Node, TensorType, Val

# Recompute class: default of a memory planner for nodes without `heavy` and `recompute`.
CHEAP, HEAVY, NEVER = "cheap", "heavy", "never"
#: Names that `find_op` remembers; those of unregistered ops come from documents, which may use any number.
MAX_CACHED_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Call:
    """One application of an op, independent of a graph."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorType | None, ...]  # None: absent, or of unknown type
    outputs: tuple[TensorType | None, ...]  # during inference: the declared types, None where undeclared
    used: tuple[bool, ...]  # per output: whether it has a reader
    constants: tuple[np.ndarray | None, ...] = ()  # per input its constant data, else None
    opset: int = 21
    stream: str = ""  # random stream: runs with the same stream draw the same numbers
    seed: int = 0

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def constant(self, position: int) -> np.ndarray | None:
        return self.constants[position] if position < len(self.constants) else None


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, bytes moved and workspace of one run. `traffic_bytes` None: bytes of inputs and outputs."""

    flops: int = 0
    traffic_bytes: int | None = None
    workspace_bytes: int = 0


Kernel = Callable[..., "np.ndarray | tuple[np.ndarray | None, ...]"]  # kernel(call, *arrays or None)
Infer = Callable[[Call], "tuple[TensorType | None, ...]"]
WorkRule = Callable[[Call], Work]
OutputInputPairs = tuple[tuple[int, int], ...]
#: body(emit, node's attributes and types as a Call, *inputs) -> outputs, in standard ops only
Decomposition = Callable[..., tuple[Val | None, ...]]


@dataclass(frozen=True, slots=True)
class Op:
    """Registered properties of one op. `gradient_reads` is for documentation and the contract test."""

    name: str  # "Conv", "remat::ConvGradInput"
    kernel: Kernel | None = None  # None: `onnx.reference` runs it
    infer: Infer | None = None  # None: `onnx.shape_inference` types it
    work: WorkRule | None = None  # None: elementwise, one flop per output element
    effect: Effect = Effect.PURE
    idle: Callable[[Call], bool] | None = None  # True if a call has no effect, e.g. Dropout in inference
    views: OutputInputPairs = ()  # (output, input): the output is a view of the input
    takeover: OutputInputPairs = ()  # (output, input): the output may overwrite the input; first fit
    recompute: str = CHEAP  # CHEAP, HEAVY (not recomputed by mirroring) or NEVER
    shape_only: tuple[int, ...] = ()  # inputs read by type only
    gradient_reads: tuple[str, ...] = ()  # of "i0", "o1": forward inputs and outputs its gradient reads
    body: Decomposition | None = None  # the op in standard ops, for export and cross-checks


OPS: dict[str, Op] = {}  # filled by the families; read through `find_op` and `all_ops`

#: Modules below `graph.ops` that register operators. A new family is one line here.
FAMILIES = (
    "composite.activations",
    "composite.attention",
    "composite.contrib_attention",
    "composite.normalization",
    "composite.products",
    "composite.rotary",
    "nn.activation",
    "nn.attention",
    "nn.convolution",
    "nn.convolution_gradient",
    "nn.deformable",
    "nn.grid_sample",
    "nn.loss",
    "nn.normalization",
    "nn.normalization_gradient",
    "nn.pooling",
    "nn.pooling_gradient",
    "nn.region_pooling",
    "nn.softmax",
    "numeric.batched_matmul",
    "numeric.elementwise",
    "numeric.elementwise_gradient",
    "numeric.matmul",
    "numeric.reduce",
    "numeric.signal",
    "rnn.lstm_gru_units",
    "rnn.rnn",
    "rnn.rnn_gradient",
    "tensor.bounded_rows",
    "tensor.copy",
    "tensor.gather",
    "tensor.gradient_markers",
    "tensor.resize",
    "tensor.resize_gradient",
    "tensor.shape",
    "tensor.quantize",
    "training.blockwise_optimizer",
    "training.optimizer",
    "training.random",
    "training.seeded_random",
    "training.training_state",
)


def op(name: str, **fields: Any) -> Callable[[Kernel], Kernel]:
    """Decorator: register the kernel of op `name`; `fields` are those of `Op`."""

    def register(kernel: Kernel) -> Kernel:
        _add(Op(name, kernel=kernel, **fields))
        return kernel

    return register


def register_standard(*names: str, **fields: Any) -> None:
    """Register standard ops executed by `onnx.reference`."""
    for name in names:
        _add(Op(name, **fields))


def body(name: str) -> Callable[[Decomposition], Decomposition]:
    """Decorator: attach a decomposition into standard ops to op `name`, which must be registered."""

    def attach(function: Decomposition) -> Decomposition:
        OPS[name] = replace(OPS[name], body=function)
        find_op.cache_clear()
        return function

    return attach


def _add(record: Op) -> None:
    if record.name in OPS:
        raise ValueError(f"op {record.name} is registered twice")
    OPS[record.name] = record
    find_op.cache_clear()


@cache
def _load_families() -> None:
    """Import every family once. Families import this module, so they are imported by name at the first look-up."""
    room = __name__.removesuffix(".registry.registry")
    for family in FAMILIES:
        import_module(f"{room}.{family}")


def all_ops() -> Mapping[str, Op]:
    """Every registered operator by name."""
    _load_families()
    return OPS


@lru_cache(MAX_CACHED_NAMES)
def find_op(name: str) -> Op | None:
    """The record of an operator, or None for an unregistered one."""
    _load_families()
    return OPS.get(name)


def make_call(graph: Graph, node: Node, seed: int = 0) -> Call:
    """The Call of a node: attributes, types and constants by position."""
    return Call(
        node.op,
        node.attributes,
        graph.types_of(node.inputs),
        graph.types_of(node.outputs),
        tuple(v >= 0 for v in node.outputs),
        tuple(graph.values[v].data if v >= 0 else None for v in node.inputs),
        graph.opset.get("", 21),
        node.stream or "",
        seed,
    )
