"""Shapes baked into a file for one batch length, made to follow another.

    file, batch 1:   x [1,3,224,224] ... h [1,1024,1,1] ── Reshape(·, [1,1024]) ──▶ [1,1024]
    asked, batch 16:                     h [16,1024,1,1] ── Reshape(·, [16,1024]) ──▶ [16,1024]

The types the file itself implies are asked once from `onnx.shape_inference`, only when a leading length changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from graph.importers.onnx.dims import Input

_MOST_KEPT_BYTES = 4096  # initialisers above this hold no shapes


class Batch:
    """The change of leading lengths between file and request."""

    def __init__(self, model: ModelProto, inputs: Sequence[Input]):
        pairs = {
            (item.declared[0], item.shape[0])
            for item in inputs
            if item.declared and item.shape and item.declared[0] != item.shape[0]
        }
        #: (old, new) per changed leading length; a symbolic one was 1 when an exporter baked it
        self.changes = [(1 if not isinstance(old, int) else old, new) for old, new in pairs]
        self.is_changed = bool(self.changes)
        static = any(isinstance(old, int) for old, _ in pairs)
        self.old = _shapes_in_file(model, inputs) if static else {}

    def followed(self, target: np.ndarray, source: str, elements: int, lead: int | None) -> np.ndarray | None:
        """The shape constant of a Reshape with its leading batch replaced, or None when it stays.

        `source` is what is reshaped, now of `elements` elements and leading length `lead`.
        """
        if not self.is_changed or target.ndim != 1 or not target.size or target[0] <= 0:
            return None
        known = self.old.get(source)
        if known and lead is not None and known[0] != lead and known[0] == target[0]:
            return _led_by(target, lead)
        rest = [int(n) for n in target[1:]]
        if all(n > 0 for n in rest):
            for old, new in self.changes:
                if target[0] == old and math.prod(rest) * old != elements == math.prod(rest) * new:
                    return _led_by(target, new)
        return None


def _led_by(target: np.ndarray, lead: int) -> np.ndarray:
    changed = target.copy()
    changed[0] = lead
    return changed


def _shapes_in_file(model: ModelProto, inputs: Sequence[Input]) -> dict[str, tuple[int, ...]]:
    """Per name the shape the file implies, where it is static; lengths of symbols as bound now."""
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = light.graph
    graph.name = "shapes"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > _MOST_KEPT_BYTES:
            graph.initializer.append(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
        else:
            graph.initializer.append(tensor)
    bound = {item.name: item for item in inputs}
    for proto in graph.input:
        item = bound.get(proto.name)
        if item is None or item.declared is None:
            continue
        for dim, declared, length in zip(
            proto.type.tensor_type.shape.dim, item.declared, item.shape, strict=False
        ):  # fmt: skip
            dim.dim_value = declared if isinstance(declared, int) else length
    try:
        found = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return {}  # then only shapes that fit exactly follow
    return {
        info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        for info in (*found.graph.value_info, *found.graph.input, *found.graph.output)
        if all(d.HasField("dim_value") for d in info.type.tensor_type.shape.dim)
    }
