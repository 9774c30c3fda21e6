"""All modules of gradient rules; importing this module registers them. To add a module, add it to FAMILIES."""

from __future__ import annotations

from graph.autodiff.gradients.control_flow import call, if_, loop_scan
from graph.autodiff.gradients.rules import (
    arithmetic,
    attention,
    convolution,
    elementwise,
    gather,
    gradient_markers,
    loss,
    matmul,
    non_differentiable,
    normalization,
    pooling,
    reduce,
    resize,
    rnn,
    shape,
)
from graph.autodiff.gradients.rules.signal import fourier, quantize, sampling

FAMILIES = (
    arithmetic,
    attention,
    convolution,
    elementwise,
    gather,
    gradient_markers,
    loss,
    matmul,
    non_differentiable,
    normalization,
    pooling,
    reduce,
    resize,
    rnn,
    shape,
    fourier,
    quantize,
    sampling,
    call,
    if_,
    loop_scan,
)
