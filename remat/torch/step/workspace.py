"""Workspace of ops that were not measured: what PyTorch's CPU kernels hold beyond inputs and outputs.

Found by measuring (`capture(..., measure=True)`), in float32 on one thread with PyTorch 2.13; `bench/torch_training.py`
shows how far peaks are off with these figures. Kernels of GPUs and of other types are not modelled: 0.

Convolutions have a module of their own. Layer norms copy gradients and inputs that are not contiguous. Arithmetic on
tensors of several dtypes converts operands to that of the result first. Gloo gathers into memory of its own and copies
from there; it reduces a copy of what a reduce-scatter reads.

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from remat.torch.step.convolution_workspace import Convolution
from remat.torch.step.joint import BATCH_NORM_GRADIENT, tensors_of

aten = torch.ops.aten


def workspace_of(node: Any) -> int:
    """Bytes of workspace of one run on a CPU; 0 where they are not known."""
    rule = RULES.get(node.target)
    results = tensors_of(node)
    if rule is None or not results or results[0].device.type != "cpu":
        return 0
    if rule not in ANY_TYPE and results[0].dtype != torch.float32:
        return 0
    return rule(results[0], *fx.map_arg(node.args, lambda source: source.meta["val"]))


def _convolution(result: Any, data: Any, weight: Any, bias: Any, stride: Any, padding: Any, *others: Any) -> int:
    dilation, is_transposed, _, groups = others
    return Convolution(data, weight, result, stride, padding, dilation, is_transposed, groups).forward()


def _convolution_gradient(
    result: Any, gradient: Any, data: Any, weight: Any, bias: Any, stride: Any, padding: Any, *others: Any
) -> int:
    dilation, is_transposed, _, groups, (of_data, of_weight, of_bias) = others
    convolution = Convolution(data, weight, gradient, stride, padding, dilation, is_transposed, groups)
    return convolution.gradients(of_data, of_weight, of_bias)


def _made_contiguous(*tensors: Any) -> int:
    return sum(0 if tensor.is_contiguous() else int(tensor.nbytes) for tensor in tensors)


def _norm(result: Any, data: Any, *_: Any) -> int:
    return _made_contiguous(data)


def _norm_gradient(result: Any, gradient: Any, data: Any, *_: Any) -> int:
    return _made_contiguous(gradient, data)


def _as_the_result(result: Any, *_: Any) -> int:
    return int(result.nbytes)


def _converted(result: Any, *operands: Any) -> int:
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor) and operand.dim()]
    return sum(tensor.numel() * result.itemsize for tensor in tensors if tensor.dtype != result.dtype)


def _sent(result: Any, data: Any, *_: Any) -> int:
    return int(data.nbytes)


def _sent_beside(result: Any, output: Any, data: Any, *_: Any) -> int:
    return int(data.nbytes)


def _received(result: Any, *_: Any) -> int:
    return int(result.nbytes)


ANY_TYPE = (_converted, _sent, _sent_beside, _received)
RULES: dict[Any, Callable[..., int]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_gradient,
    BATCH_NORM_GRADIENT: _as_the_result,
    aten.native_layer_norm.default: _norm,
    aten.native_layer_norm_backward.default: _norm_gradient,
    aten.native_dropout.default: _as_the_result,
    aten.native_dropout_backward.default: _as_the_result,
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), _converted),
}
if torch.distributed.is_available():
    RULES |= {
        torch.ops.c10d._allgather_base_.default: _received,
        torch.ops.c10d._reduce_scatter_base_.default: _sent_beside,
        torch.ops._c10d_functional.all_gather_into_tensor.default: _received,
        torch.ops._c10d_functional.reduce_scatter_tensor.default: _sent,
    }
