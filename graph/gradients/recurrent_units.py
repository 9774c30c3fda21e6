"""Gradients of LSTMUnit and GRUUnit: one node each, from the gates alone."""

from __future__ import annotations

from graph.emit import Emit, Val
from graph.gradients.table import Forward, Gradients, gradient


@gradient("remat::LSTMUnit")
def lstm_unit(emit: Emit, node: Forward, dh: Val | None, dc: Val | None = None) -> Gradients:
    _, cell, gates, *_ = node.inputs
    wanted = tuple(node.needed(i) for i in range(3))
    found = emit.op(
        "remat::LSTMUnitGrad", cell, gates, node.input(3), node.input(4), dh, dc, outputs=wanted, **node.attributes
    )
    return (*found, None, None)[: len(node.inputs)]


@gradient("remat::GRUUnit")
def gru_unit(emit: Emit, node: Forward, dh: Val | None) -> Gradients:
    hidden, gates, *_ = node.inputs
    wanted = tuple(node.needed(i) for i in range(2))
    found = emit.op(
        "remat::GRUUnitGrad", hidden, gates, node.input(2), node.input(3), dh, outputs=wanted, **node.attributes
    )
    return (*found, None, None)[: len(node.inputs)]
