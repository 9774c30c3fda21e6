"""Gradients of RNN, GRU and LSTM: one node that recomputes the cells and runs backpropagation through time."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val

_INPUTS = {"RNN": 6, "GRU": 6, "LSTM": 8}
_LENGTHS = 4  # position of `sequence_lens`, which has no gradient


@gradient("RNN", "GRU", "LSTM")
def recurrent(emit: Emit, node: ForwardNode, *incoming: Val | None) -> InputGradients:
    """Gradients of all inputs except the lengths, from the inputs and the gradients of Y, Y_h, Y_c."""
    count = _INPUTS[node.op]
    inputs = [node.input(i) for i in range(count)]
    states = 3 if node.op == "LSTM" else 2
    given = [*incoming, *[None] * (states - len(incoming))]
    wanted = tuple(node.needed(i) for i in range(count) if i != _LENGTHS)
    found = emit.op(f"remat::{node.op}Grad", *inputs, *given, outputs=wanted, **node.attributes)
    return (*found[:_LENGTHS], None, *found[_LENGTHS:])[: len(node.inputs)]


@gradient("remat::RNNGrad", "remat::GRUGrad", "remat::LSTMGrad")
def double_backward(emit: Emit, node: ForwardNode, *incoming: Val | None) -> InputGradients:
    """Unsupported: the steps run inside one node. Raises CannotDifferentiate."""
    op = node.op.removeprefix("remat::").removesuffix("Grad")
    raise CannotDifferentiate(
        f"the second-order gradient of {op}, whose steps run inside one node",
        "expand it to a Scan first: the pass `expand_recurrent`, or `graph.recurrent.expand_rnns`",
    )


@gradient("remat::LSTMUnit")
def lstm_unit(emit: Emit, node: ForwardNode, dh: Val | None, dc: Val | None = None) -> InputGradients:
    _, cell, gates, *_ = node.inputs
    wanted = tuple(node.needed(i) for i in range(3))
    found = emit.op(
        "remat::LSTMUnitGrad", cell, gates, node.input(3), node.input(4), dh, dc, outputs=wanted, **node.attributes
    )
    return (*found, None, None)[: len(node.inputs)]


@gradient("remat::GRUUnit")
def gru_unit(emit: Emit, node: ForwardNode, dh: Val | None) -> InputGradients:
    hidden, gates, *_ = node.inputs
    wanted = tuple(node.needed(i) for i in range(2))
    found = emit.op(
        "remat::GRUUnitGrad", hidden, gates, node.input(2), node.input(3), dh, outputs=wanted, **node.attributes
    )
    return (*found, None, None)[: len(node.inputs)]
