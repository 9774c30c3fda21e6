"""Convolutions and products with what is fused to them: transposition, scale, sum, activation, state."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.composite.activations import swish
from graph.ops.numeric.by_body import Unsupported, composite
from graph.ops.numeric.precision import require_input_type
from graph.ops.registry.registry import HEAVY, Call

#: Activation of a FusedConv -> names of its parameters, in order.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


def _product(e: Emit, call: Call, a: Val, b: Val) -> Val:
    sides = []
    for x, side in ((a, "A"), (b, "B")):
        if call.attribute(f"transBatch{side}", 0):  # the first axis moves behind the other batch axes
            x = e.transpose(x, [*range(1, x.rank - 1), 0, x.rank - 1])
        if call.attribute(f"trans{side}", 0) and x.rank > 1:
            x = e.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])
        sides.append(x)
    y, alpha = e.matmul(*sides), float(call.attribute("alpha", 1.0))
    return y if alpha == 1 else e.mul(y, e.scalar_like(alpha, y))


def _convolution(e: Emit, call: Call, x: Val, w: Val, bias: Val | None = None, skip: Val | None = None) -> Val:
    attributes = {k: v for k, v in call.attributes.items() if not k.startswith("activation")}
    y = e.op("Conv", *_present(x, w, bias), **attributes)
    y = y if skip is None else e.add(y, skip)
    activation, numbers = str(call.attribute("activation", "")), list(call.attribute("activation_params", ()))
    if not activation:
        return y
    if activation == "Clip":
        return e.op("Clip", y, *(e.scalar_like(float(n), y) for n in numbers))  # type: ignore[no-any-return]
    if activation not in _PARAMETERS:
        raise Unsupported(f"activation {activation!r}; {', '.join(_PARAMETERS)} and Clip are known")
    return e.op(activation, y, **dict(zip(_PARAMETERS[activation], numbers, strict=False)))  # type: ignore[no-any-return]


def _present(*operands: Val | None) -> list[Val]:
    return [x for x in operands if x is not None]


def _causal_convolution(
    e: Emit, call: Call, x: Val, w: Val, bias: Val | None = None, state: Val | None = None
) -> tuple[Val | None, ...]:
    """(output, last entries of the padded input): `state`, else zeros, stands before the input."""
    activation = str(call.attribute("activation", "none"))
    if activation not in ("none", "silu", "swish"):
        raise Unsupported(f"activation {activation!r}; none, silu and swish are known")
    batch, channels, length = require_input_type(x.type, "input").shape
    before = w.shape[2] - 1
    if state is None:
        state = e.expand(e.scalar_like(0, x), (batch, channels, before))
    padded = e.op("Concat", state, x, axis=2)
    y = e.op("Conv", *_present(padded, w, bias), group=channels)
    last = (
        e.op("Slice", padded, e.ints([length]), e.ints([length + before]), e.ints([2])) if any(call.used[1:]) else None
    )
    return y if activation == "none" else swish(e, y), last


composite("com.microsoft::FusedMatMul", _product, recompute=HEAVY)
composite("com.microsoft::FusedConv", _convolution, recompute=HEAVY)
composite("CausalConvWithState", _causal_convolution, recompute=HEAVY)
