"""Types, arrays and work of one call: by the registry, else by the `onnx` package."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graph.errors import CannotExecute
from graph.ir import TensorType
from graph.ops.registry import onnx_fallback
from graph.ops.registry.onnx_schemas import check_attributes
from graph.ops.registry.onnx_shapes import check_shapes
from graph.ops.registry.registry import Call, Work, find_op


def infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the call's outputs, None where unknown. Raises ValueError on contradiction."""
    record = find_op(call.op)
    if record is not None and record.infer is not None:
        try:
            check_attributes(call.op, call.opset, call.attributes)
            check_shapes(call)
            return record.infer(call)
        except (TypeError, LookupError, ArithmeticError, AttributeError) as error:  # attributes of another type
            raise ValueError(f"the op does not accept these inputs and attributes ({error!r:.200})") from None
    return onnx_fallback.infer(call)


def run(call: Call, *arrays: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
    """Arrays of the call's outputs. Raises CannotExecute for an op without a kernel."""
    record = find_op(call.op)
    if record is not None and record.kernel is not None:
        result = record.kernel(call, *arrays)
        return result if isinstance(result, tuple) else (result,)
    if call.op.startswith("collective::"):
        ranks = call.attribute("ranks")
        raise CannotExecute(f"op {call.op} exchanges data between {ranks} processes; one process executes here")
    if "::" in call.op:
        raise CannotExecute(f"op {call.op} has no kernel; plan it without --execute")
    return onnx_fallback.run(call, arrays)


def work(call: Call) -> Work:
    """Flops, traffic and workspace of one run, every field filled in."""
    record = find_op(call.op)
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
