"""Elementwise ops of MXNet."""

from __future__ import annotations

import math

from graph.builder.emit import Emit
from graph.formats.mxnet.ops.table import MXNET, dtype_of
from graph.formats.shared import elementwise
from graph.formats.shared.attributes import number
from graph.formats.shared.elementwise import squared, unary, with_attributes, with_scalar
from graph.formats.shared.op_helpers import scaled, shifted
from graph.formats.shared.op_table import OpUse, TranslationRule, Unmapped
from graph.ir import Val

UNARY = {
    **elementwise.capitalized(
        "relu sigmoid tanh softsign exp log sqrt abs sign floor ceil reciprocal sin cos tan sinh cosh erf"
    ),
    **{f"A{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "Identity": "identity _copy",
    "Neg": "negative _np_negative",
    "Round": "rint",
}
BINARY = {
    "Add": "elemwise_add _plus _Plus _add _grad_add broadcast_add broadcast_plus Add passthrough_add",
    "Sub": "elemwise_sub _minus _Minus _sub broadcast_sub broadcast_minus Sub",
    "Mul": "elemwise_mul _mul _Mul broadcast_mul Mul",
    "Div": "elemwise_div _div _Div broadcast_div Div",
    "Mod": "broadcast_mod _mod _Mod",
    "Pow": "_power _Power broadcast_power elemwise_pow broadcast_pow",
    "Max": "_maximum _Maximum broadcast_maximum broadcast_max",
    "Min": "_minimum _Minimum broadcast_minimum broadcast_min",
}
SCALARS = {
    "Add": "_plus_scalar _PlusScalar AddScalar __add_scalar__",
    "Sub": "_minus_scalar _MinusScalar SubScalar __sub_scalar__",
    "Mul": "_mul_scalar _MulScalar MulScalar __mul_scalar__",
    "Div": "_div_scalar _DivScalar __div_scalar__",
    "Pow": "_power_scalar _PowerScalar pow_scalar __pow_scalar__",
    "Max": "_maximum_scalar _MaximumScalar",
    "Min": "_minimum_scalar _MinimumScalar",
    "Mod": "_mod_scalar _ModScalar __mod_scalar__",
}
REVERSED = {
    "Sub": "_rminus_scalar _RMinusScalar RSubScalar __rsub_scalar__",
    "Div": "_rdiv_scalar _RDivScalar __rdiv_scalar__",
    "Pow": "_rpower_scalar _RPowerScalar __rpow_scalar__",
    "Mod": "_rmod_scalar _RModScalar __rmod_scalar__",
}
MXNET.rows(unary, UNARY)
MXNET.rows(elementwise.binary, BINARY)
MXNET.rows(lambda op: with_scalar(op, number("scalar", "exponent")), SCALARS)
MXNET.rows(lambda op: with_scalar(op, number("scalar"), reverse=True), REVERSED)


def _comparison(compare: TranslationRule) -> TranslationRule:
    """Comparison whose result has the element type of the first operand."""

    def comparison_rule(e: Emit, use: OpUse, x: Val, *more: Val) -> Val:
        return e.cast(compare(e, use, x, *more), x.dtype)

    return comparison_rule


_COMPARISONS = {
    "Equal": "equal",
    "NotEqual": "not_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "lesser",
    "LessOrEqual": "lesser_equal",
}
MXNET.rows(
    lambda op: _comparison(elementwise.binary(op)),
    {op: f"broadcast_{name} _{name}" for op, name in _COMPARISONS.items()},
)
MXNET.rows(
    lambda op: _comparison(with_scalar(op, number("scalar"))),
    {op: f"_{name}_scalar" for op, name in _COMPARISONS.items()},
)

MXNET.rules_of(
    {
        "add_n ElementWiseSum elemwise_sum _sum_n": elementwise.variadic("Sum"),
        "BlockGrad stop_gradient block_grad": unary("remat::StopGradient"),
        "square": elementwise.square,
        "rsqrt": elementwise.rsqrt,
        "log2": lambda e, use, x: scaled(e, e.op("Log", x), 1 / math.log(2)),
        "log10": lambda e, use, x: scaled(e, e.op("Log", x), 1 / math.log(10)),
        "clip": elementwise.clip(number("a_min"), number("a_max")),
        "hard_sigmoid": with_attributes(
            "HardSigmoid", alpha=number("alpha", default=0.2), beta=number("beta", default=0.5)
        ),
        "log1p": lambda e, use, x: e.op("Log", shifted(e, x, 1)),
        "expm1": lambda e, use, x: shifted(e, e.op("Exp", x), -1),
        "Cast cast amp_cast": lambda e, use, x: e.cast(x, dtype_of(use.text("dtype"))),
        "where": lambda e, use, condition, x, y: elementwise.where(e, use, e.cast(condition, "bool"), x, y),
        "_identity_with_attr_like_rhs": lambda e, use, x, like: x,
        "_contrib_div_sqrt_dim": lambda e, use, x: scaled(e, x, 1 / math.sqrt(x.shape[-1])),
    }
)


@MXNET.op("rcbrt", "cbrt")
def cube_root(e: Emit, use: OpUse, x: Val) -> Val:
    power = e.scalar_like(1 / 3, x)
    root = e.mul(e.op("Sign", x), e.op("Pow", e.op("Abs", x), power))
    return root if use.op == "cbrt" else e.op("Reciprocal", root)


@MXNET.op("smooth_l1")
def smooth_l1(e: Emit, use: OpUse, x: Val) -> Val:
    """(σx)²/2 within 1/σ² of zero, |x| - 1/(2σ²) outside."""
    sigma2 = use.number("scalar", default=1.0) ** 2
    size = e.op("Abs", x)
    near = e.op("Less", size, e.scalar_like(1 / sigma2, x))
    return e.where(near, scaled(e, squared(e, x), sigma2 / 2), shifted(e, size, -0.5 / sigma2))


@MXNET.op("Activation")
def activation(e: Emit, use: OpUse, x: Val) -> Val:
    kind = use.text("act_type")
    if kind == "log_sigmoid":
        return e.neg(e.op("Softplus", e.neg(x)))
    if kind == "softrelu":
        return e.op("Softplus", x)
    if kind not in ("relu", "sigmoid", "tanh", "softsign", "mish"):
        raise Unmapped
    return e.op(kind.capitalize(), x)


@MXNET.op("LeakyReLU")
def leaky_relu(e: Emit, use: OpUse, x: Val, gamma: Val | None = None) -> Val:
    kind, slope = use.text("act_type", default="leaky"), use.number("slope", default=0.25)
    if kind == "prelu" and gamma is not None:
        return elementwise.prelu(e, use, x, gamma)
    if kind in ("leaky", "elu"):
        return e.op("LeakyRelu" if kind == "leaky" else "Elu", x, alpha=slope)
    if kind in ("gelu", "gelu_erf", "gelu_tanh"):
        return e.op("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")
    if kind != "selu":
        raise Unmapped
    return e.op("Selu", x)
