"""Second opinions on one use of an op: onnx.reference, onnxruntime, the body, finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ir import Graph, Role
from graph.ops.registry import find_op, infer, onnx_fallback, run
from graph.ops.registry.onnx_fallback import numpy_dtype, onnx_dtype, type_of_array
from graph.ops.registry.registry import Call
from tests.graph.evaluate import evaluate

Array = np.ndarray
Arrays = Sequence[Array | None]
NONE: Mapping[str, Any] = {}


def call_for(
    op: str, arrays: Arrays, attributes: Mapping[str, Any] = NONE, outputs: int | Sequence[bool] = 1, opset: int = 21
) -> Call:
    """The use of `op` on these arrays, outputs typed by the table."""
    wanted = (True,) * outputs if isinstance(outputs, int) else tuple(outputs)
    types = tuple(None if a is None else type_of_array(a) for a in arrays)
    open_call = Call(op, attributes, types, (None,) * len(wanted), wanted, tuple(arrays), opset)
    return Call(op, attributes, types, infer(open_call), wanted, tuple(arrays), opset)


def ours(
    op: str, arrays: Arrays, attributes: Mapping[str, Any] = NONE, outputs: int | Sequence[bool] = 1, opset: int = 21
) -> tuple[Any, ...]:
    """What our kernel makes, once it has the types the table says, left its inputs alone and made its own memory."""
    call = call_for(op, arrays, attributes, outputs, opset)
    guarded = [a if a is None else a.view() for a in arrays]
    for array in guarded:
        if array is not None:
            array.flags.writeable = False
    found = run(call, *guarded)
    assert not any(np.may_share_memory(a, b) for a in found for b in arrays if a is not None and b is not None)
    for type, array, wanted in zip(call.outputs, found, call.used, strict=False):
        if wanted:
            assert type is not None and array is not None
            assert (array.shape, array.dtype) == (type.shape, numpy_dtype(type.dtype))
    return found


def reference(op: str, arrays: Arrays, attributes: Mapping[str, Any] = NONE, outputs: int = 1, opset: int = 21) -> Any:
    """What `onnx.reference` makes."""
    return onnx_fallback.run(call_for(op, arrays, attributes, outputs, opset), tuple(arrays))


def runtime(op: str, arrays: Arrays, attributes: Mapping[str, Any] = NONE, outputs: int = 1, opset: int = 21) -> Any:
    """What onnxruntime makes."""
    given = {f"i{i}": a for i, a in enumerate(arrays) if a is not None}
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, [f"o{i}" for i in range(outputs)], **attributes)
    inputs = [
        helper.make_tensor_value_info(name, onnx_dtype(type_of_array(a).dtype), a.shape) for name, a in given.items()
    ]
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info(n) for n in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, given)


def body_graph(
    op: str, arrays: Sequence[Array], attributes: Mapping[str, Any] = NONE, outputs: int = 1
) -> tuple[Graph, dict[str, Array]]:
    """The op's body as a graph of standard ops, and its inputs by name."""
    call, builder, record = call_for(op, arrays, attributes, outputs), Builder("body"), find_op(op)
    assert record is not None and record.body is not None
    emit = Emit(builder, "body")
    given = {f"x{i}": a for i, a in enumerate(arrays)}
    vals = [emit.val(builder.value(name, type_of_array(a), Role.INPUT)) for name, a in given.items()]
    graph = builder.build([v.id for v in record.body(emit, call, *vals) if v is not None])
    assert all("::" not in node.op for node in graph.nodes)
    return graph, given


def body_of(op: str, arrays: Sequence[Array], attributes: Mapping[str, Any] = NONE, outputs: int = 1) -> list[Array]:
    """What the op's body of standard ops makes, node after node."""
    graph, given = body_graph(op, arrays, attributes, outputs)
    found = evaluate(graph, given)
    return [found[graph.values[v].name] for v in graph.outputs]


def slopes(function: Callable[..., Array], arrays: Sequence[Array], place: int, step: float = 1e-6) -> Array:
    """Central differences of the number `function(*arrays)` in each entry of arrays[place]."""
    gradient = np.zeros_like(arrays[place])
    for at in np.ndindex(arrays[place].shape):
        ends = []
        for sign in (1, -1):
            moved = [a.copy() for a in arrays]
            moved[place][at] += sign * step
            ends.append(float(function(*moved)))
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def same(found: Array, expected: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(
        found.astype(np.float64), np.asarray(expected, np.float64), rtol=tolerance, atol=tolerance
    )


def moved(array: Array) -> Array:
    """The same content at an odd address, in another memory order."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = (-room.ctypes.data) % 64 + array.itemsize
    there = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape[::-1]).T
    there[...] = array
    return there


def real(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Array:
    """Numbers between -1 and 1 without ties."""
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(dtype)
