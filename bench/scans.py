"""Models written as one Scan: a transformer over its layers, weights stacked, and a recurrence over time.

x ──▶ Scan over [layers, ...] weights ──▶ y ──▶ loss          h0 ──▶ Scan over x[0] .. x[T-1] ──▶ h ──▶ loss
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from graph.builder.builder import Builder
from graph.ir import Body, Graph, Role, TensorType

FLOAT = "float32"


def transformer(layers: int = 32, tokens: int = 1024, width: int = 1024, heads: int = 16) -> Graph:
    """A decoder with pre-norm layers as one Scan, up to its loss; every weight is one parameter of all layers."""
    b = Builder(f"transformer of {layers} layers as one Scan")
    shapes = {
        "gain_1": (width,),
        "bias_1": (width,),
        "w_q": (width, width),
        "w_k": (width, width),
        "w_v": (width, width),
        "w_o": (width, width),
        "gain_2": (width,),
        "bias_2": (width,),
        "w_up": (width, 4 * width),
        "w_down": (4 * width, width),
    }
    hidden = TensorType(FLOAT, (tokens, width))
    x = b.value("x", hidden, Role.INPUT)
    stacks = [b.value(name, TensorType(FLOAT, (layers, *shape)), Role.PARAMETER) for name, shape in shapes.items()]
    layer = Builder("layer")
    state = layer.value("x", hidden, Role.INPUT)
    weights = {name: layer.value(name, TensorType(FLOAT, shape), Role.INPUT) for name, shape in shapes.items()}
    out = _feed_forward(layer, _attention(layer, state, weights, tokens, width, heads), weights)
    body = Body(_closed(layer, [out]))
    (y,) = b.node(
        "Scan",
        [x, *stacks],
        name="layers",
        outputs=["y"],
        types=[hidden],
        attributes={"num_scan_inputs": len(stacks)},
        bodies=MappingProxyType({"body": body}),
    )
    return _with_loss(b, y)


def _attention(b: Builder, x: int, w: Mapping[str, int], tokens: int, width: int, heads: int) -> int:
    (normed, *_) = b.node("LayerNormalization", [x, w["gain_1"], w["bias_1"]], outputs=["normed_1"])
    split = b.constant(np.array([tokens, heads, width // heads]), "split")
    parts = []
    for name, order in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        (flat,) = b.node("MatMul", [normed, w[f"w_{name}"]], outputs=[f"{name}_flat"])
        (cut,) = b.node("Reshape", [flat, split], outputs=[f"{name}_cut"])
        parts += b.node("Transpose", [cut], outputs=[name], attributes={"perm": order})
    q, k, v = parts
    (scores,) = b.node("MatMul", [q, k], outputs=["scores"])
    scale = b.constant(np.array((width / heads) ** -0.5, np.float32), "scale")
    (scaled,) = b.node("Mul", [scores, scale], outputs=["scaled"])
    (weights,) = b.node("Softmax", [scaled], outputs=["weights"], attributes={"axis": -1})
    (context,) = b.node("MatMul", [weights, v], outputs=["context"])
    (turned,) = b.node("Transpose", [context], outputs=["turned"], attributes={"perm": [1, 0, 2]})
    (joined,) = b.node("Reshape", [turned, b.constant(np.array([tokens, width]), "joined_shape")], outputs=["joined"])
    (projected,) = b.node("MatMul", [joined, w["w_o"]], outputs=["projected"])
    return b.node("Add", [x, projected], outputs=["attended"])[0]


def _feed_forward(b: Builder, x: int, w: Mapping[str, int]) -> int:
    (normed, *_) = b.node("LayerNormalization", [x, w["gain_2"], w["bias_2"]], outputs=["normed_2"])
    (up,) = b.node("MatMul", [normed, w["w_up"]], outputs=["up"])
    (active,) = b.node("Gelu", [up], outputs=["active"])
    (down,) = b.node("MatMul", [active, w["w_down"]], outputs=["down"])
    return b.node("Add", [x, down], outputs=["x_next"])[0]


def recurrence(steps: int = 1000, batch: int = 256, width: int = 1024) -> Graph:
    """h = tanh(h u + x w + b) for every x in time, up to the loss of the last h; x is read, not differentiated."""
    b = Builder(f"recurrence of {steps} steps")
    row, square = TensorType(FLOAT, (batch, width)), TensorType(FLOAT, (width, width))
    h0 = b.value("h0", row, Role.INPUT)
    inputs = b.value("xs", TensorType(FLOAT, (steps, 1, 8)), Role.INPUT)
    u, bias = b.value("u", square, Role.PARAMETER), b.value("b", TensorType(FLOAT, (width,)), Role.PARAMETER)
    w = b.value("w", TensorType(FLOAT, (8, width)), Role.PARAMETER)
    step = Builder("step")
    h = step.value("h", row, Role.INPUT)
    x = step.value("x", TensorType(FLOAT, (1, 8)), Role.INPUT)
    captured = {v: step.value(b.values[v].name, b.values[v].type, Role.INPUT) for v in (u, w, bias)}
    (from_h,) = step.node("MatMul", [h, captured[u]], outputs=["from_h"])
    (from_x,) = step.node("MatMul", [x, captured[w]], outputs=["from_x"])
    (sum_,) = step.node("Add", [from_h, from_x], outputs=["sum"])
    (biased,) = step.node("Add", [sum_, captured[bias]], outputs=["biased"])
    (next_,) = step.node("Tanh", [biased], outputs=["h_next"])
    body = Body(_closed(step, [next_], formal=(h, x)), tuple((inner, v) for v, inner in captured.items()))
    (last,) = b.node(
        "Scan",
        [h0, inputs],
        name="steps",
        outputs=["h"],
        types=[row],
        attributes={"num_scan_inputs": 1},
        bodies=MappingProxyType({"body": body}),
    )
    return _with_loss(b, last)


def _closed(b: Builder, outputs: list[int], formal: tuple[int, ...] = ()) -> Graph:
    """The nested graph of a builder; all its inputs are formal unless said otherwise."""
    inputs = formal or tuple(b.inputs)
    return Graph(b.name, tuple(b.values), tuple(b.nodes), tuple(outputs), tuple(inputs), b.opset)


def _with_loss(b: Builder, y: int) -> Graph:
    (square,) = b.node("Mul", [y, y])
    (loss,) = b.node("ReduceMean", [square], outputs=["loss"], attributes={"keepdims": 0})
    return b.build([loss])
