"""RNN, GRU and LSTM: one matrix product for all steps of a direction, then a small one per step.

A reversed direction reverses the first `length` steps of each sequence; the padding is not moved. In the
padding the state is constant and Y is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.ir import DTYPE_BITS, TensorType
from graph.ops.numeric.precision import downcast_like, statistics_dtype, upcast
from graph.ops.registry import onnx_fallback
from graph.ops.registry.registry import HEAVY, Call, Work, op
from graph.ops.rnn import cells

Array = np.ndarray
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
CELL_FUNCTIONS: dict[str, tuple[cells.StepFn, cells.StepBackwardFn]] = {
    "RNN": (cells.rnn_step, cells.rnn_backward),
    "GRU": (cells.gru_step, cells.gru_backward),
    "LSTM": (cells.lstm_step, cells.lstm_backward),
}


@dataclass(frozen=True, slots=True)
class Direction:
    """Inputs of one direction in computing precision, time-major, in the order the direction runs."""

    index: int
    cell: cells.RnnCell
    x: Array  # (steps, batch, input)
    w: Array  # (gates*hidden, input)
    bias: Array  # (gates*hidden,), added to w·x
    state: cells.CellState  # before the first step
    is_valid: Array | None  # bool (steps, batch, 1): True before the end of the sequence; None: all
    turn: Array | None  # int64 (steps, batch): permutation of the steps; None: identity


@dataclass(frozen=True, slots=True)
class RnnInputs:
    """The inputs of a recurrent op; absent ones are None."""

    kind: str
    x: Array
    w: Array
    r: Array
    b: Array | None = None
    lengths: Array | None = None
    h: Array | None = None
    c: Array | None = None
    p: Array | None = None

    @property
    def hidden(self) -> int:
        return int(self.r.shape[2])


def directions(call: Call, given: RnnInputs) -> Iterator[Direction]:
    """The directions of the op. Raises ValueError for invalid attributes."""
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    name = text(call.attribute("direction", "forward"))
    if name not in reversals or len(reversals[name]) != given.w.shape[0]:
        raise ValueError(f"direction {name!r} does not match weights for {given.w.shape[0]} directions")
    act = activations_of(given.kind, call.attributes, given.w.shape[0])
    x = time_major(call, upcast(given.x))
    is_valid = _is_valid_step(given.lengths, x.shape[0])
    for d, is_reversed in enumerate(reversals[name]):
        turn = _reversal(given.lengths, *x.shape[:2]) if is_reversed else None
        w, r = upcast(given.w[d]), upcast(given.r[d])
        rows = len(w)
        both = np.zeros(2 * rows, x.dtype) if given.b is None else upcast(given.b[d])
        bias, recurrent = both[:rows].copy(), both[rows:]
        resets_after = given.kind == "GRU" and bool(call.attribute("linear_before_reset", 0))
        added = 2 * given.hidden if resets_after else rows
        bias[:added] += recurrent[:added]
        cell = cells.RnnCell(
            r,
            recurrent,
            None if given.p is None else upcast(given.p[d]),
            act[d * len(act) // given.w.shape[0] : (d + 1) * len(act) // given.w.shape[0]],
            bool(call.attribute("input_forget", 0)),
            resets_after,
        )
        state = (_start(call, given.h, d, x, given), _start(call, given.c, d, x, given))
        yield Direction(d, cell, permute_steps(x, turn), w, bias, state, is_valid, turn)


def run_direction(
    kind: str, direction: Direction, saved: list[cells.SavedArrays] | None = None
) -> tuple[Array, cells.CellState]:
    """Y of one direction in running order, and its last state; steps append to `saved`."""
    step, (steps, batch, width) = CELL_FUNCTIONS[kind][0], direction.x.shape
    zx = direction.x.reshape(steps * batch, width) @ direction.w.T
    zx = (zx + direction.bias).reshape(steps, batch, len(direction.w))
    state = direction.state
    y = np.empty((steps, batch, direction.cell.hidden), zx.dtype)
    for t in range(steps):
        after, kept = step(direction.cell, zx[t], state)
        y[t] = after[0]
        if direction.is_valid is not None:
            is_valid = direction.is_valid[t]
            y[t] *= is_valid
            after = (np.where(is_valid, after[0], state[0]), _where(is_valid, after[1], state[1]))
        state = after
        if saved is not None:
            saved.append(kept)
    return y, state


def _where(condition: Array, a: Array | None, b: Array | None) -> Array | None:
    return None if a is None or b is None else np.where(condition, a, b)


def _start(call: Call, given: Array | None, d: int, x: Array, of: RnnInputs) -> Array:
    """Initial state of a direction; zeros if absent."""
    if given is None:
        return np.zeros((x.shape[1], of.hidden), x.dtype)
    return upcast(given[:, d] if call.attribute("layout", 0) else given[d])


def time_major(call: Call, x: Array) -> Array:
    return np.ascontiguousarray(x.swapaxes(0, 1)) if call.attribute("layout", 0) else x


def permute_steps(x: Array, turn: Array | None) -> Array:
    """Steps in the running order of a direction; an involution."""
    return x if turn is None else np.ascontiguousarray(x[turn, np.arange(x.shape[1])])


def _reversal(lengths: Array | None, steps: int, batch: int) -> Array:
    t = np.arange(steps)[:, None]
    ends = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
    return np.where(t < ends, ends - 1 - t, t)


def _is_valid_step(lengths: Array | None, steps: int) -> Array | None:
    if lengths is None or (lengths >= steps).all():
        return None
    return np.asarray((np.arange(steps)[:, None] < lengths)[..., None])


def activations_of(kind: str, attributes: Mapping[str, Any], directions: int) -> list[cells.Activation]:
    """Activations of all directions, in order. Raises ValueError for unknown or missing ones."""
    count = directions * len(_DEFAULTS[kind])
    names = [text(n) for n in attributes.get("activations") or _DEFAULTS[kind] * directions]
    if len(names) < count:
        raise ValueError(f"activations {names} are fewer than {count}")
    found = cells.activations(
        names[:count],
        attributes.get("activation_alpha") or (),
        attributes.get("activation_beta") or (),
        attributes.get("clip") or None,
    )
    if kind != "LSTM":
        return found
    # Runtimes clip the arguments of gates only: the cell enters its last activation unclipped.
    return [replace(a, clip=None) if i % 3 == 2 else a for i, a in enumerate(found)]


def text(name: str | bytes) -> str:
    """A string attribute, which files may hold as bytes."""
    return name.decode() if isinstance(name, bytes) else name


def rnn_outputs(call: Call, given: RnnInputs) -> tuple[Array | None, ...]:
    """Y, Y_h and, in an LSTM, Y_c."""
    ys, hs, cs = [], [], []
    for direction in directions(call, given):
        y, (h, c) = run_direction(given.kind, direction)
        ys.append(permute_steps(y, direction.turn))
        hs.append(h)
        if c is not None:
            cs.append(c)
    layout = bool(call.attribute("layout", 0))
    y = np.stack(ys, axis=2).swapaxes(0, 1) if layout else np.stack(ys, axis=1)
    states = [np.stack(s, axis=1 if layout else 0) for s in ([hs, cs] if given.kind == "LSTM" else [hs])]
    results = [downcast_like(np.ascontiguousarray(a), given.x) for a in (y, *states)]
    return tuple(results[: len(call.used)])


def rnn_work(call: Call, passes: int = 1, saved: int = 0) -> Work:
    """Work of `passes` forward passes: two products and some flops per gate; workspace of one direction.

    The workspace is the input product of all steps, with `saved` further arrays as wide as the state.
    """
    x, w, r = call.inputs[:3]
    if x is None or w is None or r is None:
        return Work()
    steps, rows, hidden = x.shape[0] * x.shape[1], w.shape[1], r.shape[2]
    flops = steps * w.shape[0] * (2 * rows * (hidden + x.shape[2]) + 12 * rows)
    element_bytes = DTYPE_BITS[statistics_dtype(x.dtype)] // 8
    width = rows + saved * hidden
    return Work(passes * flops, workspace_bytes=steps * width * element_bytes)


#: Inputs that the gradients read: X, W, R, B, sequence_lens, initial_h and, in an LSTM, initial_c, P.
_READS = tuple(f"i{i}" for i in range(8))


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types by the standard. Raises ValueError for activations that it does not have."""
    types, weights = onnx_fallback.infer(call), call.inputs[1]
    if weights is not None:
        activations_of(call.op.removeprefix("ai.onnx::"), call.attributes, weights.shape[0])
    return types


@op("RNN", infer=_infer, work=rnn_work, recompute=HEAVY, gradient_reads=_READS[:6])
@op("GRU", infer=_infer, work=rnn_work, recompute=HEAVY, gradient_reads=_READS[:6])
@op("LSTM", infer=_infer, work=rnn_work, recompute=HEAVY, gradient_reads=_READS)
def rnn(call: Call, *inputs: Array) -> tuple[Array | None, ...]:
    return rnn_outputs(call, RnnInputs(call.op, *inputs))
