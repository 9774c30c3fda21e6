"""Ops that move elements without arithmetic: reshapes, transposes, concatenation, slicing, padding."""

from __future__ import annotations

import math

import numpy as np

from graph.ir import TensorType
from graph.ops.registry import onnx_fallback
from graph.ops.registry.onnx_schemas import truncate
from graph.ops.registry.registry import Call, OutputInputPairs, Work, op, register_standard

_VIEW: OutputInputPairs = ((0, 0),)


def no_work(call: Call) -> Work:
    return Work(0, 0)


def copy_work(call: Call) -> Work:
    """Work: no flops; inputs and outputs are moved."""
    return Work(0)


def output_copy_work(call: Call) -> Work:
    """Work: no flops; as many bytes are read as written."""
    return Work(0, 2 * sum(t.nbytes for t in call.outputs if t is not None))


@op("Identity", views=_VIEW, work=no_work)
def identity(call: Call, x: np.ndarray) -> np.ndarray:
    return x


@op("Reshape", views=_VIEW, work=no_work)
def reshape(call: Call, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Reshape; 0 copies a length unless `allowzero`, -1 is inferred."""
    lengths = [int(n) for n in shape]
    if not call.attribute("allowzero", 0):
        lengths = [x.shape[i] if n == 0 else n for i, n in enumerate(lengths)]
    if -1 in lengths and not x.size:
        rest = math.prod(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = x.size // rest if rest else 0
    return x.reshape(lengths)


@op("Flatten", views=_VIEW, work=no_work)
def flatten(call: Call, x: np.ndarray) -> np.ndarray:
    axis = call.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@op("Squeeze", views=_VIEW, work=no_work)
def squeeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    named = call.attribute("axes") if axes is None else axes.reshape(-1).tolist()
    return np.squeeze(x) if named is None else np.squeeze(x, tuple(int(axis) for axis in named))


@op("Unsqueeze", views=_VIEW, work=no_work)
def unsqueeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
    named = call.attribute("axes") if axes is None else axes.reshape(-1).tolist()
    return np.expand_dims(x, tuple(int(axis) for axis in named))


def _transposed_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type by the standard; `perm` must contain each axis once."""
    x, perm = call.inputs[0] if call.inputs else None, call.attribute("perm")
    named = perm if isinstance(perm, list | tuple) and all(type(axis) is int for axis in perm) else None
    if x is not None and named is not None and sorted(named) != list(range(len(x.shape))):
        raise ValueError(
            f"perm is {truncate(str(list(named)))}; it must name each of the {len(x.shape)} axes of {x} once"
        )
    return onnx_fallback.infer(call)


@op("Transpose", work=copy_work, infer=_transposed_type)
def transpose(call: Call, x: np.ndarray) -> np.ndarray:
    return np.array(x.transpose(call.attribute("perm")), order="C")


@op("BitCast", work=copy_work)
def bit_cast(call: Call, x: np.ndarray) -> np.ndarray:
    (seen,) = onnx_fallback.run(call, (x,))
    return np.array(seen, order="C")


@op("Concat", work=copy_work)
def concat(call: Call, *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(xs, axis=call.attributes["axis"])


@op("Split", work=copy_work)
def split(call: Call, x: np.ndarray, lengths: np.ndarray | None = None) -> tuple[np.ndarray | None, ...]:
    """Parts of the given lengths, else of equal length, the last possibly shorter."""
    axis, count = call.attribute("axis", 0) % x.ndim, len(call.used)
    given = call.attribute("split") if lengths is None else lengths.tolist()
    if given is None:
        length = -(-x.shape[axis] // count)
        given = [max(0, min(length, x.shape[axis] - i * length)) for i in range(count)]
    ends = np.cumsum(given)
    pieces = (x[(slice(None),) * axis + (slice(end - n, end),)] for n, end in zip(given, ends, strict=True))
    return tuple(
        np.array(piece, order="C") if is_used else None for piece, is_used in zip(pieces, call.used, strict=True)
    )


@op("Slice", work=output_copy_work)
def slice_(
    call: Call,
    x: np.ndarray,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray:
    """Slice; bounds are clipped to the length; before opset 10 they are attributes."""
    first = call.attributes["starts"] if starts is None else starts.tolist()
    last = call.attributes["ends"] if ends is None else ends.tolist()
    named = call.attribute("axes") if axes is None else axes.tolist()
    every = [1] * len(first) if steps is None else steps.tolist()
    index = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(named or range(len(first)), first, last, every, strict=True):
        n = x.shape[axis]
        begin, end = (b + n if b < 0 else b for b in (begin, end))
        if step > 0:
            index[axis] = slice(min(max(begin, 0), n), min(max(end, 0), n), step)
        else:
            stop = min(max(end, -1), n - 1)
            index[axis] = slice(min(max(begin, 0), n - 1), None if stop < 0 else stop, step)
    return np.array(x[tuple(index)], order="C")


@op("Expand", work=copy_work)
def expand(call: Call, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    full = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))
    return np.array(np.broadcast_to(x, full), order="C")


@op("Tile", work=copy_work)
def tile(call: Call, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    return np.array(np.tile(x, repeats.tolist()), order="C")


@op("Shape", shape_only=(0,), work=copy_work)
def shape(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(x.shape[call.attribute("start", 0) : call.attribute("end")], np.int64)


@op("Size", shape_only=(0,), work=copy_work)
def size(call: Call, x: np.ndarray) -> np.ndarray:
    return np.asarray(x.size, np.int64)


@op("ConstantOfShape", work=copy_work)
def constant_of_shape(call: Call, lengths: np.ndarray) -> np.ndarray:
    value = call.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    return np.full(tuple(int(n) for n in lengths), fill[0], fill.dtype)


@op("EyeLike", shape_only=(0,), work=copy_work)
def eye_like(call: Call, x: np.ndarray) -> np.ndarray:
    to = call.attribute("dtype")
    dtype = x.dtype if to is None else onnx_fallback.numpy_dtype(onnx_fallback.dtype_name(int(to)))
    rows, columns = x.shape
    return np.eye(rows, columns, call.attribute("k", 0)).astype(dtype)


@op("Trilu", takeover=((0, 0),), work=copy_work, gradient_reads=("i1",))
def trilu(call: Call, x: np.ndarray, k: np.ndarray | None = None) -> np.ndarray:
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    keep = rows <= columns - diagonal if call.attribute("upper", 1) else rows >= columns - diagonal
    return np.where(keep, x, np.zeros((), x.dtype))


@op("OneHot", work=copy_work, gradient_reads=("i0", "i1"))
def one_hot(call: Call, indices: np.ndarray, depth: np.ndarray, values: np.ndarray) -> np.ndarray:
    """values[1] at each index, values[0] elsewhere; only values[0] for an index out of range."""
    count = int(depth.reshape(-1)[0])
    rank = indices.ndim + 1
    axis = call.attribute("axis", -1) % rank
    whole = indices.astype(np.int64)
    places = np.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)])
    hot = np.expand_dims(np.where(whole < 0, whole + count, whole), axis) == places
    return np.asarray(np.where(hot, values[1], values[0]))


@op("Pad", work=copy_work)
def pad(
    call: Call, x: np.ndarray, pads: np.ndarray, value: np.ndarray | None = None, axes: np.ndarray | None = None
) -> np.ndarray:
    """Pad; negative pads crop; `edge`, `reflect` and `wrap` repeat elements of `x`."""
    named = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(named):
        widths[axis] = (int(pads[i]), int(pads[i + len(named)]))
    kept = x[tuple(slice(max(0, -low), n - max(0, -high)) for (low, high), n in zip(widths, x.shape, strict=True))]
    grown = [(max(0, low), max(0, high)) for low, high in widths]
    mode = call.attribute("mode", "constant")
    if mode != "constant":
        return np.array(np.pad(kept, grown, mode=mode), order="C")
    result = np.full(
        tuple(n + low + high for n, (low, high) in zip(kept.shape, grown, strict=True)),
        0 if value is None else value.reshape(-1)[0],
        x.dtype,
    )
    result[tuple(slice(low, low + n) for n, (low, _) in zip(kept.shape, grown, strict=True))] = kept
    return result


register_standard("Constant", "Range", work=copy_work)
register_standard("DepthToSpace", "SpaceToDepth", "CenterCropPad", "NonZero", "Unique", work=copy_work)


def _compressed_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type by the standard, or as declared; a constant condition gives the length."""
    types, x, selected = onnx_fallback.infer(call), call.inputs[0], call.constant(1)
    if x is None or selected is None:
        return types
    count, axis = int(np.count_nonzero(selected)), call.attribute("axis")
    if axis is None:
        return (TensorType(x.dtype, (count,)),)
    return (TensorType(x.dtype, tuple(count if i == axis % len(x.shape) else n for i, n in enumerate(x.shape))),)


register_standard("Compress", infer=_compressed_type, work=copy_work, gradient_reads=("i1",))
register_standard("ReverseSequence", work=copy_work, gradient_reads=("i1",))
