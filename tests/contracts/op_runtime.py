"""One use of an op in onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from msgspec import structs
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from graph.ops.registry.onnx_fallback import onnx_dtype, type_of_array
from tests.contracts.op_calls import Use


def in_float32(use: Use) -> Use:
    """The use with float32 for float64, which onnxruntime has for few ops."""
    arrays = tuple(None if a is None else a.astype(np.float32) if a.dtype == np.float64 else a for a in use.arrays)
    outputs = tuple(
        structs.replace(t, dtype="float32") if t is not None and t.dtype == "float64" else t for t in use.call.outputs
    )
    types = tuple(None if a is None else type_of_array(a) for a in arrays)
    return Use(replace(use.call, inputs=types, outputs=outputs), arrays)


def by_runtime(use: Use) -> list[np.ndarray | None] | None:
    """The wanted outputs; None for empty tensors, dtypes, ranks and attributes it does not take."""
    if any(a is not None and (a.size == 0 or a.dtype.kind not in "biuf") for a in use.arrays):
        return None
    call = use.call
    names = [f"o{i}" if wanted else "" for i, wanted in enumerate(call.used)]
    given = {f"i{i}": a for i, a in enumerate(use.arrays) if a is not None}
    domain, _, op = call.op.rpartition("::")
    node = helper.make_node(
        op,
        [f"i{i}" if a is not None else "" for i, a in enumerate(use.arrays)],
        names,
        domain=domain,
        **{key: _plain(value) for key, value in call.attributes.items()},
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, onnx_dtype(type_of_array(a).dtype), a.shape) for name, a in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in names if name],
    )
    imports = [helper.make_opsetid("", call.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    try:
        session = onnxruntime.InferenceSession(_typed(model).SerializeToString(), providers=["CPUExecutionProvider"])
        found = iter(session.run(None, given))
    except (errors.NotImplemented, errors.Fail, errors.RuntimeException):
        return None
    return [np.asarray(next(found)) if wanted else None for wanted in call.used]


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model)


def _plain(value: Any) -> Any:
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
