"""Type inference and execution of standard ONNX ops by the `onnx` package, cached by call.

A cache hit takes a few microseconds, so `onnx` runs once per distinct layer of a model with 100,000 nodes.
Ops outside the standard have the types that their document declares.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graph.errors import CannotExecute
from graph.ir import EMPTY, TensorType
from graph.ops.registry.dtypes import dtype_name, numpy_dtype, onnx_dtype, type_of_array
from graph.ops.registry.onnx_guards import MAX_RANK, check_ranks, reject_crashing_calls
from graph.ops.registry.onnx_schemas import attribute_proto, check_arity, check_dtypes, node_proto, one_line, schema_of
from graph.ops.registry.onnx_shapes import check_shapes
from graph.ops.registry.registry import Call

__all__ = [
    "attribute_proto",
    "call_key",
    "dtype_name",
    "freeze",
    "infer",
    "numpy_dtype",
    "onnx_dtype",
    "run",
    "schema_of",
    "type_of_array",
]

_IR_VERSION = 10
_MAX_SHAPE_ELEMENTS = 4096  # longer constants are data, not shapes
_CACHED_CALLS = 100_000
#: Ops whose output shapes depend on float constants.
_SHAPED_BY_FLOATS = frozenset({"Resize", "Upsample", "Range", "OneHot", "HannWindow"})

#: (dtype or None, lengths or None); a data-dependent length is None.
_Partial = tuple[str | None, tuple[int | None, ...] | None]
_types: dict[Any, tuple[Any, ...]] = {}  # per output a TensorType, None if absent, or a _Partial
_complete: set[Any] = set()


def infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the outputs: by the standard; as declared if data-dependent or if the op is unknown.

    Raises ValueError with one line if inputs, attributes and declaration contradict each other.
    """
    key = call_key(call)
    types = _types.get(key)
    if types is None:
        types = _infer_with_onnx(call)
        if len(_types) >= _CACHED_CALLS:
            _types.clear()
            _complete.clear()
        if all(partial is None or isinstance(partial, TensorType) for partial in types):
            _complete.add(key)
        _types[key] = types
    if key in _complete:
        return types
    return tuple(
        part if isinstance(part, TensorType) else _with_declared(part, declared, i)
        for i, (part, declared) in enumerate(zip(types, call.outputs, strict=False))
    )


def run(call: Call, arrays: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray | None, ...]:
    """Arrays of the outputs by `onnx.reference`. Raises CannotExecute for an op it does not implement."""
    present = tuple(array is not None for array in arrays)
    dtypes = tuple("" if array is None else dtype_name(array.dtype) for array in arrays)
    try:
        evaluator = _evaluator(call.op, call.opset, _Attributes(call.attributes), dtypes, call.used)
    except (NotImplementedError, defs.SchemaError, ValueError, TypeError, RuntimeError) as error:
        raise CannotExecute(f"op {call.op} has no kernel at opset {call.opset}: {one_line(error)}") from None
    feeds = {f"i{i}": arrays[i] for i, is_present in enumerate(present) if is_present}
    results = iter(evaluator.run(None, feeds))
    return tuple(np.asarray(next(results)) if is_used else None for is_used in call.used)


def call_key(call: Call) -> Any:
    """Hashable cache key: everything the output types of a call depend on."""
    return (
        call.op,
        call.opset,
        freeze(call.attributes) if call.attributes else (),
        call.inputs,
        call.used,
        _shape_constants(call) if call.constants else (),
    )


def freeze(value: Any) -> Any:
    """Hashable equivalent of an attribute value, or of a mapping of them."""
    kind = type(value)
    if kind is int or kind is str or kind is float:
        return value if kind is not float else (value,)
    if kind is list or kind is tuple:
        return tuple(value) if all(type(x) is int for x in value) else tuple(map(freeze, value))
    if isinstance(value, Mapping):
        return tuple([(k, freeze(v)) for k, v in value.items()]) if value else ()
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.dtype.name, value.shape, value.tobytes())
    return (kind.__name__, value)


def _shape_constants(call: Call) -> tuple[Any, ...]:
    """Constants that shapes may depend on: small integer vectors, and floats for a few ops."""
    if not any(c is not None for c in call.constants):
        return ()
    return tuple(
        [
            (c.dtype.char, c.shape, c.tobytes()) if c is not None and _is_shape(call.op, c) else None
            for c in call.constants
        ]
    )


def _is_shape(op: str, constant: np.ndarray) -> bool:
    small = constant.ndim <= 1 and constant.size <= _MAX_SHAPE_ELEMENTS
    return small and (constant.dtype.kind in "iu" or op in _SHAPED_BY_FLOATS)


def _infer_with_onnx(call: Call) -> tuple[Any, ...]:
    """Types inferred by `onnx`: per output a TensorType, None if absent, or a partial type."""
    schema = schema_of(call.op, call.opset)
    unknown: _Partial = (None, None)
    if schema is None:
        return tuple(unknown if is_used else None for is_used in call.used)
    check_arity(len(call.inputs), len(call.used), schema)
    required = [
        i
        for i, formal in enumerate(schema.inputs[: len(call.inputs)])
        if formal.option == defs.OpSchema.FormalParameterOption.Single
    ]
    try:
        present = [t is not None or i in required for i, t in enumerate(call.inputs)]
        node = node_proto(call.op, call.attributes, present, call.used, schema)
        onnx.checker.check_node(node, _checker_context(call.opset))
        check_ranks(call)
        check_shapes(call)
        if any(call.inputs[i] is None for i in required):
            return tuple(unknown if is_used else None for is_used in call.used)
        found = _inferred(call, node, schema)
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        TypeError,
        IndexError,
    ) as error:
        raise ValueError(one_line(error)) from None
    return tuple(_of_proto(i, found.get(f"o{i}")) if is_used else None for i, is_used in enumerate(call.used))


def _inferred(call: Call, node: Any, schema: Any) -> Mapping[str, Any]:
    """Output types as protos by name. Raises ValueError, or the exceptions of `onnx`."""
    check_dtypes(call.inputs, schema)
    reject_crashing_calls(call)
    types = {
        f"i{i}": helper.make_tensor_type_proto(onnx_dtype(t.dtype), t.shape)
        for i, t in enumerate(call.inputs)
        if t is not None
    }
    data = {
        f"i{i}": numpy_helper.from_array(c, f"i{i}")
        for i, c in enumerate(call.constants)
        if c is not None and _is_shape(call.op, c) and f"i{i}" in types
    }
    imports = [helper.make_opsetid("", call.opset)]
    if schema.has_function and not schema.has_type_and_shape_inference_function:
        return _by_function(node, types, imports)
    found: Mapping[str, Any] = onnx.shape_inference.infer_node_outputs(
        schema, node, types, data, opset_imports=imports, ir_version=_IR_VERSION
    )
    return found


def _by_function(node: Any, types: Mapping[str, Any], imports: list[Any]) -> dict[str, Any]:
    """Output types of an op that the standard defines only as a function of other ops."""
    inputs = [helper.make_value_info(name, type) for name, type in types.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    return {info.name: info.type for info in onnx.shape_inference.infer_shapes(model).graph.output}


def _of_proto(position: int, proto: Any | None) -> TensorType | _Partial:
    """Type of an output from its proto. Raises ValueError for negative lengths, the result of huge attributes."""
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.elem_type:
        return (None, None)
    tensor = proto.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return (dtype, None)
    lengths = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    if len(lengths) > MAX_RANK:
        raise ValueError(f"output {position} would have {len(lengths)} axes; tensors have at most {MAX_RANK}")
    known = tuple([length for length in lengths if length is not None])
    if any(length < 0 for length in known):
        shown = ",".join("?" if length is None else str(length) for length in lengths)
        raise ValueError(f"output {position} would be {dtype}[{shown}], of lengths below 0")
    return TensorType(dtype, known) if len(known) == len(lengths) else (dtype, lengths)


def _with_declared(part: _Partial | None, declared: TensorType | None, position: int) -> TensorType | None:
    """The declared type. Raises ValueError if it contradicts the partial type."""
    if part is None or declared is None:
        return None
    dtype, lengths = part
    same_dtype = dtype is None or dtype == declared.dtype
    same_rank = lengths is None or len(lengths) == len(declared.shape)
    if not (
        same_dtype and same_rank and all(a in (None, b) for a, b in zip(lengths or (), declared.shape, strict=False))
    ):
        shape = "" if lengths is None else "[" + ",".join("?" if n is None else str(n) for n in lengths) + "]"
        raise ValueError(f"output {position} is declared as {declared}, but the op returns {dtype or ''}{shape}")
    return declared


@functools.lru_cache(maxsize=64)
def _checker_context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = {"": opset, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}
    return context


class _Attributes:
    """Hashable attributes, as a key of the evaluator cache."""

    __slots__ = ("key", "mapping")

    def __init__(self, mapping: Mapping[str, Any]):
        self.mapping = mapping or EMPTY
        self.key = freeze(mapping)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attributes) and self.key == other.key


@functools.lru_cache(maxsize=4096)
def _evaluator(
    op: str, opset: int, attributes: _Attributes, dtypes: tuple[str, ...], used: tuple[bool, ...]
) -> ReferenceEvaluator:
    """An evaluator of a one-node model; inputs are named i0, i1, ..., outputs o0, o1, ..."""
    schema = schema_of(op, opset)
    if schema is None:
        raise ValueError("not an op of the standard")
    node = node_proto(op, attributes.mapping, [bool(d) for d in dtypes], used, schema)
    inputs = [helper.make_tensor_value_info(f"i{i}", onnx_dtype(d), None) for i, d in enumerate(dtypes) if d]
    outputs = [helper.make_empty_tensor_value_info(f"o{i}") for i, is_used in enumerate(used) if is_used]
    graph = helper.make_graph([node], "one", inputs, outputs)
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, schema.since_version))
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION))
