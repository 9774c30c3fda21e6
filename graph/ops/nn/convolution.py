"""Convolutions as matrix products over columns (im2col), one row of columns per kernel position.

    columns[n, c, k, o] = x[n, c, o*stride + k*dilation - begin]         0 in the padding
    y = w · columns          dx = the adjoint of columns, of wᵀ · dy          dw = Σₙ dy · columnsᵀ

Columns are built for a few images at a time. Depthwise kernels need none: one multiply-add per position.
Products run image by image, so results do not depend on the chunk size.
"""

from __future__ import annotations

import numpy as np

from graph.ir import TensorType
from graph.ops.nn.windows import Index, Windows, auto_pad, axis_attribute, split_padding, windows
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array
from graph.ops.numeric.precision import chunks, downcast_like, upcast
from graph.ops.registry.registry import HEAVY, Call, Work, op, register_standard


def forward(x: np.ndarray, w: np.ndarray, group: int, view: Windows) -> np.ndarray:
    """(N, M, *output): x (N, C, *input) convolved with w (M, C/group, *kernel)."""
    n, channels, filters = x.shape[0], x.shape[1], w.shape[0]
    if _is_depthwise(w, channels, group):
        return _depthwise(x, w, view)
    y = np.empty((n, group, filters // group, _cells(view.output)), x.dtype)
    matrix = w.reshape(group, filters // group, -1)
    for part in chunks(n, _column_bytes(x, view)):
        np.matmul(matrix, _columns(x[part], view, group), out=y[part])
    return y.reshape(n, filters, *view.output)


def grad_input(dy: np.ndarray, w: np.ndarray, group: int, view: Windows) -> np.ndarray:
    """The adjoint of `forward` in x: (N, C, *input) from dy (N, M, *output)."""
    n, filters, per_group = dy.shape[0], w.shape[0], w.shape[1]
    channels = per_group * group
    if _is_depthwise(w, channels, group):
        return _depthwise_grad_input(dy, w, view)
    shape = (n, channels, *view.input)
    matrix = w.reshape(group, filters // group, -1).transpose(0, 2, 1)
    incoming = dy.reshape(n, group, filters // group, _cells(view.output))
    if view.is_pointwise:
        return np.asarray(np.matmul(matrix, incoming).reshape(shape))
    dx = np.zeros(shape, dy.dtype)
    bytes_each = channels * view.taps * _cells(view.output) * dy.itemsize
    for part in chunks(n, bytes_each):
        columns = np.matmul(matrix, incoming[part])
        columns = columns.reshape(len(columns), channels, *view.kernel, *view.output)
        for place, out, into in view.places():
            dx[part][into] += columns[(*place, *out[2:])]
    return dx


def grad_weight(dy: np.ndarray, x: np.ndarray, group: int, view: Windows) -> np.ndarray:
    """The adjoint of `forward` in w: (M, C/group, *kernel), summed image after image."""
    n, channels, filters = x.shape[0], x.shape[1], dy.shape[1]
    per_group = channels // group
    if per_group == 1 and filters == group:
        return _depthwise_grad_weight(dy, x, view)
    incoming = dy.reshape(n, group, filters // group, _cells(view.output))
    dw = np.zeros((group, filters // group, per_group * view.taps), dy.dtype)
    for part in chunks(n, _column_bytes(x, view)):
        columns = _columns(x[part], view, group)
        for image, rows in zip(incoming[part], columns, strict=True):
            dw += np.matmul(image, rows.transpose(0, 2, 1))
    return dw.reshape(filters, per_group, *view.kernel)


def _columns(x: np.ndarray, view: Windows, group: int) -> np.ndarray:
    """(n, group, C/group * taps, output cells), gathered by kernel position."""
    n, channels = x.shape[:2]
    rows = (n, group, channels // group * view.taps, _cells(view.output))
    if view.is_pointwise:
        return x.reshape(rows)
    columns = np.zeros((n, channels, *view.kernel, *view.output), x.dtype)
    for place, out, into in view.places():
        columns[(*place, *out[2:])] = x[into]
    return columns.reshape(rows)


def _depthwise(x: np.ndarray, w: np.ndarray, view: Windows) -> np.ndarray:
    y = np.zeros((*x.shape[:2], *view.output), x.dtype)
    for part in chunks(x.shape[0], x[:1].nbytes):
        for place, out, into in view.places():
            y[part][out] += x[part][into] * _per_channel(w, place)
    return y


def _depthwise_grad_input(dy: np.ndarray, w: np.ndarray, view: Windows) -> np.ndarray:
    dx = np.zeros((*dy.shape[:2], *view.input), dy.dtype)
    for part in chunks(dy.shape[0], dy[:1].nbytes):
        for place, out, into in view.places():
            dx[part][into] += dy[part][out] * _per_channel(w, place)
    return dx


def _depthwise_grad_weight(dy: np.ndarray, x: np.ndarray, view: Windows) -> np.ndarray:
    dw = np.zeros((x.shape[1], 1, *view.kernel), dy.dtype)
    cells = tuple(range(2, dy.ndim))
    for image, incoming in zip(x[:, None], dy[:, None], strict=True):
        for place, out, into in view.places():
            products = incoming[out] * image[into]
            dw[(place[0], 0, *place[2:])] += products.sum(axis=cells)[0]
    return dw


def _per_channel(w: np.ndarray, place: Index) -> np.ndarray:
    """Weights at one position of a depthwise kernel, broadcastable to (N, C, ...)."""
    return np.asarray(w[place].reshape(-1, *(1,) * (len(place) - 2)))


def _is_depthwise(w: np.ndarray, channels: int, group: int) -> bool:
    return bool(w.shape[1] == 1 and w.shape[0] == group == channels)


def _cells(lengths: tuple[int, ...]) -> int:
    return int(np.prod(lengths, dtype=np.int64))


def _column_bytes(x: np.ndarray, view: Windows) -> int:
    return 1 if view.is_pointwise else x.shape[1] * view.taps * _cells(view.output) * x.itemsize


def transpose_windows(call: Call, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> Windows:
    """Windows of the Conv that a ConvTranspose over `spatial` is the adjoint of; its result is `.input`."""
    attributes, rank = call.attributes, len(spatial)
    stride = axis_attribute(attributes, "strides", rank, 1)
    dilation = axis_attribute(attributes, "dilations", rank, 1)
    extra = axis_attribute(attributes, "output_padding", rank, 0)
    auto, target = auto_pad(attributes), attributes.get("output_shape")
    if target is None and auto.startswith("SAME"):
        target = [n * s for n, s in zip(spatial, stride, strict=True)]
    given_pads = axis_attribute(attributes, "pads", 2 * rank, 0) if auto == "NOTSET" else (0,) * (2 * rank)
    begin, end, lengths = [], [], []
    for axis, n in enumerate(spatial):
        natural = stride[axis] * (n - 1) + extra[axis] + (kernel[axis] - 1) * dilation[axis] + 1
        before, after = given_pads[axis], given_pads[rank + axis]
        if target is not None:
            lengths.append(int(target[axis - rank]))  # may be the full shape
            before, after = split_padding(max(0, natural - lengths[-1]), auto != "SAME_UPPER")
        else:
            lengths.append(max(0, natural - before - after))
        begin.append(before)
        end.append(after)
    return Windows(tuple(lengths), kernel, stride, dilation, tuple(begin), tuple(end), spatial)


def _conv_work(call: Call) -> Work:
    """Two flops per multiply-add, one per bias; no workspace: target runtimes use implicit matrix products."""
    w, y = call.inputs[1], call.outputs[0]
    if w is None or y is None:
        return Work()
    return Work(2 * y.elements * multiply_adds(w) + (y.elements if len(call.inputs) > 2 else 0))


def _conv_transpose_work(call: Call) -> Work:
    x, w, y = call.inputs[0], call.inputs[1], call.outputs[0]
    if x is None or w is None or y is None:
        return Work()
    return Work(2 * x.elements * multiply_adds(w) + (y.elements if len(call.inputs) > 2 else 0))


def multiply_adds(w: TensorType) -> int:
    """Multiply-adds per cell of the input side of `w`."""
    return w.elements // w.shape[0] if w.shape[0] else 0


@op("Conv", work=_conv_work, recompute=HEAVY, gradient_reads=("i0", "i1"))
def conv(call: Call, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    view = windows(call.attributes, x.shape[2:], w.shape[2:])
    return downcast_like(_biased(forward(upcast(x), upcast(w), group_of(call), view), bias), x)


@op("ConvTranspose", work=_conv_transpose_work, recompute=HEAVY, gradient_reads=("i0", "i1"))
def conv_transpose(call: Call, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    view = transpose_windows(call, x.shape[2:], w.shape[2:])
    return downcast_like(_biased(grad_input(upcast(x), upcast(w), group_of(call), view), bias), x)


def _sum_work(call: Call) -> Work:
    """Work: one addition per element of the columns."""
    return Work(0 if call.inputs[0] is None else call.inputs[0].elements)


@op("Col2Im", work=_sum_work)
def col2im(call: Call, x: np.ndarray, image_shape: np.ndarray, block_shape: np.ndarray) -> np.ndarray:
    """Blocks (N, C, *block, *windows) added where they overlap in the image."""
    view = windows(call.attributes, image_shape.tolist(), block_shape.tolist())
    blocks = as_computable(x).reshape(len(x), -1, *view.kernel, *view.output)
    y = np.zeros((*blocks.shape[:2], *view.input), blocks.dtype)
    for place, source, cells in view.places():
        y[cells] += blocks[place][source]
    return as_new_array(y, x.dtype)


def _integer_work(call: Call) -> Work:
    """Work: two flops per multiply-add."""
    w, y = call.inputs[3 if call.op == "QLinearConv" else 1], call.outputs[0]
    return Work(0 if w is None or y is None else 2 * y.elements * multiply_adds(w))


register_standard("ConvInteger", "QLinearConv", work=_integer_work, recompute=HEAVY)


def _biased(y: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    if bias is not None:
        y += upcast(bias).reshape(-1, *(1,) * (y.ndim - 2))
    return y


def group_of(call: Call) -> int:
    return int(call.attribute("group", 1))
