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
    quantize,
    reduce,
    resize,
    rnn,
    sampling,
    shape,
    signal,
)

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
    quantize,
    reduce,
    resize,
    rnn,
    sampling,
    shape,
    signal,
    call,
    if_,
    loop_scan,
)
