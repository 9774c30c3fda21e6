"""Gradients of RNN, GRU and LSTM by backpropagation through time.

Each direction reruns the forward pass, saving the values its backward steps need, then runs backward:

    dstate ◀── back(t) ◀── dstate + dY[t] ◀── back(t+1) ◀── ... ◀── dY_h, dY_c

dX and dW are one matrix product each over all steps. There is no decomposition into standard ops,
since that would need a loop over the steps.
"""

from __future__ import annotations

import numpy as np

from graph.ir import TensorType
from graph.ops.numeric.precision import downcast_like, upcast
from graph.ops.numeric.precision import require_input_type as known_type
from graph.ops.registry.registry import HEAVY, Call, Work, op
from graph.ops.rnn import cells
from graph.ops.rnn.rnn import (
    CELL_FUNCTIONS,
    GATES,
    Direction,
    RnnInputs,
    directions,
    permute_steps,
    rnn_work,
    run_direction,
    time_major,
)

Array = np.ndarray
#: Per output of a gradient op, the input it is the gradient of.
_OF = {"RNN": (0, 1, 2, 3, 5), "GRU": (0, 1, 2, 3, 5), "LSTM": (0, 1, 2, 3, 5, 6, 7)}
#: Number of `hidden`-wide arrays a step saves for its backward step, gates excluded.
_KEPT = {"RNN": 1, "GRU": 2, "LSTM": 2}


def backward_direction(
    kind: str, direction: Direction, dy: Array | None, dh: Array, dc: Array | None
) -> tuple[Array, cells.WeightGradients, cells.CellState]:
    """(dzx of every step, sums over steps, gradient of the initial state); dy is in running order."""
    saved: list[cells.SavedArrays] = []
    run_direction(kind, direction, saved)
    cell, back = direction.cell, CELL_FUNCTIONS[kind][1]
    peephole = None if cell.peephole is None else np.zeros_like(cell.peephole)
    sums = cells.WeightGradients(np.zeros_like(cell.r), np.zeros_like(cell.recurrent_bias), peephole)
    dzx = np.empty((*direction.x.shape[:2], len(direction.w)), direction.x.dtype)
    state: cells.CellState = (dh, dc)
    for t in reversed(range(len(dzx))):
        h, c = state
        is_valid = None if direction.is_valid is None else direction.is_valid[t]
        if dy is not None:
            h = h + (dy[t] if is_valid is None else dy[t] * is_valid)
        if is_valid is None:
            dzx[t], state = back(cell, saved.pop(), (h, c), sums)
            continue
        dzx[t], (h_before, c_before) = back(
            cell, saved.pop(), (h * is_valid, None if c is None else c * is_valid), sums
        )
        passed = None if c is None or c_before is None else np.where(is_valid, c_before, c)
        state = (np.where(is_valid, h_before, h), passed)
    return dzx, sums, state


def rnn_gradients(
    call: Call, given: RnnInputs, dy: Array | None, dh: Array | None, dc: Array | None
) -> dict[str, list[Array]]:
    """Input letter -> its gradient in each direction, in computing precision; x in step order."""
    layout = bool(call.attribute("layout", 0))
    found: dict[str, list[Array]] = {letter: [] for letter in ("x", "w", "r", "b", "h", "c", "p")}
    # dY is (steps, directions, batch, hidden), or (batch, steps, directions, hidden)
    arranged = None if dy is None else time_major(call, upcast(dy))
    for direction in directions(call, given):
        d, start = direction.index, direction.state[0]
        seen = (
            None if arranged is None else permute_steps(arranged[:, :, d] if layout else arranged[:, d], direction.turn)
        )
        ends = [np.zeros_like(start) if end is None else upcast(end[:, d] if layout else end[d]) for end in (dh, dc)]
        dzx, sums, (h, c) = backward_direction(
            given.kind, direction, seen, ends[0], ends[1] if given.kind == "LSTM" else None
        )
        steps, batch, width = direction.x.shape
        rows = dzx.reshape(steps * batch, len(direction.w))
        dx = (rows @ direction.w).reshape(direction.x.shape)
        found["x"].append(permute_steps(dx, direction.turn))
        found["w"].append(rows.T @ direction.x.reshape(steps * batch, width))
        found["r"].append(sums.r)
        found["b"].append(np.concatenate([rows.sum(axis=0), sums.recurrent_bias]))
        found["h"].append(h)
        if c is not None:
            found["c"].append(c)
        if sums.peephole is not None:
            found["p"].append(sums.peephole)
    return found


def _results(call: Call, given: RnnInputs, found: dict[str, list[Array]]) -> tuple[Array | None, ...]:
    """The used gradients in the op's order, each with the type of its input."""
    layout = bool(call.attribute("layout", 0))
    inputs = {"x": given.x, "w": given.w, "r": given.r, "b": given.b, "h": given.h, "c": given.c, "p": given.p}
    results: list[Array | None] = []
    for letter, is_used in zip(inputs, call.used, strict=False):
        like, parts = inputs[letter], found[letter]
        if not is_used or like is None:
            results.append(None)
        elif letter == "x":
            total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
            results.append(downcast_like(time_major(call, total), like))
        else:
            results.append(downcast_like(np.stack(parts, axis=1 if layout and letter in "hc" else 0), like))
    return tuple(results)


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    """Types of the used gradients, those of their inputs. Raises ValueError if the weights do not match."""
    kind = _kind(call)
    x, w, r = (known_type(t, name) for t, name in zip(call.inputs[:3], "XWR", strict=True))
    if not len(x.shape) == len(w.shape) == len(r.shape) == 3:
        raise ValueError(f"X {x}, W {w} and R {r} must have rank 3")
    rows = GATES[kind] * r.shape[2]
    if w.shape[1:] != (rows, x.shape[2]) or r.shape[1] != rows or w.shape[0] != r.shape[0]:
        raise ValueError(f"X {x}, W {w} and R {r} do not belong to one {kind}")
    types = []
    for position, is_used in zip(_OF[kind], call.used, strict=False):
        type = call.inputs[position] if position < len(call.inputs) else None
        if is_used and type is None:
            raise ValueError(f"the gradient of absent input {position} is used; omit that output")
        types.append(type if is_used else None)
    return tuple(types)


def _work(call: Call) -> Work:
    """Work: a forward pass and twice that backward; workspace: the saved values of one direction."""
    return rnn_work(call, passes=3, saved=_KEPT[_kind(call)])


@op("remat::RNNGrad", infer=_infer, work=_work, recompute=HEAVY)
@op("remat::GRUGrad", infer=_infer, work=_work, recompute=HEAVY)
@op("remat::LSTMGrad", infer=_infer, work=_work, recompute=HEAVY)
def rnn_grad(call: Call, *given: Array) -> tuple[Array | None, ...]:
    """Inputs of the op, dY, dY_h and, of an LSTM, dY_c -> dX, dW, dR, dB, dinitial_h and, of an LSTM, ..._c, dP."""
    count = 8 if _kind(call) == "LSTM" else 6
    inputs = RnnInputs(_kind(call), *given[:count])
    dy, dh, dc = (*given[count:], *[None] * 3)[:3]
    return _results(call, inputs, rnn_gradients(call, inputs, dy, dh, dc))


def _kind(call: Call) -> str:
    return call.op.removeprefix("remat::").removesuffix("Grad")
