"""Workspace of nodes in onnxruntime: of decompositions, and of its kernels."""

from __future__ import annotations

import onnx
import pytest

from graph.analysis.devices import DEVICES
from graph.builder.builder import Builder
from graph.formats.onnx.runtime_workspace import runtime_workspace
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role, TensorType
from planner.lowering.lower import lower
from planner.request.target_runtime import RUNTIMES

ROWS = TensorType("float32", (64, 64))


def gradient_of(op: str) -> Graph:
    builder = Builder("step")
    x, dy = builder.value("x", ROWS, Role.INPUT), builder.value("dy", ROWS, Role.INPUT)
    (dx,) = builder.node(op, [x, dy], name="node", outputs=["dx"], types=[ROWS])
    return builder.build([dx])


def live_bytes(data: bytes, name: str) -> int:
    """Peak of what the nodes of a file write, counted apart from ours; without its output."""
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(data)).graph
    sizes = {info.name: 4 for info in graph.value_info}
    for info in graph.value_info:
        for dimension in info.type.tensor_type.shape.dim:
            sizes[info.name] *= dimension.dim_value
    highest = 0
    for place in range(len(graph.node)):
        written = {o for node in graph.node[: place + 1] for o in node.output}
        needed = {i for node in graph.node[place:] for i in node.input} | set(graph.node[place].output)
        live = sum(sizes.get(each, 0) for each in written & needed - {name})
        highest = max(highest, live)
    return highest


@pytest.mark.parametrize("op", ["remat::GeluGrad", "remat::TanhGrad"])
def test_the_workspace_of_a_decomposition_is_what_its_nodes_hold_at_once(op: str) -> None:
    graph = gradient_of(op)
    held = live_bytes(dump(graph), "dx")
    assert held > 0
    assert held - ROWS.nbytes <= runtime_workspace(graph, graph.nodes[0]) <= held


def test_the_runtime_of_exported_files_counts_the_workspace_of_decompositions() -> None:
    graph = gradient_of("remat::GeluGrad")
    found = {
        name: lower(graph, next(iter(DEVICES.values())), RUNTIMES[name]).problem.workspace[0]
        for name in ("arena", "ort")
    }
    assert found == {"arena": 0, "ort": runtime_workspace(graph, graph.nodes[0])}
