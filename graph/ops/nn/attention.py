"""Fused attention that stores no scores: one block of queries at a time, forward and backward.

    s = scale · q kt + bias, `fill` where hidden      lse = log Σ exp s      y = exp(s - lse) v
    p ~ exp(s - lse)    dv = pᵀ dy    ds = p ∘ (dy vᵀ - Σ dy ∘ y + dlse)    dq = scale · ds ktᵀ    dkt = scale · qᵀ ds

q is [..., L, d], kt [..., d, S] (transposed keys), v [..., S, e], y [..., L, e], lse [..., L]; bias and keep
broadcast to [..., L, S]. Key j is hidden from query i where `keep` is false, and outside i + lowest <= j <= i + highest
(attributes; causal: highest = 0). The backward pass recomputes scores from q, kt and lse; rows of p are normalized to
sum 1, since the lse of a row of large fills only is rounded. Sources: Dao, "FlashAttention-2: Faster Attention with
Better Parallelism and Work Partitioning", 2023, section 3.1; blocks of queries alone as in Rabe, Staats,
"Self-attention Does Not Need O(n²) Memory", 2021.
"""

from __future__ import annotations

import math

import numpy as np

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.elementwise_helpers import TRANSCENDENTAL, broadcast
from graph.ops.numeric.precision import downcast_like, require_input_type, statistics_dtype, upcast, upcast_or_none
from graph.ops.registry.registry import HEAVY, Call, Work, op

QUERY_BLOCK = 128  # queries per block of scores


def _shapes(call: Call, first: int) -> tuple[TensorType, TensorType, TensorType, tuple[int, ...]]:
    """Types of q, kt and v, at inputs `first` to `first + 2`, and the shape of the scores. Raises ValueError."""
    q, kt, v = (
        require_input_type(call.inputs[first + i], f"{call.op}: {name}") for i, name in enumerate(("q", "kt", "v"))
    )
    if not (len(q.shape) == len(kt.shape) == len(v.shape) >= 2 and q.dtype == kt.dtype == v.dtype):
        raise ValueError(f"{q}, {kt} and {v} are not stacks of matrices of one rank and dtype")
    if not q.shape[:-2] == kt.shape[:-2] == v.shape[:-2] or q.shape[-1] != kt.shape[-2] or kt.shape[-1] != v.shape[-2]:
        raise ValueError(f"lengths of {q}, {kt} and {v} do not match")
    return q, kt, v, (*q.shape[:-1], kt.shape[-1])


def _check_optional_inputs(call: Call, position: int, scores: tuple[int, ...], dtype: str) -> None:
    """Raise ValueError if bias or keep is present and does not broadcast to the scores."""
    for i, required in ((position, dtype), (position + 1, "bool")):
        type = call.inputs[i] if i < len(call.inputs) else None
        if type is not None and (type.dtype != required or broadcast(type, TensorType(dtype, scores)) != scores):
            raise ValueError(f"input {i} is {type}; {call.op} takes {required} that broadcasts to {scores}")


def _infer(call: Call) -> tuple[TensorType | None, ...]:
    q, _, v, scores = _shapes(call, 0)
    _check_optional_inputs(call, 3, scores, q.dtype)
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1])), TensorType(statistics_dtype(q.dtype), q.shape[:-1])


def _infer_grad(call: Call) -> tuple[TensorType | None, ...]:
    q, kt, v, scores = _shapes(call, 2)
    _check_optional_inputs(call, 7, scores, q.dtype)
    return q, kt, v, call.inputs[7] if len(call.inputs) > 7 else None


def _block_bytes(scores: tuple[int, ...], dtype: str) -> int:
    """Bytes of the scores of one block of queries."""
    return min(QUERY_BLOCK, scores[-2]) * scores[-1] * (8 if dtype == "float64" else 4)


def _work(call: Call) -> Work:
    """Work: two products and a softmax; workspace: one block of scores."""
    q, _, v, scores = _shapes(call, 0)
    flops = math.prod(scores) * (2 * (q.shape[-1] + v.shape[-1]) + TRANSCENDENTAL + 4)
    return Work(flops, workspace_bytes=_block_bytes(scores, q.dtype))


def _work_grad(call: Call) -> Work:
    """Work: five products and an exponential; workspace: two blocks of scores, and dkt and dv sums if narrow."""
    q, kt, v, scores = _shapes(call, 2)
    flops = math.prod(scores) * (6 * q.shape[-1] + 4 * v.shape[-1] + TRANSCENDENTAL + 6)
    sums = 0 if q.dtype in ("float32", "float64") else 4 * kt.shape[-1] * (q.shape[-1] + v.shape[-1])
    return Work(flops, workspace_bytes=2 * _block_bytes(scores, q.dtype) + sums)


class _Blocks:
    """Scores block by block of queries, in computing precision."""

    def __init__(self, call: Call, q: np.ndarray, kt: np.ndarray, bias: np.ndarray | None, keep: np.ndarray | None):
        self.q, self.kt = q, kt
        scores = (*q.shape[:-1], kt.shape[-1])
        self.scale = np.asarray(call.attribute("scale", 1.0), q.dtype)
        self.fill = call.attribute("fill", -np.inf)
        self.bias = None if bias is None else np.broadcast_to(bias, scores)
        self.keep = None if keep is None else np.broadcast_to(keep, scores)
        self.band = call.attribute("lowest"), call.attribute("highest")
        self.stack = list(np.ndindex(*q.shape[:-2]))
        self.rows = [slice(begin, begin + QUERY_BLOCK) for begin in range(0, q.shape[-2], QUERY_BLOCK)]

    def scores(self, place: tuple[int, ...], rows: slice) -> np.ndarray:
        s = np.asarray(self.q[place][rows] @ self.kt[place])
        s *= self.scale
        if self.bias is not None:
            s += self.bias[place][rows]
        hidden = self.hidden(place, rows)
        if hidden is not None:
            np.copyto(s, s.dtype.type(self.fill), where=hidden)
        return s

    def hidden(self, place: tuple[int, ...], rows: slice) -> np.ndarray | None:
        """True for the scores of the block that are filled; None without any."""
        hidden = None if self.keep is None else ~self.keep[place][rows]
        queries = np.arange(self.q.shape[-2])[rows, None]
        for bound, is_outside in zip(self.band, (np.less, np.greater), strict=True):
            if bound is not None:
                outside = is_outside(np.arange(self.kt.shape[-1]), queries + bound)
                hidden = outside if hidden is None else hidden | outside
        return hidden


def _body(
    e: Emit, call: Call, q: Val, kt: Val, v: Val, bias: Val | None = None, keep: Val | None = None
) -> tuple[Val | None, ...]:
    dtype = statistics_dtype(q.dtype)
    s = _scores_body(e, call, e.cast(q, dtype), e.cast(kt, dtype), bias, keep)
    axes = e.ints([-1])
    newer = e.builder.opset.get("", 21) >= 18
    top = e.op("ReduceMax", s, axes, keepdims=1) if newer else e.op("ReduceMax", s, axes=[-1], keepdims=1)
    weights = e.op("Exp", e.sub(s, top))
    total = e.reduce_sum(weights, [-1])
    y = e.cast(e.div(e.matmul(weights, e.cast(v, dtype)), total), q.dtype)
    return y, e.reshape(e.add(top, e.op("Log", total)), q.shape[:-1]) if call.used[1:] == (True,) else None


def _scores_body(e: Emit, call: Call, q: Val, kt: Val, bias: Val | None, keep: Val | None) -> Val:
    """Scores in standard ops, from operands in computing precision."""
    s = e.mul(e.matmul(q, kt), e.scalar_like(call.attribute("scale", 1.0), q))
    s = s if bias is None else e.add(s, e.cast(bias, s.dtype))
    seen = visible(e, s.shape, keep, call.attribute("lowest"), call.attribute("highest"))
    return s if seen is None else e.where(seen, s, e.scalar_like(call.attribute("fill", -np.inf), s))


def visible(e: Emit, scores: tuple[int, ...], keep: Val | None, lowest: int | None, highest: int | None) -> Val | None:
    """True for the scores that are not hidden; None if none is."""
    queries, keys = np.arange(scores[-2])[:, None], e.constant(np.arange(scores[-1])[None])
    for bound, comparison in ((lowest, "GreaterOrEqual"), (highest, "LessOrEqual")):
        if bound is not None:
            inside = e.op(comparison, keys, e.constant(queries + bound))
            keep = inside if keep is None else e.op("And", keep, inside)
    return keep


@op(
    "remat::FusedAttention",
    infer=_infer,
    work=_work,
    recompute=HEAVY,
    body=_body,
    gradient_reads=("i0", "i1", "i2", "i3", "i4", "o0", "o1"),
)
def fused_attention(
    call: Call,
    q: np.ndarray,
    kt: np.ndarray,
    v: np.ndarray,
    bias: np.ndarray | None = None,
    keep: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    blocks, values = _Blocks(call, upcast(q), upcast(kt), upcast_or_none(bias), keep), upcast(v)
    y = np.empty((*q.shape[:-1], v.shape[-1]), values.dtype)
    lse = np.empty(q.shape[:-1], values.dtype)
    with np.errstate(all="ignore"):
        for place in blocks.stack:
            for rows in blocks.rows:
                s = blocks.scores(place, rows)
                top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
                np.exp(np.subtract(s, top, out=s), out=s)
                total = np.sum(s, axis=-1, keepdims=True)
                y[place][rows] = s @ values[place] / total
                lse[place][rows] = (top + np.log(total))[:, 0]
    return downcast_like(y, q), lse


def _grad_body(
    e: Emit,
    call: Call,
    dy: Val,
    dlse: Val | None,
    q: Val,
    kt: Val,
    v: Val,
    y: Val,
    lse: Val,
    bias: Val | None = None,
    keep: Val | None = None,
) -> tuple[Val | None, ...]:
    dtype = statistics_dtype(q.dtype)
    types = [q.dtype, kt.dtype, v.dtype, None if bias is None else bias.dtype]
    q, kt, v, y, dy = (e.cast(x, dtype) for x in (q, kt, v, y, dy))
    transposed = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    p = e.op("Exp", e.sub(_scores_body(e, call, q, kt, bias, keep), e.reshape(lse, (*lse.shape, 1))))
    p = e.div(p, e.reduce_sum(p, [-1]))
    row = e.reduce_sum(e.mul(dy, y), [-1])
    row = row if dlse is None else e.sub(row, e.reshape(dlse, (*dlse.shape, 1)))
    ds = e.mul(p, e.sub(e.matmul(dy, e.transpose(v, transposed)), row))
    seen = visible(e, ds.shape, keep, call.attribute("lowest"), call.attribute("highest"))
    ds = ds if seen is None else e.where(seen, ds, e.scalar_like(0, ds))
    scaled = e.mul(ds, e.scalar_like(call.attribute("scale", 1.0), ds))
    gradients = [
        e.matmul(scaled, e.transpose(kt, transposed)),
        e.matmul(e.transpose(q, transposed), scaled),
        e.matmul(e.transpose(p, transposed), dy),
        None if bias is None else e.sum_to(ds, bias),
    ]
    return tuple(
        e.cast(x, type) if is_used and x is not None and type is not None else None
        for x, type, is_used in zip(gradients, types, call.used, strict=False)
    )


@op("remat::FusedAttentionGrad", infer=_infer_grad, work=_work_grad, recompute=HEAVY, body=_grad_body)
def fused_attention_grad(
    call: Call,
    dy: np.ndarray,
    dlse: np.ndarray | None,
    q: np.ndarray,
    kt: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    lse: np.ndarray,
    bias: np.ndarray | None = None,
    keep: np.ndarray | None = None,
) -> tuple[np.ndarray | None, ...]:
    queries, keys, values, incoming = upcast(q), upcast(kt), upcast(v), upcast(dy)
    blocks = _Blocks(call, queries, keys, upcast_or_none(bias), keep)
    with np.errstate(all="ignore"):
        row = np.sum(incoming * upcast(y), axis=-1) - (0 if dlse is None else dlse)
    dq, dkt, dv = np.zeros_like(queries), np.zeros_like(keys), np.zeros_like(values)
    of_bias = _BiasSum(bias, queries.ndim, queries.dtype) if len(call.used) > 3 and call.used[3] else None
    with np.errstate(all="ignore"):
        for place in blocks.stack:
            for rows in blocks.rows:
                p = blocks.scores(place, rows)
                np.exp(np.subtract(p, lse[place][rows, None], out=p), out=p)
                p /= np.sum(p, axis=-1, keepdims=True)
                dv[place] += p.T @ incoming[place][rows]
                ds = incoming[place][rows] @ values[place].T
                ds -= row[place][rows, None]
                ds *= p
                hidden = blocks.hidden(place, rows)
                if hidden is not None:
                    np.copyto(ds, ds.dtype.type(0), where=hidden)
                if of_bias is not None:
                    of_bias.add(place, rows, ds)
                ds *= blocks.scale
                dq[place][rows] = ds @ keys[place].T
                dkt[place] += queries[place][rows].T @ ds
    dbias = None if bias is None or of_bias is None else downcast_like(of_bias.total.reshape(bias.shape), bias)
    return downcast_like(dq, q), downcast_like(dkt, kt), downcast_like(dv, v), dbias


class _BiasSum:
    """Gradient of the bias: gradients of the scores, summed over broadcast axes block by block."""

    def __init__(self, bias: np.ndarray | None, rank: int, dtype: np.dtype[np.float64] | np.dtype[np.float32]):
        shape = () if bias is None else bias.shape
        self.total = np.zeros((1,) * (rank - len(shape)) + shape, dtype)

    def add(self, place: tuple[int, ...], rows: slice, ds: np.ndarray) -> None:
        shape = self.total.shape
        at = tuple(0 if length == 1 else i for length, i in zip(shape, place, strict=False))
        ds = ds.sum(axis=0, keepdims=True) if shape[-2] == 1 else ds
        ds = ds.sum(axis=1, keepdims=True) if shape[-1] == 1 else ds
        self.total[at][slice(None) if shape[-2] == 1 else rows] += ds
