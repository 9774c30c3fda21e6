"""Training mode of BatchNorm in bodies, and of layers that a file freezes."""

from __future__ import annotations

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.ir import FROZEN, Graph, Role, TensorType, walk
from graph.training.train_mode import in_training_mode
from graph.validate.check import check
from tests.graph.ops.control_flow.building import bodies, body_of, loss_of

X, CHANNELS = TensorType("float64", (2, 3, 4)), TensorType("float64", (3,))


def normalised(captured: bool) -> Graph:
    """h = batch norm of h, three iterations; the running statistics are captured, or in the body."""
    b = Builder("normalised")
    x = b.value("x", X, Role.PARAMETER)
    trips = b.value("trips", TensorType("float64", (3, 1)), Role.INPUT)
    names = ("scale", "bias", "mean", "variance")
    outside = [b.value(name, CHANNELS, Role.PARAMETER) for name in (names if captured else names[:2])]

    def make(inner, v):
        own = [] if captured else [inner.constant(np.zeros(3)), inner.constant(np.ones(3))]
        given = [*(v[name] for name in names if name in v), *own]
        return inner.node("BatchNormalization", [v["h"], *given], name="norm")

    body = body_of(b, {"h": X, "trip": TensorType("float64", (1,))}, outside, make)
    (last,) = b.node(
        "Scan", [x, trips], name="layers", types=[X], attributes={"num_scan_inputs": 1}, bodies=bodies(body=body)
    )
    return loss_of(b, last)


@pytest.mark.parametrize("captured", [True, False])
def test_running_statistics_in_a_nested_graph_are_not_updated_and_reported(captured: bool):
    graph, notes = in_training_mode(normalised(captured))
    check(graph)
    assert any("'norm' are not updated: it runs in a nested graph" in note for note in notes)
    ops = {node.op for nested in walk(graph) for node in nested.nodes}
    assert "remat::BatchNorm" in ops and "remat::RunningStatistics" not in ops
    assert not any(value.role is Role.STATE for nested in walk(graph) for value in nested.values)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_frozen_layers_stay_in_inference_mode_and_are_reported(is_frozen: bool):
    b = Builder("frozen")
    x = b.value("x", X, Role.PARAMETER)
    channels = [b.value(name, CHANNELS, Role.STATE) for name in ("scale", "bias", "mean", "variance")]
    annotations = {FROZEN: True} if is_frozen else {}
    (y,) = b.node("BatchNormalization", [x, *channels], name="norm", annotations=annotations)
    (z,) = b.node("Dropout", [y], name="drop", annotations=annotations)
    graph, notes = in_training_mode(b.build([z]))
    check(graph)
    assert ("BatchNormalization" in [node.op for node in graph.nodes]) is is_frozen
    assert (len(graph.nodes[-1].inputs) == 1) is is_frozen, "training mode is an input of Dropout"
    frozen = [note for note in notes if "frozen" in note]
    assert len(frozen) == (2 if is_frozen else 0)
