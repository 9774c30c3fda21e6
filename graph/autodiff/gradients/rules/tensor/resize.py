"""Gradient of resizing: each output element is scattered to the input elements it was interpolated from."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.autodiff.gradients.rules.tensor.shape import constant_of
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("Resize")
def resize(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    given = {
        name: constant_of(emit, node.input(position), name).tolist()
        for position, name in ((1, "roi"), (2, "scales"), (3, "sizes"))
        if node.input(position) is not None and node.input(position).type.elements
    }
    dx = emit.op("remat::ResizeGrad", dz, **node.attributes, **given, input_shape=list(node.inputs[0].shape))
    return (dx, *[None] * (len(node.inputs) - 1))


@gradient("Upsample")
def upsample(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The deprecated form of Resize: asymmetric coordinates, nearest rounds down."""
    scales = node.attribute("scales") or constant_of(emit, node.input(1), "scales").tolist()
    dx = emit.op(
        "remat::ResizeGrad",
        dz,
        mode=node.attribute("mode", "nearest"),
        scales=list(scales),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        input_shape=list(node.inputs[0].shape),
    )
    return (dx, *[None] * (len(node.inputs) - 1))
