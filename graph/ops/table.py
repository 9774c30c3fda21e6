"""Records of the op table and the three questions asked of it: types, arrays, work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graph.errors import CannotExecute
from graph.ir import EMPTY, Effect, Graph, Node, TensorType

if TYPE_CHECKING:
    from graph.emit import Val

# Recompute class: what a memory planner may assume when the document says nothing.
CHEAP, HEAVY, NEVER = "cheap", "heavy", "never"


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an op, without its place in a graph."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorType | None, ...]  # None: absent, or its type is not known
    outputs: tuple[TensorType | None, ...]  # while inferring: what the document declares, None each where nothing
    wanted: tuple[bool, ...]  # per output: has a name
    constants: tuple[np.ndarray | None, ...] = ()  # inputs whose content is known, else None
    opset: int = 21
    stream: str = ""  # names the draws of a random op: a repeat with the same stream draws the same
    seed: int = 0

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def constant(self, position: int) -> np.ndarray | None:
        return self.constants[position] if position < len(self.constants) else None


@dataclass(frozen=True, slots=True)
class Work:
    """What one run does. Traffic None: inputs plus outputs."""

    flops: int = 0
    traffic_bytes: int | None = None
    workspace_bytes: int = 0


Kernel = Callable[..., "np.ndarray | tuple[np.ndarray | None, ...]"]  # kernel(call, *arrays or None)
Infer = Callable[[Call], "tuple[TensorType | None, ...]"]
WorkRule = Callable[[Call], Work]
Pairs = tuple[tuple[int, int], ...]
#: body(emit, node's attributes and types as a Call, *inputs) -> outputs, in standard ops only
Body = Callable[..., "tuple[Val | None, ...]"]


@dataclass(frozen=True, slots=True)
class Op:
    """One op. `reads` names what its gradient reads, for people and for the contract test."""

    name: str  # "Conv", "remat::ConvGradInput"
    kernel: Kernel | None = None  # None: `onnx.reference` runs it
    infer: Infer | None = None  # None: `onnx.shape_inference` types it
    work: WorkRule | None = None  # None: elementwise, one flop an output element
    effect: Effect = Effect.PURE
    idle: Callable[[Call], bool] | None = None  # says of a call that it has no effect after all
    views: Pairs = ()  # (output, input): the output is the input's storage under another type
    takeover: Pairs = ()  # (output, input): the output may take over the input's storage, first fit
    recompute: str = CHEAP  # CHEAP, HEAVY (mirroring leaves it alone) or NEVER
    shape_only: tuple[int, ...] = ()  # inputs of which only the type is read
    gradient_reads: tuple[str, ...] = ()  # of "i0", "o1": forward inputs and outputs its gradient reads
    body: Body | None = None  # the op in standard ops, for export and as a second opinion


OPS: dict[str, Op] = {}


def op(name: str, **fields: Any) -> Callable[[Kernel], Kernel]:
    """Register the decorated kernel as op `name`; `fields` are those of `Op`."""

    def register(kernel: Kernel) -> Kernel:
        _add(Op(name, kernel=kernel, **fields))
        return kernel

    return register


def standard(*names: str, **fields: Any) -> None:
    """Register standard ops that `onnx.reference` runs."""
    for name in names:
        _add(Op(name, **fields))


def body(name: str) -> Callable[[Body], Body]:
    """Attach the decorated body of standard ops to op `name`, which must be registered before."""

    def attach(function: Body) -> Body:
        import dataclasses

        OPS[name] = dataclasses.replace(OPS[name], body=function)
        return function

    return attach


def _add(record: Op) -> None:
    if record.name in OPS:
        raise ValueError(f"op {record.name} is registered twice")
    OPS[record.name] = record


def known(name: str) -> Op | None:
    """The record of an op, or None for an op nobody knows."""
    return OPS.get(name)


def call_of(graph: Graph, node: Node, seed: int = 0) -> Call:
    """The node as the op table sees it."""
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


def infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the call's outputs, None where nothing can be said. Raises ValueError on contradiction."""
    record = known(call.op)
    if record is not None and record.infer is not None:
        try:
            return record.infer(call)
        except (TypeError, LookupError, ArithmeticError, AttributeError) as error:  # attributes of another kind
            raise ValueError(f"its inputs and attributes are not those the op takes ({error!r:.200})") from None
    from graph.ops import standard_ops

    return standard_ops.infer(call)


def run(call: Call, *arrays: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
    """Arrays of the call's outputs. Raises CannotExecute for an op nobody knows."""
    record = known(call.op)
    if record is not None and record.kernel is not None:
        result = record.kernel(call, *arrays)
        return result if isinstance(result, tuple) else (result,)
    if "::" in call.op:
        raise CannotExecute(f"op {call.op} has no kernel; plan it without --execute")
    from graph.ops import standard_ops

    return standard_ops.run(call, arrays)


def work(call: Call) -> Work:
    """Flops, traffic and workspace of one run, every field filled in."""
    record = known(call.op)
    found = record.work(call) if record is not None and record.work is not None else Work(_elements(call.outputs))
    if found.traffic_bytes is not None:
        return found
    ignored = set(record.shape_only) if record is not None else set()
    inputs = [t for i, t in enumerate(call.inputs) if i not in ignored]
    return Work(found.flops, _bytes(inputs) + _bytes(call.outputs), found.workspace_bytes)


def _elements(types: Iterable[TensorType | None]) -> int:
    return sum(t.elements for t in types if t is not None)


def _bytes(types: Iterable[TensorType | None]) -> int:
    return sum(t.nbytes for t in types if t is not None)


def attributes_of(**given: Any) -> Mapping[str, Any]:
    """Attributes without those that are None."""
    return {k: v for k, v in given.items() if v is not None} or EMPTY
