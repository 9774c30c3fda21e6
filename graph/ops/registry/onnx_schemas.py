"""ONNX schemas: look-up, validation of calls, and conversion of nodes to protos."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from graph.ir import TensorType

_MAX_CHARS = 240
#: Python types of attributes of one element, by kind in the schema.
_SCALARS: dict[str, tuple[type, ...]] = {"INT": (int, np.integer), "FLOAT": (int, float, np.number), "STRING": (str,)}


@functools.lru_cache(maxsize=4096)
def schema_of(op: str, opset: int) -> Any | None:
    """The schema of an op at an opset, or None for an op outside the standard."""
    domain, _, name = op.rpartition("::")
    try:
        if domain in ("", "ai.onnx"):
            return defs.get_schema(name, opset, "")
        return defs.get_schema(name, domain) if domain.startswith("ai.onnx") else None
    except defs.SchemaError:
        return None


def check_arity(inputs: int, outputs: int, schema: Any) -> None:
    """Raise ValueError if there are too many or too few inputs or outputs."""
    if not schema.min_input <= inputs <= schema.max_input:
        raise ValueError(f"has {inputs} inputs; the op takes {_between(schema.min_input, schema.max_input)}")
    if not schema.min_output <= outputs <= schema.max_output:
        raise ValueError(f"has {outputs} outputs; the op returns {_between(schema.min_output, schema.max_output)}")


def check_present(op: str, opset: int, present: Sequence[bool]) -> None:
    """Raise ValueError if a required input is absent."""
    schema = schema_of(op, opset)
    for i, is_present in enumerate(present):
        if is_present or schema is None or i >= len(schema.inputs):
            continue
        if schema.inputs[i].option == defs.OpSchema.FormalParameterOption.Single:
            raise ValueError(f"input {i} ({schema.inputs[i].name}) is absent, but required")


def check_attributes(op: str, opset: int, attributes: Mapping[str, Any]) -> None:
    """Raise ValueError for an attribute of another kind than that of the schema."""
    schema = schema_of(op, opset)
    for key, value in attributes.items():
        kind = schema.attributes[key].type.name if schema is not None and key in schema.attributes else ""
        if kind in _SCALARS and not isinstance(value, _SCALARS[kind]):
            raise ValueError(f"attribute {key} is {truncate(repr(value))}, which is not of type {kind.lower()}")


def _between(low: int, high: int) -> str:
    if high > 1_000_000:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


def check_dtypes(inputs: Sequence[TensorType | None], schema: Any) -> None:
    """Raise ValueError if an input has a dtype the schema excludes, or type variables do not agree."""
    bound: dict[str, tuple[str, int]] = {}
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    for i, type in enumerate(inputs):
        if type is None:
            continue
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        letter = formal.type_str
        own = "float" if type.dtype == "float32" else "double" if type.dtype == "float64" else type.dtype
        if f"tensor({own})" not in allowed.get(letter, [letter]):
            raise ValueError(f"input {i} ({formal.name}) is {type}, a type the op does not accept")
        if formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
            continue
        first = bound.setdefault(letter, (type.dtype, i))
        if letter in allowed and first[0] != type.dtype:
            raise ValueError(f"input {i} ({formal.name}) is {type.dtype} but input {first[1]} is {first[0]}")


def node_proto(
    op: str, attributes: Mapping[str, Any], present: Sequence[bool], used: Sequence[bool], schema: Any
) -> Any:
    """NodeProto with inputs named i0, i1, ... and outputs named o0, o1, ..."""
    domain, _, name = op.rpartition("::")
    node = helper.make_node(
        name,
        [f"i{i}" if is_present else "" for i, is_present in enumerate(present)],
        [f"o{i}" if is_used else "" for i, is_used in enumerate(used)],
        domain="" if domain == "ai.onnx" else domain,
    )
    for key, value in attributes.items():
        kind = schema.attributes[key].type if schema is not None and key in schema.attributes else None
        node.attribute.append(attribute_proto(key, value, kind))
    return node


def attribute_proto(key: str, value: Any, kind: Any | None) -> Any:
    """AttributeProto of the schema's type; integers and floats are converted."""
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
        raise ValueError(f"attribute {key} is {value}, which is not of type {kind.name.lower()}")
    number = None if kind is None else int(onnx.AttributeProto.AttributeType.Value(kind.name))
    try:
        return helper.make_attribute(key, list(value) if isinstance(value, tuple) else value, attr_type=number)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"attribute {key} is {truncate(repr(value))}: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """The first line of an error message, without the prefixes of `onnx`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    for prefix in ("[ShapeInferenceError]", "[TypeInferenceError]"):
        first = first.replace(prefix, "").strip()
    return truncate(first.partition(" ==> ")[0].rstrip("."))


def truncate(text: str) -> str:
    """The text, cut after _MAX_CHARS characters."""
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
