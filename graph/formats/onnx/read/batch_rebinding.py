"""Adaptation of baked Reshape targets to a requested batch.

    file, batch 1:       x [1,3,224,224] ... h [1,1024,1,1] ── Reshape(·, [1,1024]) ──▶ [1,1024]
    request, batch 16:                       h [16,1024,1,1] ── Reshape(·, [16,1024]) ──▶ [16,1024]

The shapes implied by the file are inferred once, and only when a leading length changes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, ValueInfoProto
from onnx.defs import onnx_opset_version

from graph.errors import BadGraph
from graph.formats.onnx.read.input_shapes import GraphInput
from graph.formats.onnx.read.protos import RawNode, array_of, is_external, raw_node, type_of
from graph.ir import TensorType
from graph.ops.registry.constant_folding import fold_constants
from graph.ops.registry.dispatch import infer
from graph.ops.registry.onnx_fallback import dtype_name, type_of_array
from graph.ops.registry.registry import Call

_CONTENTS = ("value", "value_int", "value_ints")  # attributes of Constant that hold shapes
_MAX_SHAPE_BYTES = 4096  # bytes; larger initialisers are not shapes


class BatchRebinding:
    """Changes of leading lengths between file and request."""

    def __init__(self, model: ModelProto, inputs: Sequence[GraphInput]):
        pairs = {
            (item.declared[0], item.shape[0])
            for item in inputs
            if item.declared and item.shape and item.declared[0] != item.shape[0]
        }
        #: (old, new) per changed leading length; exporters bake a symbolic length as 1
        self.changes = [(1 if not isinstance(old, int) else old, new) for old, new in pairs]
        self.is_changed = bool(self.changes)
        static = any(isinstance(old, int) for old, _ in pairs)
        self.old = _shapes_in_file(model, inputs) if static else {}

    def follow_batch(self, target: np.ndarray, source: str, elements: int, lead: int | None) -> np.ndarray | None:
        """Reshape target with its leading batch replaced; None when unchanged.

        `source` is the name of the reshaped value, which now has `elements` elements and leading length `lead`.
        """
        if not self.is_changed or target.ndim != 1 or not target.size or target[0] <= 0:
            return None
        known = self.old.get(source)
        if known and lead is not None and known[0] != lead and known[0] == target[0]:
            return _with_leading(target, lead)
        rest = [int(n) for n in target[1:]]
        if all(n > 0 for n in rest):
            for old, new in self.changes:
                if target[0] == old and math.prod(rest) * old != elements == math.prod(rest) * new:
                    return _with_leading(target, new)
        return None


def _with_leading(target: np.ndarray, lead: int) -> np.ndarray:
    changed = target.copy()
    changed[0] = lead
    return changed


def _shapes_in_file(model: ModelProto, inputs: Sequence[GraphInput]) -> dict[str, tuple[int, ...]]:
    """Static shapes by name under the shapes declared in the file; symbols have their bound lengths.

    Inferred node by node with the op table, because shape inference in `onnx` can crash the process on invalid models.
    Values that cannot be typed, and their dependents, are left out.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), onnx_opset_version())
    types = {proto.name: _static(proto) for proto in (*model.graph.value_info, *model.graph.output)}
    types.update((item.name, _declared_in_file(item)) for item in inputs)
    contents: dict[str, np.ndarray] = {}
    for i, tensor in enumerate(model.graph.initializer):
        types[tensor.name] = type_of(tensor, f"graph.initializer[{i}]")
        if not is_external(tensor) and tensor.ByteSize() <= _MAX_SHAPE_BYTES:
            with contextlib.suppress(BadGraph):  # stripped or damaged content: reported by the walk
                contents[tensor.name] = array_of(tensor, f"graph.initializer[{i}]")
    for n, proto in enumerate(model.graph.node):
        raw = raw_node(proto, f"graph.node[{n}]")
        if raw.op == "Constant" and raw.outputs:
            _read_constant(raw, types, contents)
        elif not raw.bodies:
            _infer_node(raw, opset, types, contents)
    return {name: type.shape for name, type in types.items() if type is not None}


def _declared_in_file(item: GraphInput) -> TensorType:
    """Type of an input with the lengths of the file, and bound lengths for symbols."""
    if item.declared is None:
        return TensorType(item.dtype, item.shape)
    pairs = zip(item.declared, item.shape, strict=False)
    return TensorType(item.dtype, tuple(d if isinstance(d, int) else n for d, n in pairs))


def _infer_node(raw: RawNode, opset: int, types: dict[str, TensorType | None], contents: dict[str, np.ndarray]) -> None:
    """Add types and folded constants of the node's outputs; nothing for a type conflict, which the walk reports."""
    call = Call(
        raw.op,
        raw.attributes,
        tuple(types.get(name) for name in raw.inputs),
        tuple(types.get(name) for name in raw.outputs),
        tuple(bool(name) for name in raw.outputs),
        tuple(contents.get(name) for name in raw.inputs),
        opset,
    )
    try:
        outputs = infer(call)
    except ValueError:
        return
    arrays = fold_constants(call, outputs)
    types.update((name, type) for name, type in zip(raw.outputs, outputs, strict=False) if name and type is not None)
    pairs = zip(raw.outputs, arrays or (), strict=False)
    contents.update((name, array) for name, array in pairs if name and array is not None)


def _read_constant(raw: RawNode, types: dict[str, TensorType | None], contents: dict[str, np.ndarray]) -> None:
    content = next((np.asarray(v) for k, v in raw.attributes.items() if k in _CONTENTS), None)
    if content is not None and content.dtype.kind in "biuf":
        contents[raw.outputs[0]], types[raw.outputs[0]] = content, type_of_array(content)


def _static(proto: ValueInfoProto) -> TensorType | None:
    """Declared type of a value when it is a tensor with static shape, else None."""
    if proto.type.WhichOneof("value") != "tensor_type":
        return None
    tensor = proto.type.tensor_type
    dims = tensor.shape.dim
    known = tensor.HasField("shape") and all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
    try:
        return TensorType(dtype_name(tensor.elem_type), tuple(d.dim_value for d in dims)) if known else None
    except ValueError:
        return None  # of strings
