"""LSTM and GRU units: one step from gate pre-activations, without products, and its gradient.

LSTMUnit   gates = [i f o g]      c' = σ(f + bias)·c + σ(i)·tanh(g)      h' = σ(o)·tanh(c')
GRUUnit    gates = [r u g]        h' = σ(u)·h + (1 − σ(u))·tanh(g)       r is already applied in g

Semantics: Caffe2's LSTMUnit and GRUUnit. A row whose sequence has ended (time >= length) keeps its states,
or sets them to zero. States are [..., rows, size]; lengths are [rows], time is one integer; both are absent
if all sequences have full length.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL
from graph.ops.numeric.precision import downcast_like, upcast, upcast_or_none
from graph.ops.numeric.precision import require_input_type as known_type
from graph.ops.numeric.special_functions import sigmoid
from graph.ops.registry.registry import Call, Work, op

Array = np.ndarray
#: Number of gates of a unit, and of its states.
GATES = {"LSTMUnit": 4, "GRUUnit": 3}
STATES = {"LSTMUnit": 2, "GRUUnit": 1}


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the states. Raises ValueError unless the gates are GATES times as wide."""
    kind = call.op.removeprefix("remat::")
    count = STATES[kind]
    states = [known_type(t, f"state {i}") for i, t in enumerate(call.inputs[:count])]
    gates = known_type(call.inputs[count], "gates")
    state = states[0]
    if any(t != state for t in states) or len(state.shape) < 2:
        raise ValueError(f"states {', '.join(map(str, states))} must be of one type and [..., rows, size]")
    if gates.dtype != state.dtype or gates.shape != (*state.shape[:-1], GATES[kind] * state.shape[-1]):
        raise ValueError(f"gates {gates} are not {GATES[kind]} times as wide as the state {state}")
    _check_lengths(call, count + 1, state)
    return tuple(states)


def _infer_grad(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the used gradients: of the states, then of the gates."""
    kind = call.op.removeprefix("remat::").removesuffix("Grad")
    gates = known_type(call.inputs[1], "gates")
    if not gates.shape or gates.shape[-1] % GATES[kind]:
        raise ValueError(f"gates {gates} are not {GATES[kind]} gates wide")
    state = TensorType(gates.dtype, (*gates.shape[:-1], gates.shape[-1] // GATES[kind]))
    _check_lengths(call, 2, state)
    made = (*[state] * STATES[kind], gates)
    return tuple(t if is_used else None for t, is_used in zip(made, call.used, strict=False))


def _check_lengths(call: Call, position: int, state: TensorType) -> None:
    lengths = call.inputs[position] if position < len(call.inputs) else None
    if lengths is not None and lengths.shape != state.shape[-2:-1]:
        raise ValueError(f"lengths {lengths} are not one for each of {state.shape[-2]} rows")


def _work(call: Call) -> Work:
    return Work((5 * TRANSCENDENTAL + 8) * sum(t.elements for t in call.outputs[:1] if t is not None))


def _going(state: Array, lengths: Array | None, time: Array | None) -> Array | None:
    """bool[rows, 1]: rows whose sequence has not ended; None: all rows."""
    if lengths is None or time is None:
        return None
    return np.asarray(int(time.reshape(-1)[0]) < lengths)[:, None]


def _kept(call: Call, going: Array | None, new: Array, old: Array) -> Array:
    """`new`; in ended rows, the old state or zero."""
    if going is None:
        return new
    return np.asarray(np.where(going, new, 0 if call.attribute("drop_states", 0) else old), new.dtype)


def _cell(call: Call, cell: Array, gates: Array) -> tuple[Array, ...]:
    """(σ(i), σ(f), σ(o), tanh(g), new cell) of an LSTM without ended rows."""
    i, f, o, g = np.split(gates, 4, axis=-1)
    i, f, o = sigmoid(i), sigmoid(f + gates.dtype.type(call.attribute("forget_bias", 0.0))), sigmoid(o)
    g = np.tanh(g)
    return i, f, o, g, f * cell + i * g


def _lstm_body(e: Emit, call: Call, h: Val, c: Val, gates: Val, *rest: Val | None) -> tuple[Val | None, ...]:
    i, f, o, g = _split(e, gates, 4)
    cell = e.add(e.mul(_forget(e, call, f), c), e.mul(e.op("Sigmoid", i), e.op("Tanh", g)))
    hidden = e.mul(e.op("Sigmoid", o), e.op("Tanh", cell))
    keep = _keeper(e, call, h, *rest)
    return keep(hidden, h), keep(cell, c)


def _split(e: Emit, x: Val, parts: int) -> tuple[Val, ...]:
    size = x.shape[-1] // parts
    return tuple(e.op("Split", x, e.ints([size] * parts), outputs=parts, axis=x.rank - 1))


def _forget(e: Emit, call: Call, f: Val) -> Val:
    bias = call.attribute("forget_bias", 0.0)
    return e.op("Sigmoid", e.add(f, e.scalar_like(bias, f)))  # type: ignore[no-any-return]


def _keeper(
    e: Emit, call: Call, like: Val, lengths: Val | None = None, time: Val | None = None, *, drops: bool = True
) -> Callable[[Val, Val], Val]:
    """keep(new, old): new; in ended rows old, or zero if states are dropped and `drops`."""
    if lengths is None or time is None:
        return lambda new, old: new
    going = e.op("Less", e.cast(e.reshape(time, (1,)), lengths.dtype), lengths)
    going = e.reshape(going, (*[1] * (like.rank - 2), like.shape[-2], 1))
    drop = drops and bool(call.attribute("drop_states", 0))
    return lambda new, old: e.where(going, new, e.scalar_like(0, old) if drop else old)


@op("remat::LSTMUnit", infer=_infer, work=_work, gradient_reads=("i1", "i2", "i3", "i4"), body=_lstm_body)
def lstm_unit(
    call: Call, h: Array, c: Array, gates: Array, lengths: Array | None = None, time: Array | None = None
) -> tuple[Array, ...]:
    """hidden, cell, gates, lengths, time -> hidden, cell."""
    _, _, o, _, cell = _cell(call, upcast(c), upcast(gates))
    going = _going(h, lengths, time)
    new = _kept(call, going, o * np.tanh(cell), upcast(h)), _kept(call, going, cell, upcast(c))
    return downcast_like(new[0], h), downcast_like(new[1], c)


def _lstm_grad_body(
    e: Emit,
    call: Call,
    c: Val,
    gates: Val,
    lengths: Val | None = None,
    time: Val | None = None,
    dh: Val | None = None,
    dc: Val | None = None,
) -> tuple[Val | None, ...]:
    zero = e.zeros(c.type)
    dh, dc = zero if dh is None else dh, zero if dc is None else dc
    i, f, o, g = _split(e, gates, 4)
    i, f, o, g = e.op("Sigmoid", i), _forget(e, call, f), e.op("Sigmoid", o), e.op("Tanh", g)
    t = e.op("Tanh", e.add(e.mul(f, c), e.mul(i, g)))
    one = e.scalar_like(1, c)

    def through(y: Val) -> Val:
        return e.mul(y, e.sub(one, y))

    dcell = e.add(dc, e.mul(e.mul(dh, o), e.sub(one, e.mul(t, t))))
    parts = [
        e.mul(e.mul(dcell, g), through(i)),
        e.mul(e.mul(dcell, c), through(f)),
        e.mul(e.mul(dh, t), through(o)),
        e.mul(e.mul(dcell, i), e.sub(one, e.mul(g, g))),
    ]
    keep, drop = _keeper(e, call, c, lengths, time), _keeper(e, call, c, lengths, time, drops=False)
    gradients = (
        keep(zero, dh),
        keep(e.mul(dcell, f), dc),
        e.op("Concat", *(drop(p, zero) for p in parts), axis=c.rank - 1),
    )
    return tuple(v if is_used else None for v, is_used in zip(gradients, call.used, strict=False))


@op("remat::LSTMUnitGrad", infer=_infer_grad, work=_work, body=_lstm_grad_body)
def lstm_unit_grad(
    call: Call,
    c: Array,
    gates: Array,
    lengths: Array | None = None,
    time: Array | None = None,
    dh: Array | None = None,
    dc: Array | None = None,
) -> tuple[Array | None, ...]:
    """cell, gates, lengths, time, dhidden, dcell -> gradients of hidden, cell and gates."""
    cell, zero = upcast(c), np.zeros(c.shape, upcast(c).dtype)
    h_in, c_in = (zero if d is None else upcast(d) for d in (dh, dc))
    i, f, o, g, new = _cell(call, cell, upcast(gates))
    t = np.tanh(new)
    dcell = c_in + h_in * o * (1 - t * t)
    parts = (dcell * g * i * (1 - i), dcell * cell * f * (1 - f), h_in * t * o * (1 - o), dcell * i * (1 - g * g))
    going = _going(c, lengths, time)
    dgates = np.concatenate([p if going is None else np.where(going, p, 0) for p in parts], axis=-1)
    gradients = (_kept(call, going, zero, h_in), _kept(call, going, dcell * f, c_in), dgates)
    return tuple(
        downcast_like(np.array(a, order="C"), c) if is_used else None
        for a, is_used in zip(gradients, call.used, strict=False)
    )


def _gru_body(e: Emit, call: Call, h: Val, gates: Val, *rest: Val | None) -> tuple[Val | None, ...]:
    _, u, g = _split(e, gates, 3)
    u = e.op("Sigmoid", u)
    new = e.add(e.mul(u, h), e.mul(e.sub(e.scalar_like(1, u), u), e.op("Tanh", g)))
    return (_keeper(e, call, h, *rest)(new, h),)


@op("remat::GRUUnit", infer=_infer, work=_work, gradient_reads=("i0", "i1", "i2", "i3"), body=_gru_body)
def gru_unit(
    call: Call, h: Array, gates: Array, lengths: Array | None = None, time: Array | None = None
) -> tuple[Array, ...]:
    """hidden, gates, lengths, time -> hidden."""
    _, u, g = np.split(upcast(gates), 3, axis=-1)
    u = sigmoid(u)
    new = u * upcast(h) + (1 - u) * np.tanh(g)
    return (downcast_like(_kept(call, _going(h, lengths, time), new, upcast(h)), h),)


def _gru_grad_body(
    e: Emit, call: Call, h: Val, gates: Val, lengths: Val | None = None, time: Val | None = None, dh: Val | None = None
) -> tuple[Val | None, ...]:
    zero = e.zeros(h.type)
    dh = zero if dh is None else dh
    _, u, g = _split(e, gates, 3)
    u, g, one = e.op("Sigmoid", u), e.op("Tanh", g), e.scalar_like(1, h)
    du = e.mul(e.mul(dh, e.sub(h, g)), e.mul(u, e.sub(one, u)))
    dg = e.mul(e.mul(dh, e.sub(one, u)), e.sub(one, e.mul(g, g)))
    keep, drop = _keeper(e, call, h, lengths, time), _keeper(e, call, h, lengths, time, drops=False)
    gradients = keep(e.mul(dh, u), dh), e.op("Concat", zero, drop(du, zero), drop(dg, zero), axis=h.rank - 1)
    return tuple(v if is_used else None for v, is_used in zip(gradients, call.used, strict=False))


@op("remat::GRUUnitGrad", infer=_infer_grad, work=_work, body=_gru_grad_body)
def gru_unit_grad(
    call: Call, h: Array, gates: Array, lengths: Array | None = None, time: Array | None = None, dh: Array | None = None
) -> tuple[Array | None, ...]:
    """hidden, gates, lengths, time, dhidden -> gradients of hidden and gates."""
    state, zero = upcast(h), np.zeros(h.shape, upcast(h).dtype)
    incoming = upcast_or_none(dh)
    d = zero if incoming is None else incoming
    _, u, g = np.split(upcast(gates), 3, axis=-1)
    u, g = sigmoid(u), np.tanh(g)
    parts = (zero, d * (state - g) * u * (1 - u), d * (1 - u) * (1 - g * g))
    going = _going(h, lengths, time)
    dgates = np.concatenate([p if going is None else np.where(going, p, 0) for p in parts], axis=-1)
    gradients = (_kept(call, going, d * u, d), dgates)
    return tuple(
        downcast_like(np.array(a, order="C"), h) if is_used else None
        for a, is_used in zip(gradients, call.used, strict=False)
    )
