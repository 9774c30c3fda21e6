"""Differentiated control flow in every form: documents, text, ONNX files run by onnxruntime, calls written out."""

from __future__ import annotations

import numpy as np
import pytest

from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.formats.native.writer import dump as dump_native
from graph.formats.onnx.writer import dump
from graph.formats.readers import load
from graph.ir import Graph, walk
from graph.ir.text import format_graph
from graph.ops.control_flow import CALL
from graph.training.step import training_step
from graph.transforms.inline_calls import without_calls
from tests.end_to_end.test_control_flow import branched, looped, nested, scanned
from tests.graph.formats.onnx.onnx_runs import run

MAKERS = [scanned, looped, branched, nested]


def step_and_feeds(make, dropout: bool) -> tuple[Graph, dict[str, np.ndarray]]:
    step, _ = training_step(make(dropout), "loss")
    feeds = {step.values[v].name: array for v, array in sample_arrays(step, 0).items() if step.values[v].data is None}
    return step, {name: np.array(3) if name == "count" else array for name, array in feeds.items()}


@pytest.mark.parametrize("make", MAKERS)
def test_onnxruntime_computes_the_same(make):
    step, feeds = step_and_feeds(make, dropout=False)
    ours, found = execute(step, feeds).outputs, run(dump(step), feeds)
    assert found.keys() == ours.keys()
    for name, array in ours.items():
        assert found[name] == pytest.approx(array, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("form", ["onnx", "native"])
def test_a_file_read_back_computes_the_same_bit_for_bit(make, form: str):
    step, feeds = step_and_feeds(make, dropout=True)
    back = load(dump(step) if form == "onnx" else dump_native(step))
    assert back.types_of(back.outputs) == step.types_of(step.outputs)
    ours, found = execute(step, feeds).outputs, execute(back, feeds).outputs
    assert all((found[name] == array).all() for name, array in ours.items())


@pytest.mark.parametrize("make", MAKERS)
def test_a_call_written_out_draws_the_same(make):
    step, feeds = step_and_feeds(make, dropout=True)
    plain = without_calls(step)
    assert not any(node.op == CALL for graph in walk(plain) for node in graph.nodes)
    ours, found = execute(step, feeds).outputs, execute(plain, feeds).outputs
    assert all((found[name] == array).all() for name, array in ours.items())


@pytest.mark.parametrize("make", MAKERS)
def test_bodies_are_shown_in_text(make):
    step, _ = step_and_feeds(make, dropout=True)
    assert "gradient_of" in format_graph(step) or "backward" in format_graph(step)
    assert "Dropout" in format_graph(step)
