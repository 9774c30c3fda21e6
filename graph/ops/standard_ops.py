"""Types and arrays of standard ONNX ops, by the `onnx` package itself; answers are cached by call.

A cached answer takes a few microseconds, so a document of 100,000 nodes in repeated layers asks
`onnx` once per distinct layer. An op the standard does not have is typed by its document.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graph.errors import CannotExecute
from graph.ir import DTYPE_BITS, EMPTY, TensorType
from graph.ops.table import Call

_IR_VERSION = 10
_MOST_SHAPE_ELEMENTS = 4096  # a longer constant is data, never a shape
_CACHED_CALLS = 100_000
#: Ops whose output shapes may follow from the content of float constants.
_SHAPED_BY_FLOATS = frozenset({"Resize", "Upsample", "Range", "OneHot", "HannWindow"})

_NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
} | {
    name: np.dtype(getattr(ml_dtypes, other))
    for name, other in {
        "bfloat16": "bfloat16", "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz",
        "float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu",
        "int4": "int4", "uint4": "uint4", "float4e2m1": "float4_e2m1fn", "int2": "int2", "uint2": "uint2",
    }.items()
}  # fmt: skip
_NAME_OF_NUMPY = {dtype: name for name, dtype in _NUMPY.items()}
_ONNX = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE} | {
    name: int(TensorProto.DataType.Value(name.upper())) for name in DTYPE_BITS if name not in ("float32", "float64")
}
_NAME_OF_ONNX = {number: name for name, number in _ONNX.items()}

#: (dtype or None, lengths or None); a length is None where it depends on data.
_Partial = tuple[str | None, tuple[int | None, ...] | None]
_types: dict[Any, tuple[Any, ...]] = {}  # per output a TensorType, None when absent, or a _Partial
_complete: set[Any] = set()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) dtype of an ONNX name such as "bfloat16". Raises ValueError."""
    try:
        return _NUMPY[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not known; use one of {', '.join(DTYPE_BITS)}") from None


def onnx_dtype(name: str) -> int:
    """The number of an ONNX name in `TensorProto.DataType`. Raises ValueError."""
    try:
        return _ONNX[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not known; use one of {', '.join(DTYPE_BITS)}") from None


def dtype_name(dtype: int | np.dtype[Any] | type) -> str:
    """The ONNX name of a `TensorProto.DataType` number or of a numpy dtype. Raises ValueError."""
    found = _NAME_OF_ONNX.get(dtype) if isinstance(dtype, int) else _NAME_OF_NUMPY.get(np.dtype(dtype))
    if found is None:
        shown = TensorProto.DataType.Name(dtype) if dtype in TensorProto.DataType.values() else dtype
        raise ValueError(f"element type {shown} is not supported; use one of {', '.join(DTYPE_BITS)}")
    return found


def type_of_array(array: np.ndarray) -> TensorType:
    """Element type and shape of a numpy array."""
    return TensorType(dtype_name(array.dtype), tuple(array.shape))


def infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the outputs: by the standard, by the declaration where data decides or the op is unknown.

    Raises ValueError with one line when inputs, attributes and declaration do not fit together.
    """
    key = key_of(call)
    found = _types.get(key)
    if found is None:
        found = _ask(call)
        if len(_types) >= _CACHED_CALLS:
            _types.clear()
            _complete.clear()
        if all(partial is None or isinstance(partial, TensorType) for partial in found):
            _complete.add(key)
        _types[key] = found
    if key in _complete:
        return found
    return tuple(
        part if isinstance(part, TensorType) else _with_declared(part, declared, i)
        for i, (part, declared) in enumerate(zip(found, call.outputs, strict=False))
    )


def run(call: Call, arrays: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray | None, ...]:
    """Arrays of the outputs by `onnx.reference`. Raises CannotExecute for an op it does not have."""
    present = tuple(array is not None for array in arrays)
    dtypes = tuple("" if array is None else dtype_name(array.dtype) for array in arrays)
    try:
        evaluator = _evaluator(call.op, call.opset, _Attributes(call.attributes), dtypes, call.wanted)
    except (NotImplementedError, defs.SchemaError, ValueError, TypeError, RuntimeError) as error:
        raise CannotExecute(f"op {call.op} has no kernel at opset {call.opset}: {_one_line(error)}") from None
    feeds = {f"i{i}": arrays[i] for i, there in enumerate(present) if there}
    results = iter(evaluator.run(None, feeds))
    return tuple(np.asarray(next(results)) if wanted else None for wanted in call.wanted)


def key_of(call: Call) -> Any:
    """What the types of a call depend on, hashable."""
    return (
        call.op, call.opset, freeze(call.attributes) if call.attributes else (), call.inputs, call.wanted,
        _shape_constants(call) if call.constants else (),
    )  # fmt: skip


def freeze(value: Any) -> Any:
    """A hashable stand-in for an attribute value or a mapping of them."""
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


def schema_of(op: str, opset: int) -> Any | None:
    """The standard's schema of an op at an opset, or None when it has none."""
    return _schema(op, opset)


def _shape_constants(call: Call) -> tuple[Any, ...]:
    """What the shapes may depend on: small integer vectors, and floats for a few ops."""
    if not any(c is not None for c in call.constants):
        return ()
    return tuple([
        (c.dtype.char, c.shape, c.tobytes()) if c is not None and _is_shape(call.op, c) else None
        for c in call.constants
    ])  # fmt: skip


def _is_shape(op: str, constant: np.ndarray) -> bool:
    small = constant.ndim <= 1 and constant.size <= _MOST_SHAPE_ELEMENTS
    return small and (constant.dtype.kind in "iu" or op in _SHAPED_BY_FLOATS)


@functools.lru_cache(maxsize=4096)
def _schema(op: str, opset: int) -> Any | None:
    domain, _, name = op.rpartition("::")
    try:
        if domain in ("", "ai.onnx"):
            return defs.get_schema(name, opset, "")
        return defs.get_schema(name, domain) if domain.startswith("ai.onnx") else None
    except defs.SchemaError:
        return None


def _ask(call: Call) -> tuple[Any, ...]:
    """What `onnx` says of a call: per output a TensorType, None when absent, or a partial type."""
    schema = _schema(call.op, call.opset)
    unknown: _Partial = (None, None)
    if schema is None:
        return tuple(unknown if wanted else None for wanted in call.wanted)
    _check_arity(call, schema)
    required = [
        i for i, formal in enumerate(schema.inputs[: len(call.inputs)])
        if formal.option == defs.OpSchema.FormalParameterOption.Single
    ]  # fmt: skip
    if any(call.inputs[i] is None for i in required):
        return tuple(unknown if wanted else None for wanted in call.wanted)
    _check_dtypes(call, schema)
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
    try:
        node = _node_proto(call.op, call.attributes, [t is not None for t in call.inputs], call.wanted, schema)
        onnx.checker.check_node(node, _checker_context(call.opset))
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports, ir_version=_IR_VERSION
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, TypeError) as error:
        raise ValueError(_one_line(error)) from None
    if schema.has_function and not schema.has_type_and_shape_inference_function:
        found = _by_function(node, types, imports)
    return tuple(_of_proto(found.get(f"o{i}")) if wanted else None for i, wanted in enumerate(call.wanted))


def _by_function(node: Any, types: Mapping[str, Any], imports: list[Any]) -> dict[str, Any]:
    """Output types of an op that the standard types by its body of other ops only."""
    inputs = [helper.make_value_info(name, type) for name, type in types.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "one", inputs, outputs)
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    return {info.name: info.type for info in onnx.shape_inference.infer_shapes(model).graph.output}


def _of_proto(proto: Any | None) -> TensorType | _Partial:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.elem_type:
        return (None, None)
    tensor = proto.tensor_type
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return (dtype, None)
    dims = tensor.shape.dim
    if all(d.HasField("dim_value") for d in dims):
        return TensorType(dtype, tuple(d.dim_value for d in dims))
    return (dtype, tuple(d.dim_value if d.HasField("dim_value") else None for d in dims))


def _with_declared(part: _Partial | None, declared: TensorType | None, position: int) -> TensorType | None:
    """The declared type once it agrees with what is known of it."""
    if part is None or declared is None:
        return None
    dtype, lengths = part
    same_dtype = dtype is None or dtype == declared.dtype
    same_rank = lengths is None or len(lengths) == len(declared.shape)
    if not (
        same_dtype and same_rank and all(a in (None, b) for a, b in zip(lengths or (), declared.shape, strict=False))
    ):
        shape = "" if lengths is None else "[" + ",".join("?" if n is None else str(n) for n in lengths) + "]"
        raise ValueError(f"output {position} is declared as {declared}, but the op makes {dtype or ''}{shape}")
    return declared


def _check_arity(call: Call, schema: Any) -> None:
    given, wanted = len(call.inputs), len(call.wanted)
    if not schema.min_input <= given <= schema.max_input:
        raise ValueError(f"has {given} inputs; the op takes {_between(schema.min_input, schema.max_input)}")
    if not schema.min_output <= wanted <= schema.max_output:
        raise ValueError(f"has {wanted} outputs; the op makes {_between(schema.min_output, schema.max_output)}")


def _between(low: int, high: int) -> str:
    if high > 1_000_000:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def _check_dtypes(call: Call, schema: Any) -> None:
    """Inputs have types the schema allows, and those under one type letter agree."""
    bound: dict[str, tuple[str, int]] = {}
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    for i, type in enumerate(call.inputs):
        if type is None:
            continue
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        letter = formal.type_str
        own = "float" if type.dtype == "float32" else "double" if type.dtype == "float64" else type.dtype
        if f"tensor({own})" not in allowed.get(letter, [letter]):
            raise ValueError(f"input {i} ({formal.name}) is {type}, a type the op does not take")
        if formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
            continue
        first = bound.setdefault(letter, (type.dtype, i))
        if letter in allowed and first[0] != type.dtype:
            raise ValueError(f"input {i} ({formal.name}) is {type.dtype} but input {first[1]} is {first[0]}")


def _node_proto(
    op: str, attributes: Mapping[str, Any], present: list[bool], wanted: tuple[bool, ...], schema: Any
) -> Any:
    domain, _, name = op.rpartition("::")
    node = helper.make_node(
        name,
        [f"i{i}" if there else "" for i, there in enumerate(present)],
        [f"o{i}" if want else "" for i, want in enumerate(wanted)],
        domain="" if domain == "ai.onnx" else domain,
    )
    for key, value in attributes.items():
        kind = schema.attributes[key].type if schema is not None and key in schema.attributes else None
        node.attribute.append(attribute_proto(key, value, kind))
    return node


def attribute_proto(key: str, value: Any, kind: Any | None) -> Any:
    """An attribute proto of the kind the schema asks for, whatever numbers a document wrote."""
    kinds = defs.OpSchema.AttrType
    if isinstance(value, np.ndarray) and kind not in (kinds.FLOATS, kinds.INTS):
        return helper.make_attribute(key, numpy_helper.from_array(value))
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bool):
        value = int(value)
    if kind == kinds.FLOAT and isinstance(value, int):
        value = float(value)
    elif kind == kinds.FLOATS and isinstance(value, list | tuple):
        value = [float(x) for x in value]
    elif kind in (kinds.INT, kinds.INTS, kinds.STRING) and isinstance(value, float):
        raise ValueError(f"attribute {key} is {value}, which is not of kind {kind.name.lower()}")
    number = None if kind is None else int(onnx.AttributeProto.AttributeType.Value(kind.name))
    try:
        return helper.make_attribute(key, list(value) if isinstance(value, tuple) else value, attr_type=number)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"attribute {key} is {value!r}: {_one_line(error)}") from None


@functools.lru_cache(maxsize=64)
def _checker_context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = _IR_VERSION
    context.opset_imports = {"": opset, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}
    return context


class _Attributes:
    """Attributes with a hash, as a key of the evaluator cache."""

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
    op: str, opset: int, attributes: _Attributes, dtypes: tuple[str, ...], wanted: tuple[bool, ...]
) -> ReferenceEvaluator:
    """An evaluator of a model of this one node; inputs are called i0, i1, ..., outputs o0, o1, ..."""
    schema = _schema(op, opset)
    if schema is None:
        raise ValueError("the standard does not have it")
    node = _node_proto(op, attributes.mapping, [bool(d) for d in dtypes], wanted, schema)
    inputs = [helper.make_tensor_value_info(f"i{i}", onnx_dtype(d), None) for i, d in enumerate(dtypes) if d]
    outputs = [helper.make_empty_tensor_value_info(f"o{i}") for i, want in enumerate(wanted) if want]
    graph = helper.make_graph([node], "one", inputs, outputs)
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, schema.since_version))
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION))


def _one_line(error: BaseException) -> str:
    """The first line of a message, without the prefixes `onnx` puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    for prefix in ("[ShapeInferenceError]", "[TypeInferenceError]"):
        first = first.replace(prefix, "").strip()
    return first.partition(" ==> ")[0].rstrip(".")
