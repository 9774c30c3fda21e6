"""Training graphs in onnxruntime: the rewritten one equals the unrewritten bit for bit, and both our own execution."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.formats.onnx.updates import updates
from graph.formats.onnx.writer import dump
from graph.ir import Body, Effect, Graph, Phase, Role, TensorType
from graph.ops.registry import find_op
from graph.recurrent import expand_rnns
from graph.training.step import training_step
from graph.transforms.replay import replay
from tests.graph.formats.onnx.onnx_runs import Arrays, read, run
from tests.graph.formats.onnx.read.test_reader import TRANSFORMERS, light, ours
from tests.graph.formats.onnx.test_writer import same

SHORT = {"batch": 2, "sequence": 8}


def with_repeats(graph: Graph, every: int = 2) -> Graph:
    """The graph with forward producers run again just before every k-th backward node."""
    writer = {v: n for n, node in enumerate(graph.nodes) for v in node.writes}
    order: list[int] = []
    for n, node in enumerate(graph.nodes):
        if node.phase is Phase.BACKWARD and n % every == 0:
            producers = [writer[v] for v in node.reads if v in writer]
            order += [p for p in producers if graph.nodes[p].phase is Phase.FORWARD and repeatable(graph, p)]
        order.append(n)
    return replay(graph, order)


def repeatable(graph: Graph, n: int) -> bool:
    node = graph.nodes[n]
    record = find_op(node.op)
    effect = node.effect or (record.effect if record is not None else Effect.PURE)
    return not node.in_place and effect is Effect.PURE


def step_of(name: str, **options: Any) -> Graph:
    graph = read(ours(name), dims=SHORT)
    step, _ = training_step(graph, None if name == "gpt" else "loss", **options)
    return step


def fed(graph: Graph) -> dict[str, np.ndarray]:
    return {graph.values[v].name: array for v, array in sample_arrays(graph, 0).items()}


def equal_bits(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def checked(graph: Graph) -> bytes:
    data = dump(graph)
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    return data


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_rewritten_training_step_of_a_transformer_equals_the_unrewritten(name: str) -> None:
    step = step_of(name)
    rewritten = with_repeats(step)
    assert len(rewritten.nodes) > len(step.nodes)
    feeds = fed(step)
    equal_bits(run(checked(step), feeds), run(checked(rewritten), feeds))


@pytest.mark.parametrize("recipe", [None, {"optimizer": "sgd"}, {"optimizer": "adam"}])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_onnxruntime_and_our_execution_agree_on_a_training_step(name: str, recipe: dict[str, Any] | None) -> None:
    step = step_of(name, recipe=recipe)
    feeds = fed(step)
    found = run(dump(step), feeds)
    updated = {step.values[v].name for v in updates(step).values()}
    assert bool(updated) == bool(recipe)
    ours_found = execute(step, feeds, keep=found.keys()).values
    assert found.keys() == {step.values[v].name for v in step.outputs} | updated
    for key in found:
        np.testing.assert_allclose(found[key], ours_found[key], rtol=2e-4, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("recipe", [None, {"optimizer": "adam"}])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_training_step_reads_back_as_it_was(name: str, recipe: dict[str, Any] | None) -> None:
    step = with_repeats(step_of(name, recipe=recipe))
    same(read(checked(step)), step)
    assert read(dump(step)).gradients


def test_a_convolutional_training_step_with_dropout_repeats_the_same_in_onnxruntime() -> None:
    step, _ = training_step(read(light("squeezenet"), inputs={"data_0": (2, 3, 64, 64)}))
    feeds = fed(step)
    equal_bits(run(checked(step), feeds), run(checked(with_repeats(step)), feeds))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["resnet50", "shufflenet"])
def test_a_rewritten_residual_net_equals_the_unrewritten_and_our_execution(name: str) -> None:
    step, _ = training_step(read(light(name), batch=1))
    feeds = fed(step)
    found = run(checked(step), feeds)
    equal_bits(found, run(checked(with_repeats(step)), feeds))
    ours_found = execute(step, feeds).outputs
    found = {name: found[name] for name in ours_found}
    noise = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float32)
    (picture,) = [n for n, array in feeds.items() if array.shape == noise.shape]
    moved = execute(step, {**feeds, picture: feeds[picture] * (1 + 2e-7 * noise)}).outputs
    # Rounding grows through fifty layers of rectifiers: agreement is measured by what the input's last bits change.
    assert distance(found, ours_found) < 3 * distance(moved, ours_found) + 1e-6


def distance(one: Arrays, other: Arrays) -> float:
    """Median over the outputs of the relative difference."""
    return float(np.median([np.linalg.norm(a - other[k]) / (np.linalg.norm(a) + 1e-3) for k, a in one.items()]))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_gradients_of_recurrent_nets_as_scans_run_in_onnxruntime(kind: str) -> None:
    rows = 3 * {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    b = Builder("recurrent")
    shapes = {"w": (1, rows, 2), "r": (1, rows, 3), "b": (1, 2 * rows)}
    x = b.value("x", TensorType("float32", (5, 2, 2)), Role.INPUT)
    weights = [b.value(name, TensorType("float32", shape), Role.PARAMETER) for name, shape in shapes.items()]
    _, last = b.node(kind, [x, *weights], name="net", outputs=[None, "last"], attributes={"hidden_size": 3})
    (loss,) = b.node("ReduceSum", [last], name="sum", outputs=["loss"], attributes={"keepdims": 0})
    graph = b.build([loss])
    fused, _ = training_step(graph, "loss")
    scans, _ = training_step(expand_rnns(graph), "loss")
    feeds = fed(fused)
    expected, found = execute(fused, feeds).outputs, run(checked(scans), feeds)
    for (_, one), (_, other) in zip(fused.gradients, scans.gradients, strict=True):
        name = scans.values[other].name
        np.testing.assert_allclose(found[name], expected[fused.values[one].name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_absent_outputs_of_a_scan_have_names_in_the_file_only() -> None:
    b = Builder("scan")
    x = b.value("x", TensorType("float32", (4, 2)), Role.INPUT)
    inner = Builder("body")
    row = inner.value("row", TensorType("float32", (2,)), Role.INPUT)
    (y,) = inner.node("Neg", [row], outputs=["y"])
    (z,) = inner.node("Exp", [row], outputs=["z"])
    body = Body(inner.build([y, z]), ())
    outputs = b.node(
        "Scan", [x], name="scan", outputs=[None, "z"], attributes={"num_scan_inputs": 1}, bodies={"body": body}
    )
    graph = b.build([outputs[1]])
    assert read(checked(graph)).nodes[0].outputs == graph.nodes[0].outputs
    given = np.ones((4, 2), np.float32)
    np.testing.assert_allclose(run(dump(graph), {"x": given})["z"], np.exp(given), rtol=1e-6)
