"""Graphs with the nodes that their ONNX files have."""

from __future__ import annotations

import numpy as np
import onnx
from msgspec.structs import replace

from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.formats.onnx.standard_nodes import with_standard_nodes
from graph.formats.onnx.writer import dump
from graph.training.step import training_step
from tests.graph.formats.onnx.onnx_runs import read
from tests.graph.formats.onnx.read.test_reader import light
from tests.graph.formats.onnx.test_writer_training import SHORT, equal_bits, fed, ours, run


def test_the_nodes_are_those_of_the_file_and_its_numbers_stay() -> None:
    step, _ = training_step(read(ours("decoder"), dims=SHORT), "loss")
    plain = with_standard_nodes(step)
    assert plain.values[: len(step.values)] == step.values and plain.outputs == step.outputs
    assert {node.name for node in step.nodes} <= {node.name for node in plain.nodes}
    written = [node.op_type for node in onnx.load_from_string(dump(plain)).graph.node]
    assert written == [node.op for node in plain.nodes]
    used = {v for node in plain.nodes for v in (*node.reads, *node.writes)}
    assert used.issuperset(range(len(step.values), len(plain.values)))
    assert written == [node.op_type for node in onnx.load_from_string(dump(step)).graph.node]
    equal_bits(run(dump(step), fed(step)), run(dump(plain), fed(step)))


def test_our_execution_agrees_and_random_ops_stay() -> None:
    step, _ = training_step(read(light("squeezenet"), inputs={"data_0": (1, 3, 64, 64)}))
    plain = with_standard_nodes(step)
    assert [node.stream for node in plain.nodes if node.stream] == [node.stream for node in step.nodes if node.stream]
    given = sample_arrays(step, 0)
    feeds = {step.values[v].name: array for v, array in given.items()}
    found, expected = execute(plain, feeds).outputs, execute(step, feeds).outputs
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=1e-6, err_msg=name)


def test_a_node_that_runs_after_another_runs_after_its_last_part() -> None:
    step, _ = training_step(read(ours("decoder"), dims=SHORT), "loss")
    waiting = next(n for n, node in enumerate(step.nodes) if node.op == "remat::SoftmaxCrossEntropyLossGrad") + 1
    after = replace(step.nodes[waiting], after=(waiting - 1,))
    plain = with_standard_nodes(replace(step, nodes=(*step.nodes[:waiting], after, *step.nodes[waiting + 1 :])))
    place = next(n for n, node in enumerate(plain.nodes) if node.name == after.name)
    assert plain.nodes[place].after == (place - 1,)
