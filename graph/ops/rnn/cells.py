"""One step of an RNN, GRU or LSTM, forward and backward, for one direction, without its input product.

A step takes zx = W x + biases, (batch, gates*hidden), and the previous state; it returns the next state and
the values saved for the backward step. A backward step takes the gradient of the next state and returns those
of zx and of the previous state; weight gradients accumulate in `WeightGradients`.

    LSTM  i, o, f, c~ = gates;  c' = f c + i c~;  h' = o h(c')         rows of W: i o f c
    GRU   z, r, h~ = gates;     h' = (1 - z) h~ + z h                  rows of W: z r h
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ActivationFn = Callable[[np.ndarray, float, float], np.ndarray]
DerivativeFn = Callable[[np.ndarray, np.ndarray, float, float], np.ndarray]  # of (argument, result, alpha, beta)
CellState = tuple[np.ndarray, np.ndarray | None]  # h and, in an LSTM, c


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """An activation of the standard; alpha and beta are its defaults, None for no such parameter."""

    function: ActivationFn
    derivative: DerivativeFn
    alpha: float | None = None
    beta: float | None = None


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _elu(x: np.ndarray, a: float) -> np.ndarray:
    return np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x)


ACTIVATION_FUNCTIONS: dict[str, ActivationFunction] = {
    "relu": ActivationFunction(lambda x, a, b: np.maximum(x, 0), lambda x, y, a, b: x > 0),
    "tanh": ActivationFunction(lambda x, a, b: np.tanh(x), lambda x, y, a, b: 1 - y * y),
    "sigmoid": ActivationFunction(lambda x, a, b: _sigmoid(x), lambda x, y, a, b: y * (1 - y)),
    "affine": ActivationFunction(lambda x, a, b: a * x + b, lambda x, y, a, b: np.full_like(x, a), 1.0, 0.0),
    "leakyrelu": ActivationFunction(
        lambda x, a, b: np.where(x < 0, a * x, x), lambda x, y, a, b: np.where(x < 0, a, 1), 0.01
    ),
    "thresholdedrelu": ActivationFunction(lambda x, a, b: np.where(x > a, x, 0), lambda x, y, a, b: x > a, 1.0),
    "scaledtanh": ActivationFunction(
        lambda x, a, b: a * np.tanh(b * x), lambda x, y, a, b: a * b * (1 - np.tanh(b * x) ** 2), 1.0, 1.0
    ),
    "hardsigmoid": ActivationFunction(
        lambda x, a, b: np.clip(a * x + b, 0, 1), lambda x, y, a, b: np.where((y > 0) & (y < 1), a, 0), 0.2, 0.5
    ),
    "elu": ActivationFunction(lambda x, a, b: _elu(x, a), lambda x, y, a, b: np.where(x < 0, y + a, 1), 1.0),
    "softsign": ActivationFunction(lambda x, a, b: x / (1 + np.abs(x)), lambda x, y, a, b: 1 / (1 + np.abs(x)) ** 2),
    "softplus": ActivationFunction(lambda x, a, b: np.logaddexp(x, np.zeros_like(x)), lambda x, y, a, b: _sigmoid(x)),
}


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation with its parameters; its argument is first clipped to [-clip, clip]."""

    name: str  # in lower case
    kind: ActivationFunction
    alpha: float
    beta: float
    clip: float | None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.kind.function(self._bounded(x), self.alpha, self.beta).astype(x.dtype, copy=False)

    def back(self, dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Gradient of the argument; 0 where it was clipped."""
        dx = dy * self.kind.derivative(self._bounded(x), y, self.alpha, self.beta)
        if self.clip is not None:
            dx = dx * (np.abs(x) <= self.clip)
        return dx.astype(x.dtype, copy=False)

    def _bounded(self, x: np.ndarray) -> np.ndarray:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


def activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None
) -> list[Activation]:
    """The named activations; each consumes its alpha and beta from the front of the lists, else has its defaults."""
    alpha, beta, found = list(alphas), list(betas), []
    for name in names:
        kind = ACTIVATION_FUNCTIONS.get(name.lower())
        if kind is None:
            raise ValueError(f"activation {name!r} must be one of {', '.join(ACTIVATION_FUNCTIONS)}, in any case")
        a = alpha.pop(0) if kind.alpha is not None and alpha else kind.alpha
        b = beta.pop(0) if kind.beta is not None and beta else kind.beta
        found.append(Activation(name.lower(), kind, a or 0.0, b or 0.0, clip))
    return found


@dataclass(frozen=True, slots=True)
class RnnCell:
    """Weights and options shared by the steps of one direction."""

    r: np.ndarray  # (gates*hidden, hidden)
    recurrent_bias: np.ndarray  # (gates*hidden,); included in zx unless a GRU resets after the product
    peephole: np.ndarray | None  # (3*hidden,): i o f
    act: list[Activation]
    couples: bool = False  # LSTM: f = 1 - i
    resets_after: bool = False  # GRU: linear_before_reset

    @property
    def hidden(self) -> int:
        return int(self.r.shape[1])


@dataclass(slots=True)
class WeightGradients:
    """Weight gradients of a direction, accumulated over its steps."""

    r: np.ndarray
    recurrent_bias: np.ndarray
    peephole: np.ndarray | None


SavedArrays = tuple[np.ndarray, ...]
StepFn = Callable[[RnnCell, np.ndarray, CellState], tuple[CellState, SavedArrays]]
StepBackwardFn = Callable[[RnnCell, SavedArrays, CellState, WeightGradients], tuple[np.ndarray, CellState]]


def rnn_step(cell: RnnCell, zx: np.ndarray, state: CellState) -> tuple[CellState, SavedArrays]:
    h = state[0]
    z = zx + h @ cell.r.T
    y = cell.act[0](z)
    return (y, None), (h, z, y)


def rnn_backward(
    cell: RnnCell, saved: SavedArrays, gradient: CellState, sums: WeightGradients
) -> tuple[np.ndarray, CellState]:
    h, z, y = saved
    dz = cell.act[0].back(gradient[0], z, y)
    sums.r += dz.T @ h
    sums.recurrent_bias += dz.sum(axis=0)
    return dz, (dz @ cell.r, None)


def gru_step(cell: RnnCell, zx: np.ndarray, state: CellState) -> tuple[CellState, SavedArrays]:
    h, n = state[0], cell.hidden
    gates = zx[:, : 2 * n] + h @ cell.r[: 2 * n].T
    z_in, r_in = gates[:, :n], gates[:, n:]
    z, r = cell.act[0](z_in), cell.act[0](r_in)
    if cell.resets_after:
        inner = h @ cell.r[2 * n :].T + cell.recurrent_bias[2 * n :]
        new_in = zx[:, 2 * n :] + r * inner
    else:
        inner = r * h
        new_in = zx[:, 2 * n :] + inner @ cell.r[2 * n :].T
    new = cell.act[1](new_in)
    return ((1 - z) * new + z * h, None), (h, z_in, r_in, new_in, z, r, new, inner)


def gru_backward(
    cell: RnnCell, saved: SavedArrays, gradient: CellState, sums: WeightGradients
) -> tuple[np.ndarray, CellState]:
    h, z_in, r_in, new_in, z, r, new, inner = saved
    dh, n = gradient[0], cell.hidden
    dz = cell.act[0].back(dh * (h - new), z_in, z)
    dnew = cell.act[1].back(dh * (1 - z), new_in, new)
    if cell.resets_after:
        dinner = dnew * r
        dr = cell.act[0].back(dnew * inner, r_in, r)
        before = dh * z + dinner @ cell.r[2 * n :]
        sums.r[2 * n :] += dinner.T @ h
    else:
        dinner = dnew @ cell.r[2 * n :]
        dr = cell.act[0].back(dinner * h, r_in, r)
        before = dh * z + dinner * r
        sums.r[2 * n :] += dnew.T @ inner
        dinner = dnew
    dgates = np.concatenate([dz, dr], axis=1)
    before += dgates @ cell.r[: 2 * n]
    sums.r[: 2 * n] += dgates.T @ h
    sums.recurrent_bias += np.concatenate([dgates, dinner], axis=1).sum(axis=0)
    return np.concatenate([dgates, dnew], axis=1), (before, None)


def lstm_step(cell: RnnCell, zx: np.ndarray, state: CellState) -> tuple[CellState, SavedArrays]:
    h, c = state
    assert c is not None
    i_in, o_in, f_in, g_in = np.split(zx + h @ cell.r.T, 4, axis=1)
    if cell.peephole is not None:
        p_i, p_o, p_f = np.split(cell.peephole, 3)
        i_in, f_in = i_in + p_i * c, f_in + p_f * c
    i = cell.act[0](i_in)
    f = 1 - i if cell.couples else cell.act[0](f_in)
    g = cell.act[1](g_in)
    after = f * c + i * g
    if cell.peephole is not None:
        o_in = o_in + p_o * after
    o = cell.act[0](o_in)
    shown = cell.act[2](after)
    return (o * shown, after), (h, c, i_in, o_in, f_in, g_in, i, o, f, g, after, shown)


def lstm_backward(
    cell: RnnCell, saved: SavedArrays, gradient: CellState, sums: WeightGradients
) -> tuple[np.ndarray, CellState]:
    h, c, i_in, o_in, f_in, g_in, i, o, f, g, after, shown = saved
    dh, dc = gradient
    assert dc is not None
    do = cell.act[0].back(dh * shown, o_in, o)
    dc = dc + cell.act[2].back(dh * o, after, shown)
    if cell.peephole is not None:
        p_i, p_o, p_f = np.split(cell.peephole, 3)
        dc = dc + do * p_o
    di, df = dc * g, dc * c
    if cell.couples:
        di, df = di - df, np.zeros_like(df)
    di = cell.act[0].back(di, i_in, i)
    df = cell.act[0].back(df, f_in, f) if not cell.couples else df
    dg = cell.act[1].back(dc * i, g_in, g)
    dz = np.concatenate([di, do, df, dg], axis=1)
    before = dc * f
    if cell.peephole is not None:
        before = before + di * p_i + df * p_f
        assert sums.peephole is not None
        sums.peephole += np.concatenate([di * c, do * after, df * c], axis=1).sum(axis=0)
    sums.r += dz.T @ h
    sums.recurrent_bias += dz.sum(axis=0)
    return dz, (dz @ cell.r, before)
