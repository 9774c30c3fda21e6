"""One step under the memory optimizer of ONNX Runtime's training build: for `bench/runtime_peers.py`, in its Python.

    python bench/ort_memory_optimizer.py MODEL DATA OUT none|Gelu|"none, in order"|"Gelu, in order"

Prints growth of resident memory over the step in bytes, and how many nodes are recomputed; writes gradients to OUT.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.capi import _pybind_state

SEED = "loss_grad"


def with_gradients(data: bytes) -> onnx.ModelProto:
    """The model with gradients of its initializers, by ONNX Runtime, and the boundary that its optimizer looks for."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:  # the training build has gradients of its own Gelu only
        node.domain = "com.microsoft" if node.op_type == "Gelu" else node.domain
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.opset_import[0].version, model.ir_version = 17, 8
    weights = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    builder = _pybind_state.GradientGraphBuilder(model.SerializeToString(), {"loss"}, set(weights), "loss")
    builder.build()
    step = onnx.load_from_string(builder.get_model())
    del step.graph.output[:]
    step.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    for name, shape in weights.items():
        step.graph.output.append(helper.make_tensor_value_info(f"{name}_grad", onnx.TensorProto.FLOAT, shape))
    without_seed(step)
    end = max(place for place, node in enumerate(step.graph.node) if "loss" in node.output)
    boundary = helper.make_node("YieldOp", ["loss"], [SEED], domain="com.microsoft", full_shape_outputs=[0])
    step.graph.node.insert(end + 1, boundary)
    return step


def without_seed(step: onnx.ModelProto) -> None:
    for tensor in [each for each in step.graph.initializer if each.name == SEED]:
        step.graph.initializer.remove(tensor)


def is_recomputed(node: onnx.NodeProto) -> bool:
    return any(name.endswith("_recompute") for name in node.output)


def in_thrifty_order(graph: onnx.GraphProto) -> None:
    """Gradients of weights as soon as they can be computed, recomputed nodes before the first that reads them.

    ORTModule gives recomputed nodes a low priority for that, which files lack.
    """
    outputs = {item.name for item in graph.output}
    ends = [node for node in graph.node if outputs.issuperset(node.output)]
    nodes = [node for node in graph.node if node not in ends and not is_recomputed(node)]
    late = [node for node in graph.node if is_recomputed(node)]
    again = {name for node in late for name in node.output}
    for end in ends:
        read = set(end.input) - again
        nodes.insert(1 + max((k for k, node in enumerate(nodes) if read & set(node.output)), default=-1), end)
    for node in late:
        nodes.insert(next(k for k, reader in enumerate(nodes) if set(reader.input) & set(node.output)), node)
    del graph.node[:]
    graph.node.extend(nodes)


def main() -> None:
    model, data, out, way = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(optimized)
        if way.startswith("Gelu"):
            Path(folder, "config.json").write_text(json.dumps(["Gelu+:1:-1"]))
            options.add_session_config_entry("optimization.memory_optimizer_config", f"{folder}/config.json")
            options.add_session_config_entry("optimization.enable_memory_probe_recompute_config", "1:0")
        onnxruntime.InferenceSession(with_gradients(Path(model).read_bytes()).SerializeToString(), options)
        step = onnx.load(optimized)
    for node in [each for each in step.graph.node if each.op_type == "YieldOp"]:
        step.graph.node.remove(node)
    step.graph.initializer.append(numpy_helper.from_array(np.ones((), np.float32), SEED))
    recomputed = sum(map(is_recomputed, step.graph.node))
    options = onnxruntime.SessionOptions()  # of nodes: those of the optimized file
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    if way.endswith("in order"):
        in_thrifty_order(step.graph)
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    session = onnxruntime.InferenceSession(step.SerializeToString(), options)
    fed = dict(np.load(data))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = memory("VmRSS")
    names = [item.name for item in session.get_outputs()]
    results = dict(zip(names, session.run(names, fed), strict=True))
    growth = memory("VmHWM") - before
    np.savez(out, **{name.removesuffix("_grad"): array for name, array in results.items() if name != "loss"})
    print(json.dumps({"growth": growth, "recomputed": recomputed, "version": onnxruntime.__version__}))


def memory(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
