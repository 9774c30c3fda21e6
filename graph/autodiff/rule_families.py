"""All modules of gradient rules; importing this module registers them. To add a module, add it to FAMILIES."""

from __future__ import annotations

from graph.autodiff.gradients.control_flow import call, if_, loop_scan
from graph.autodiff.gradients.rules import gradient_markers, non_differentiable
from graph.autodiff.gradients.rules.nn import (
    activation,
    attention,
    convolution,
    dropout,
    loss,
    normalization,
    pooling,
    rnn,
    softmax,
)
from graph.autodiff.gradients.rules.numeric import arithmetic, elementwise, matmul, reduce
from graph.autodiff.gradients.rules.signal import fourier, quantize, sampling
from graph.autodiff.gradients.rules.tensor import gather, resize, shape

FAMILIES = (
    activation,
    attention,
    convolution,
    dropout,
    loss,
    normalization,
    pooling,
    rnn,
    softmax,
    arithmetic,
    elementwise,
    matmul,
    reduce,
    fourier,
    quantize,
    sampling,
    gather,
    resize,
    shape,
    gradient_markers,
    non_differentiable,
    call,
    if_,
    loop_scan,
)
