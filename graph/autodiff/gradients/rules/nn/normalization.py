"""Gradients of normalizations. Statistics that the op can output are saved; others are recomputed by the gradient."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@gradient("LayerNormalization")
def layer_normalization(emit: Emit, node: ForwardNode, dz: Val, *statistics: Val | None) -> InputGradients:
    _refuse_statistics_gradient(statistics)
    x, scale, bias = node.inputs[0], node.inputs[1], node.input(2)
    axis = int(node.attribute("axis", -1))
    alike = bias is None or bias.shape == scale.shape  # else both are broadcast, each in its way
    wanted = (node.needs[0], node.needs[1], node.needed(2) and alike)
    dbias = None
    if node.needed(2) and not alike:
        dbias = emit.sum_to(dz, bias)
    if any(wanted):
        saved = node.output(1), node.output(2)
        dx, dscale, together = emit.op("remat::LayerNormGrad", dz, x, scale, *saved, outputs=wanted, axis=axis)
        return (dx, dscale, together if alike else dbias)[: len(node.inputs)]
    return None, None, dbias


@gradient("RMSNormalization")
def rms_normalization(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return _with_recomputed_statistics(emit, "remat::RMSNormGrad", node, dz)


@gradient("GroupNormalization")
def group_normalization(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return _with_recomputed_statistics(emit, "remat::GroupNormGrad", node, dz)


@gradient("InstanceNormalization")
def instance_normalization(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return _with_recomputed_statistics(emit, "remat::InstanceNormGrad", node, dz)


def _with_recomputed_statistics(emit: Emit, op: str, node: ForwardNode, dz: Val) -> InputGradients:
    """(dx, dscale, dbias) from a gradient op that recomputes the statistics."""
    wanted = (node.needs[0], node.needs[1], node.needed(2))
    found = emit.op(op, dz, node.inputs[0], node.inputs[1], outputs=wanted, **node.attributes)
    return found[: len(node.inputs)]  # type: ignore[no-any-return]


def _refuse_statistics_gradient(statistics: tuple[Val | None, ...]) -> None:
    if any(gradient is not None for gradient in statistics):
        raise CannotDifferentiate(
            "a gradient of its output statistics", "list them under `no_gradient`, or compute them by other nodes"
        )


@gradient("remat::BatchNorm")
def batch_norm(emit: Emit, node: ForwardNode, dz: Val, *statistics: Val | None) -> InputGradients:
    _refuse_statistics_gradient(statistics)
    x, scale, _ = node.inputs
    statistics = (node.output(1), node.output(2))
    return emit.op("remat::BatchNormGrad", dz, x, scale, *statistics, outputs=node.needs)  # type: ignore[no-any-return]


@gradient("BatchNormalization")
def batch_normalization(emit: Emit, node: ForwardNode, dz: Val, *running: Val | None) -> InputGradients:
    """Training mode: with recomputed batch statistics. Inference mode: an affine map of the running statistics."""
    _refuse_statistics_gradient(running)
    x, scale = node.inputs[:2]
    if node.attribute("training_mode", 0):
        epsilon = node.attribute("epsilon", 1e-5)
        # The statistics do not depend on the bias; pass the scale instead, so that the bias is not read.
        mean, inv_std = emit.op("remat::BatchNorm", x, scale, scale, outputs=(False, True, True), epsilon=epsilon)[1:]
        found = emit.op("remat::BatchNormGrad", dz, x, scale, mean, inv_std, outputs=node.needs[:3])
        return (*found, None, None)
    return _affine(emit, node, dz)


def _affine(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """y = (x - mean) r scale + bias with r = (var + epsilon)^(-1/2), all of shape [C]."""
    x, scale, _, mean, variance = node.inputs
    axes = [0, *range(2, x.rank)]
    channel = (x.shape[1], *[1] * (x.rank - 2))
    epsilon = emit.scalar_like(node.attribute("epsilon", 1e-5), variance)
    root = emit.op("Reciprocal", emit.op("Sqrt", emit.add(variance, epsilon)))
    slope = emit.cast(emit.mul(emit.cast(scale, root.dtype), root), dz.dtype)
    gradients: list[Val | None] = [None] * 5
    if node.needs[0]:
        gradients[0] = emit.mul(dz, emit.reshape(slope, channel))
    total = emit.reduce_sum(dz, axes, keepdims=False) if node.needs[2] or node.needs[3] else dz
    if node.needs[2]:
        gradients[2] = emit.cast(total, node.inputs[2].dtype)
    if node.needs[3]:
        gradients[3] = emit.cast(emit.neg(emit.mul(total, slope)), mean.dtype)
    if node.needs[1] or node.needs[4]:
        centred = emit.sub(x, emit.reshape(emit.cast(mean, x.dtype), channel))
        product = emit.cast(emit.reduce_sum(emit.mul(dz, centred), axes, keepdims=False), root.dtype)
        by_scale = emit.mul(product, root)
        if node.needs[1]:
            gradients[1] = emit.cast(by_scale, scale.dtype)
        if node.needs[4]:
            half = emit.mul(emit.cast(scale, root.dtype), emit.scalar_like(-0.5, root))
            gradients[4] = emit.mul(by_scale, emit.mul(half, emit.mul(root, root)))
    return tuple(gradients)


@gradient("LRN")
def lrn(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return (emit.op("remat::LRNGrad", dz, node.inputs[0], **node.attributes),)
