"""Gradient rules against torch: the same op, the same numbers, the same head gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.ir import ABSENT, Role
from graph.ops.registry.onnx_fallback import type_of_array
from tests.graph.evaluate import evaluate

CHANCE = np.random.default_rng(11)


def real(*shape: int) -> np.ndarray:
    return CHANCE.uniform(-2, 2, shape)


def ours(
    op: str, inputs: Sequence[np.ndarray | None], attributes: dict[str, Any], outputs: int, heads: list[np.ndarray]
) -> list[np.ndarray | None]:
    """Gradients of the floating inputs by our rule, with the given head gradients of the first outputs."""
    builder, ids, given = Builder("one op"), [], {}
    for i, array in enumerate(inputs):
        if array is None:
            ids.append(ABSENT)
            continue
        floating = array.dtype == np.float64
        role = Role.PARAMETER if floating else Role.CONSTANT
        ids.append(builder.value(f"x{i}", type_of_array(array), role, data=None if floating else array))
        given[f"x{i}"] = array
    made = builder.node(op, ids, attributes=attributes, outputs=[f"y{i}" for i in range(outputs)])
    for i, head in enumerate(heads):
        builder.value(f"d{i}", type_of_array(head), Role.INPUT)
        given[f"d{i}"] = head
    names = [f"y{i}" for i in range(len(heads))]
    step = differentiate(builder.build(made), names, head_gradients={n: f"d{n[1:]}" for n in names})
    found = evaluate(step, given)
    by_name = {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}
    return [by_name.get(f"x{i}") for i in range(len(inputs))]


def agree(
    op: str, function: Callable[..., Any], inputs: Sequence[np.ndarray | None], outputs: int = 1, **attributes: Any
) -> None:
    """Assert that torch's gradients of `function` are those of our rule for `op`."""
    tensors = [None if x is None else torch.tensor(x, requires_grad=x.dtype == np.float64) for x in inputs]
    result = function(*tensors)
    results: tuple[Tensor, ...] = result if isinstance(result, tuple) else (result,)
    heads = [real(*r.shape) for r in results]
    torch.autograd.backward(results, [torch.tensor(head) for head in heads])
    for i, (x, found) in enumerate(zip(tensors, ours(op, inputs, attributes, outputs, heads), strict=True)):
        if x is not None and x.requires_grad:
            assert found is not None
            np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=f"input {i} of {op}")


ACTIVATIONS = {
    "Relu": f.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Elu": f.elu,
    "Softplus": f.softplus,
    "Softsign": f.softsign,
    "HardSwish": f.hardswish,
    "Mish": f.mish,
    "Gelu": f.gelu,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Atan": torch.atan,
    "Abs": torch.abs,
    "Asinh": torch.asinh,
}


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activations_agree(op):
    agree(op, ACTIVATIONS[op], [real(4, 5)])


def test_leaky_relu_with_a_slope_agrees():
    agree("LeakyRelu", lambda x: f.leaky_relu(x, 0.2), [real(4, 5)], alpha=0.2)


def test_selu_with_the_numbers_of_its_paper_agrees():
    agree("Selu", f.selu, [real(4, 5)], alpha=1.6732632423543772, gamma=1.0507009873554805)


def test_gelu_by_tanh_agrees():
    agree("Gelu", lambda x: f.gelu(x, approximate="tanh"), [real(4, 5)], approximate="tanh")


def test_clip_agrees():
    low, high = np.array(-0.5, np.float32), np.array(1.0, np.float32)
    x = real(4, 5)
    builder = Builder("clip")
    value = builder.value("x", type_of_array(x), Role.PARAMETER)
    bounds = [builder.constant(np.asarray(bound, np.float64)) for bound in (low, high)]
    (y,) = builder.node("Clip", [value, *bounds], outputs=["y"])
    step = differentiate(builder.build([y]), ["y"])
    t = torch.tensor(x, requires_grad=True)
    t.clamp(-0.5, 1.0).sum().backward()
    np.testing.assert_allclose(evaluate(step, {"x": x})[step.values[step.gradients[0][1]].name], t.grad.numpy())


@pytest.mark.parametrize(("shape", "other"), [((3, 4), (4,)), ((2, 1, 4), (3, 1)), ((2, 3), (2, 3))])
@pytest.mark.parametrize(
    ("op", "function"),
    [("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul), ("Div", torch.div), ("Max", torch.maximum)],
)
def test_arithmetic_with_broadcasting_agrees(op, function, shape, other):
    agree(op, function, [real(*shape), real(*other) + 3 * (op == "Div")])


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((5, 2, 3, 4), (2, 4, 3)), ((4,), (4, 2)), ((2, 3, 4), (4,))]
)
def test_matrix_products_agree(a, b):
    agree("MatMul", torch.matmul, [real(*a), real(*b)])


def test_gemm_agrees():
    agree("Gemm", lambda a, b, c: a @ b.T + c, [real(3, 4), real(5, 4), real(5)], transB=1)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("ReduceSum", lambda x: x.sum((0, 2))),
        ("ReduceMean", lambda x: x.mean((0, 2))),
        ("ReduceL2", lambda x: torch.linalg.vector_norm(x, dim=(0, 2))),
        ("ReduceMax", lambda x: x.amax((0, 2))),
        ("ReduceLogSumExp", lambda x: x.logsumexp((0, 2))),
    ],
)
def test_reductions_agree(op, function):
    axes = np.array([0, 2])
    x = torch.tensor(real(3, 4, 2), requires_grad=True)
    y = function(x)
    head = real(*y.shape)
    y.backward(torch.tensor(head))
    found = ours(op, [x.detach().numpy(), axes], {"keepdims": 0}, 1, [head])
    np.testing.assert_allclose(found[0], x.grad.numpy(), rtol=1e-9)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_agrees(axis):
    agree("Softmax", lambda x: x.softmax(axis), [real(2, 3, 4)], axis=axis)
    agree("LogSoftmax", lambda x: x.log_softmax(axis), [real(2, 3, 4)], axis=axis)


@pytest.mark.parametrize(
    ("rank", "stride", "pad", "dilation", "group"), [(1, 2, 1, 1, 1), (2, 1, 2, 2, 2), (2, 2, 1, 1, 4), (3, 1, 0, 1, 1)]
)
def test_convolutions_agree(rank, stride, pad, dilation, group):
    function = (f.conv1d, f.conv2d, f.conv3d)[rank - 1]
    inputs = [real(2, 4, *(6, 7, 5)[:rank]), real(8, 4 // group, *(3, 2, 2)[:rank]), real(8)]
    agree(
        "Conv",
        lambda x, w, b: function(x, w, b, stride, pad, dilation, group),
        inputs,
        strides=[stride] * rank,
        pads=[pad] * (2 * rank),
        dilations=[dilation] * rank,
        group=group,
    )


@pytest.mark.parametrize(
    ("rank", "stride", "pad", "extra", "dilation", "group"),
    [(1, 2, 1, 1, 1, 1), (2, 2, 0, 1, 1, 2), (2, 1, 1, 0, 2, 1)],
)
def test_transposed_convolutions_agree(rank, stride, pad, extra, dilation, group):
    function = (f.conv_transpose1d, f.conv_transpose2d)[rank - 1]
    inputs = [real(2, 4, *(6, 7)[:rank]), real(4, 6 // group, *(3, 2)[:rank]), real(6)]
    agree(
        "ConvTranspose",
        lambda x, w, b: function(x, w, b, stride, pad, extra, group, dilation),
        inputs,
        strides=[stride] * rank,
        pads=[pad] * (2 * rank),
        output_padding=[extra] * rank,
        dilations=[dilation] * rank,
        group=group,
    )


@pytest.mark.parametrize("ceil", [False, True])
def test_pools_agree(ceil):
    x, how = real(2, 3, 7, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": int(ceil)}
    agree("MaxPool", lambda t: f.max_pool2d(t, (3, 2), 2, 1, ceil_mode=ceil), [x], **how)
    agree("AveragePool", lambda t: f.avg_pool2d(t, (3, 2), 2, 1, ceil, count_include_pad=False), [x], **how)
    agree("GlobalAveragePool", lambda t: t.mean((2, 3), keepdim=True), [x])
    agree("GlobalMaxPool", lambda t: t.amax((2, 3), keepdim=True), [x])


def test_normalisations_agree():
    x, w, b = real(4, 6, 5), real(6), real(6)
    agree("InstanceNormalization", lambda x, w, b: f.instance_norm(x, weight=w, bias=b), [x, w, b], epsilon=1e-5)
    agree("GroupNormalization", lambda x, w, b: f.group_norm(x, 3, w, b), [x, w, b], num_groups=3, epsilon=1e-5)
    agree(
        "remat::BatchNorm",
        lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        [x, w, b],
        outputs=3,
        epsilon=1e-5,
    )


def test_layer_normalisation_agrees():
    # The standard hands its statistics out in float32, so the last digits differ.
    x, w, b = real(4, 3, 6), real(6), real(6)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    y = f.layer_norm(tensors[0], (6,), tensors[1], tensors[2])
    head = real(*y.shape)
    y.backward(torch.tensor(head))
    for t, found in zip(tensors, ours("LayerNormalization", [x, w, b], {}, 1, [head]), strict=True):
        np.testing.assert_allclose(found, t.grad.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropies_agree(reduction):
    x, labels = real(5, 4, 3), CHANCE.integers(0, 4, (5, 3))
    agree(
        "SoftmaxCrossEntropyLoss",
        lambda x, t: f.cross_entropy(x, t, reduction=reduction, ignore_index=2),
        [x, labels],
        reduction=reduction,
        ignore_index=2,
    )
    agree(
        "NegativeLogLikelihoodLoss",
        lambda x, t: f.nll_loss(x, t, reduction=reduction, ignore_index=2),
        [x, labels],
        reduction=reduction,
        ignore_index=2,
    )


def test_embeddings_agree():
    agree("Gather", lambda w, i: f.embedding(i, w), [real(7, 3), np.array([[0, 6, 6], [2, 0, 1]])])


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_resizing_agrees(mode):
    ours_mode = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}[mode]
    where = "asymmetric" if mode == "nearest" else "half_pixel"
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    agree(
        "Resize",
        lambda x, *_: f.interpolate(x, (7, 5), mode=mode),
        [real(1, 2, 4, 3), None, None, np.array([1, 2, 7, 5])],
        mode=ours_mode,
        coordinate_transformation_mode=where,
        cubic_coeff_a=-0.75,
        **more,
    )


def gates(w: Tensor, order: Sequence[int]) -> np.ndarray:
    """Torch's stacked gates in the standard's order."""
    parts = w.detach().chunk(len(order))
    return torch.cat([parts[i] for i in order]).numpy()


@pytest.mark.parametrize(("op", "order"), [("LSTM", (0, 3, 1, 2)), ("GRU", (1, 0, 2)), ("RNN", (0,))])
def test_recurrent_nets_agree(op, order):
    kind = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}[op]
    net = kind(3, 4).double()
    x = torch.tensor(real(5, 2, 3), requires_grad=True)
    y, _ = net(x)
    head = real(*y.shape)
    y.backward(torch.tensor(head))
    bias = np.concatenate([gates(net.bias_ih_l0, order), gates(net.bias_hh_l0, order)])
    weights = [gates(net.weight_ih_l0, order)[None], gates(net.weight_hh_l0, order)[None], bias[None]]
    attributes = {"hidden_size": 4, **({"linear_before_reset": 1} if op == "GRU" else {})}
    found = ours(op, [x.detach().numpy(), *weights], attributes, 1, [head[:, None]])
    expected = [
        x.grad.numpy(),
        gates(net.weight_ih_l0.grad, order)[None],
        gates(net.weight_hh_l0.grad, order)[None],
        np.concatenate([gates(net.bias_ih_l0.grad, order), gates(net.bias_hh_l0.grad, order)])[None],
    ]
    for ours_, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-8, atol=1e-10)
