"""Chunked loss: equal loss and gradients, with the scores of one chunk live at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution import compare_outputs
from graph.execution.interpreter import execute
from graph.formats.onnx.writer import dump
from graph.formats.readers import load
from graph.ir import Graph, Phase, Role, TensorType
from graph.limits import ShapeOverrides
from graph.training.chunk_interleaving import interleave_chunks
from graph.training.chunked_loss import CHUNK_ANNOTATION, with_chunked_loss
from graph.training.step import training_step
from tests.graph.formats.onnx.onnx_runs import run

MODELS = Path(__file__).parents[2] / "models"
ROWS, WIDTH, CLASSES = 24, 8, 96


def head(dtype: str = "float32", product: str = "MatMul", weighted: bool = False, **attributes: Any) -> Graph:
    """x ──▶ Tanh ──▶ product with w ──▶ + bias ──▶ tanh(· / 3) ──▶ cross-entropy"""
    b = Builder("head")
    x = b.value("x", TensorType(dtype, (4, 6, WIDTH)), Role.INPUT)
    labels = b.value("labels", TensorType("int64", (ROWS,)), Role.INPUT, annotations={"range": [0, CLASSES]})
    (h,) = b.node("Tanh", [x], name="hidden")
    if product == "Gemm":
        w = b.value("w", TensorType(dtype, (CLASSES, WIDTH)), Role.PARAMETER)
        c = b.value("c", TensorType(dtype, (CLASSES,)), Role.PARAMETER)
        (h,) = b.node("Reshape", [h, b.constant(np.array([ROWS, WIDTH]))], name="rows")
        (s,) = b.node("Gemm", [h, w, c], name="scores", attributes={"transB": 1, "alpha": 0.5})
    else:
        w = b.value("w", TensorType(dtype, (WIDTH, CLASSES)), Role.PARAMETER)
        bias = b.value("bias", TensorType(dtype, (1, 1, CLASSES)), Role.PARAMETER)
        (s,) = b.node("MatMul", [h, w], name="scores")
        (s,) = b.node("Add", [bias, s], name="biased")
        (s,) = b.node("Reshape", [s, b.constant(np.array([ROWS, CLASSES]))], name="rows")
    (s,) = b.node("Div", [s, b.constant(np.array(3, dtype))], name="smaller")
    (s,) = b.node("Tanh", [s], name="capped")
    weights = [b.value("weights", TensorType(dtype, (CLASSES,)), Role.PARAMETER)] if weighted else []
    op = "NegativeLogLikelihoodLoss" if product == "logarithm" else "SoftmaxCrossEntropyLoss"
    if product == "logarithm":
        (s,) = b.node("LogSoftmax", [s], name="logarithm", attributes={"axis": 1})
    (loss,) = b.node(op, [s, labels, *weights], name="loss", outputs=["loss"], attributes=attributes)
    if attributes.get("reduction") == "none":
        (loss,) = b.node("ReduceSum", [loss], name="all", outputs=["sum"], attributes={"keepdims": 0})
    return b.build([loss])


def steps(forward: Graph, chunks: int, **more: Any) -> tuple[Graph, Graph]:
    """(training step, training step with an interleaved chunked loss)."""
    plain, _ = training_step(forward, **more)
    cut, _ = training_step(forward, rewrite=lambda graph: with_chunked_loss(graph, chunks), **more)
    return plain, interleave_chunks(cut)


def assert_agree(plain: Graph, cut: Graph, **given: np.ndarray) -> None:
    fed = {**compare_outputs.sample_feeds(plain, 0), **given}
    expected = compare_outputs.run_results(plain, fed)
    found = compare_outputs.run_results(cut, fed)
    assert set(found) == set(expected)
    worst = compare_outputs.worst_discrepancy(found, expected)
    assert worst.agrees, worst


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("product", ["MatMul", "Gemm", "logarithm"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_chunked_loss_has_the_same_value_and_gradients(dtype: str, product: str, reduction: str) -> None:
    plain, cut = steps(head(dtype, product, reduction=reduction), 4)
    assert_agree(plain, cut)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_labels_and_class_weights_count_over_all_chunks(weighted: bool, reduction: str) -> None:
    plain, cut = steps(head(weighted=weighted, reduction=reduction, ignore_index=-100), 3)
    labels = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    labels[[0, 1, 2, 3, 4, 5, 6, 7, 20]] = -100  # the whole first chunk, and one more
    assert_agree(plain, cut, labels=labels)
    assert weighted == any(cut.values[v].name == "weights" for v, _ in cut.gradients)


def test_a_mean_over_no_labels_is_nan_with_and_without_chunks() -> None:
    plain, cut = steps(head(ignore_index=-100), 2)
    assert_agree(plain, cut, labels=np.full(ROWS, -100))


def test_scores_of_one_chunk_are_live_at_a_time() -> None:
    plain, cut = steps(head(), 8)
    ran = execute(cut)
    whole, part = 4 * ROWS * CLASSES, 4 * ROWS * CLASSES // 8
    made = [
        cut.values[v].nbytes
        for node in cut.nodes
        for v in node.writes
        if cut.values[v].type is not None and cut.values[v].type.shape[-1:] == (CLASSES,)
    ]
    assert max(made) == max(part, 4 * CLASSES * WIDTH)
    assert ran.peak_bytes < execute(plain).peak_bytes - whole


def test_the_backward_pass_of_a_chunk_precedes_the_next_chunk() -> None:
    _, cut = steps(head(), 4)
    turns = [node.annotations[CHUNK_ANNOTATION] for node in cut.nodes if CHUNK_ANNOTATION in node.annotations]
    assert turns == sorted(turns) and set(turns) == {0, 1, 2, 3}
    assert [node.phase for node in cut.nodes] == sorted(node.phase for node in cut.nodes)
    back = [node for node in cut.nodes if node.annotations.get("gradient_of") and CHUNK_ANNOTATION in node.annotations]
    assert back and {node.phase for node in back} == {Phase.FORWARD}


@pytest.mark.parametrize("chunks", [2, 12])
def test_weight_gradients_are_running_sums(chunks: int) -> None:
    _, cut = steps(head(), chunks)
    (gradient,) = [g for v, g in cut.gradients if cut.values[v].name == "w"]
    type = cut.values[gradient].type
    added = [node for node in cut.nodes if node.op in ("Add", "Sum") and cut.values[node.writes[0]].type == type]
    assert len(added) == chunks - 1 and {len(node.inputs) for node in added} == {2}
    assert gradient in added[-1].outputs


def test_chunks_that_depend_on_each_other_are_not_interleaved() -> None:
    b = Builder.from_graph(head(reduction="none"))
    loss = next(v for v, value in enumerate(b.values) if value.name == "loss")
    (power,) = b.node("Softmax", [loss], name="focus", attributes={"axis": 0})
    (product,) = b.node("Mul", [loss, power], name="focused")
    (total,) = b.node("ReduceSum", [product], name="total", outputs=["total"], attributes={"keepdims": 0})
    forward = b.build([total])
    plain, cut = steps(forward, 4, loss="total")
    assert {node.phase for node in cut.nodes if node.annotations.get("gradient_of")} == {Phase.BACKWARD}
    assert_agree(plain, cut)


@pytest.mark.parametrize(("name", "loss"), [("gpt", None), ("decoder", "loss"), ("encoder", "loss")])
def test_exported_models_agree(name: str, loss: str | None) -> None:
    forward = load((MODELS / f"{name}.onnx").read_bytes(), None, ShapeOverrides({}, 4, {"sequence": 8}))
    plain, cut = steps(forward, 4, loss=loss)
    assert_agree(plain, cut)
    products = [node for node in cut.nodes if node.op in ("MatMul", "Gemm") and CHUNK_ANNOTATION in node.annotations]
    assert bool(products) is (name == "gpt")  # the others hand their scores out, so only the loss itself is cut


def test_onnxruntime_runs_interleaved_chunks() -> None:
    _, cut = steps(head(weighted=True, ignore_index=3), 4)
    fed = compare_outputs.sample_feeds(cut, 0)
    assert compare_outputs.worst_discrepancy(run(dump(cut), fed), execute(cut, fed).outputs).agrees


def test_tied_embeddings_get_contributions_of_both_uses() -> None:
    forward = load((MODELS / "gpt.onnx").read_bytes(), None, ShapeOverrides({}, 4, {"sequence": 8}))
    _, cut = steps(forward, 4)
    (gradient,) = [g for v, g in cut.gradients if cut.values[v].name == "words.weight"]
    (last,) = [node for node in cut.nodes if gradient in node.outputs]
    assert last.phase is Phase.BACKWARD and len(last.inputs) == 2


def test_optimizers_update_from_the_running_sum() -> None:
    plain, cut = steps(head(), 4, recipe={"optimizer": "adam", "update": "as_ready", "accumulate": 2})
    fed = compare_outputs.sample_feeds(plain, 0)
    found = [execute(graph, fed, keep=["w/gradient_sum"]).values for graph in (plain, cut)]
    assert set(found[0]) == set(found[1])
    assert compare_outputs.worst_discrepancy(*found).agrees


@pytest.mark.parametrize(("chunks", "said"), [(5, "24 rows"), (48, "24 rows")])
def test_rows_that_cannot_be_divided_are_refused(chunks: int, said: str) -> None:
    with pytest.raises(BadGraph, match=said):
        with_chunked_loss(head(), chunks)


def test_a_graph_without_cross_entropy_is_refused() -> None:
    b = Builder("none")
    x = b.value("x", TensorType("float32", (4, 6)), Role.INPUT)
    (y,) = b.node("ReduceSum", [x], attributes={"keepdims": 0})
    graph = b.build([y])
    assert with_chunked_loss(graph, 1) is graph
    with pytest.raises(BadGraph, match="no cross-entropy"):
        with_chunked_loss(graph, 2)
