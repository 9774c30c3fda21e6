"""Running ONNX bytes in onnxruntime, in file order and unoptimised, as the tests of reader and writer compare them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from graph.formats.onnx.read import load
from graph.formats.onnx.writer import dump
from graph.ir import Graph
from graph.limits import Limits, ShapeOverrides

Arrays = Mapping[str, np.ndarray]


def read(data: bytes, **shapes: object) -> Graph:
    return load(data, Limits(), ShapeOverrides(**shapes))  # type: ignore[arg-type]


def session(data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(data: bytes, given: Arrays) -> dict[str, np.ndarray]:
    """Outputs by name; `given` may hold more than the model asks for."""
    one = session(data)
    names = [o.name for o in one.get_outputs()]
    found = one.run(names, {i.name: given[i.name] for i in one.get_inputs()})
    return dict(zip(names, map(np.asarray, found), strict=True))


def held(data: bytes) -> dict[str, np.ndarray]:
    """Content of the initialisers and Constant nodes of a file, which the reader leaves behind."""
    graph = onnx.load_from_string(data).graph
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def drawn(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Small random content for everything a graph needs from outside; indices are 0 or 1."""
    generator = np.random.default_rng(seed)
    found = {}
    for value in graph.values:
        if value.role != "activation" and value.data is None and value.type is not None:
            if value.type.dtype.startswith("float"):
                array = np.abs(0.3 * generator.standard_normal(value.type.shape)) + 0.05  # also fit to be a variance
            else:
                array = generator.integers(0, 2, value.type.shape)
            found[value.name] = array.astype(value.type.dtype)
    return found


def both(data: bytes, given: Arrays | None = None, **shapes: object) -> tuple[dict[str, np.ndarray], ...]:
    """(outputs of the file, outputs of the file read and written again), both by onnxruntime."""
    graph = read(data, **shapes)
    given = {**drawn(graph), **held(data), **(given or {})}
    written = dump(graph)
    onnx.checker.check_model(onnx.load_from_string(written), full_check=True)
    return run(data, given), run(written, given)
