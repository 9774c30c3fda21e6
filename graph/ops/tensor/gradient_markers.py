"""Identity ops in the forward pass that change the gradient."""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.registry.registry import Call, body, op
from graph.ops.tensor.shape import no_work


def _same(call: Call) -> tuple[TensorType | None, ...]:
    return (call.inputs[0],)


@op("remat::GradientScale", infer=_same, views=((0, 0),), work=no_work)
def gradient_scale(call: Call, x: np.ndarray) -> np.ndarray:
    """The input; its gradient is `scale` times that of the output. The default -1 reverses the gradient."""
    return x


@body("remat::GradientScale")
def _same_value(emit: Emit, call: Call, x: Val) -> tuple[Val, ...]:
    return (emit.op("Identity", x),)


def _none(call: Call) -> tuple[TensorType | None, ...]:
    return ()


@op("remat::ZeroGradient", infer=_none, work=no_work, shape_only=(0,))
def zero_gradient(call: Call, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """No output; its input gets a zero gradient, for rules that require one."""
    return ()


@body("remat::ZeroGradient")
def _nothing(emit: Emit, call: Call, x: Val) -> tuple[Val, ...]:
    return ()
