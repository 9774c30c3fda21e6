"""Workspace of nodes in onnxruntime: of decompositions, and of its kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graph.analysis.devices import DEVICES
from graph.builder.builder import Builder
from graph.formats.onnx.runtime_workspace import runtime_workspace
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role, TensorType
from planner.lowering.lower import lower
from planner.request.target_runtime import RUNTIMES
from tests.graph.formats.onnx.onnx_runs import read, run

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


#: Equation, shapes of operands -> MiB of growth of resident memory less the output, in onnxruntime 1.31.
CONTRACTIONS = [
    ("bi,eij->bej", [(92692, 16), (3, 16, 8)], 8.8),
    ("bi,bej->eji", [(92692, 16), (92692, 3, 8)], 14.3),
    ("bej,bej->be", [(92692, 3, 8), (92692, 3, 8)], 1.2),
    ("ij,jk->ik", [(2048, 1024), (1024, 1024)], 12.2),
    ("ji,jk", [(1024, 2048), (1024, 1024)], 20.2),
    ("ij->ji", [(4096, 1024)], 16.2),
    ("ij->j", [(4096, 1024)], 0.1),
    ("iij->j", [(64, 64, 1024)], 16.6),
    ("...ij,...jk->...ik", [(16, 256, 512), (16, 512, 128)], 6.2),
    ("bihd,bjhd->bhij", [(4, 256, 8, 64), (4, 256, 8, 64)], 14.3),
    ("bij,bk->bi", [(64, 256, 128), (64, 1024)], 0.4),
    ("bjk,cij->bcik", [(16, 64, 256), (16, 32, 64)], 17.4),
]


@pytest.mark.parametrize(("equation", "shapes", "mebibytes"), CONTRACTIONS, ids=[each[0] for each in CONTRACTIONS])
def test_the_workspace_of_a_contraction_is_the_one_measured(
    equation: str, shapes: list[tuple[int, ...]], mebibytes: float
) -> None:
    graph = contraction(equation, shapes)
    assert runtime_workspace(graph, graph.nodes[0]) == pytest.approx(mebibytes * 2**20, abs=0.7 * 2**20)


@pytest.mark.parametrize(
    ("left", "right", "mebibytes"),
    [((200000, 4, 4), (200000, 4, 4), 17.0), ((1000, 200, 4, 4), (1000, 1, 4, 4), 16.9), ((200000, 4, 4), (4, 4), 0.3)],
)
def test_the_workspace_of_a_stack_of_products_is_the_one_measured(
    left: tuple[int, ...], right: tuple[int, ...], mebibytes: float
) -> None:
    builder = Builder("products")
    inputs = [
        builder.value(name, TensorType("float32", shape), Role.INPUT) for name, shape in (("x", left), ("y", right))
    ]
    graph = builder.build(builder.node("MatMul", inputs, outputs=["z"]))
    assert runtime_workspace(graph, graph.nodes[0]) == pytest.approx(mebibytes * 2**20, abs=0.7 * 2**20)


def test_a_contraction_of_three_operands_is_in_pairs_in_the_file_and_its_products_are_workspace() -> None:
    shapes = [(64, 3, 8), (3, 8, 16), (64, 3)]
    graph = contraction("bej,eji,be->bi", shapes)
    data = dump(graph)
    assert [len(node.input) for node in onnx.load_from_string(data).graph.node] == [2, 2]
    assert [node.op for node in read(data).nodes] == ["Einsum"]  # merged back
    generator = np.random.default_rng(0)
    given = {f"x{k}": generator.standard_normal(shape).astype(np.float32) for k, shape in enumerate(shapes)}
    expected = np.einsum("bej,eji,be->bi", *given.values())
    np.testing.assert_allclose(run(data, given)["y"], expected, rtol=1e-4, atol=1e-5)
    product, result, copied = 4 * 64 * 3 * 8, 4 * 64 * 16, 4 * 3 * 8 * 16
    assert runtime_workspace(graph, graph.nodes[0]) == product + result + copied  # of the second pair


def contraction(equation: str, shapes: list[tuple[int, ...]]) -> Graph:
    builder = Builder("contraction")
    inputs = [builder.value(f"x{k}", TensorType("float32", shape), Role.INPUT) for k, shape in enumerate(shapes)]
    return builder.build(builder.node("Einsum", inputs, outputs=["y"], attributes={"equation": equation}))
