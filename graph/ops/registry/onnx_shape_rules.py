"""Rules on shapes and attributes of single ops, for `onnx_shapes.py`. Each raises ValueError with the contradiction.

A rule gets a call whose inputs have the number and dtypes of the schema; inputs may be absent or of unknown type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from graph.ir import TensorType
from graph.ops.registry.registry import Call


def require(holds: bool, contradiction: str) -> None:
    """Raise ValueError with the contradiction, unless the requirement holds."""
    if not holds:
        raise ValueError(contradiction)


def check_choice(call: Call, key: str, allowed: Sequence[object]) -> None:
    """Raise ValueError for another value of the attribute than those allowed; the first one is its default."""
    value = call.attribute(key, allowed[0])
    require(value in allowed, f"attribute {key} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


def type_of(call: Call, position: int) -> TensorType | None:
    """Type of an input; None if the input is absent or its type unknown."""
    return call.inputs[position] if position < len(call.inputs) else None


def check_lengths(call: Call, patterns: str) -> dict[str, int]:
    """Length of each letter of the patterns, one a letter and input; `*` stands for any axes, `-` for any input.

    Raises ValueError for an input of another rank, or one of another length on an axis of the same letter.
    """
    bound: dict[str, tuple[int, int]] = {}
    for i, pattern in enumerate(patterns.split()):
        type, letters = type_of(call, i), pattern.rstrip("*")
        if type is None or pattern == "-":
            continue
        is_open = pattern != letters
        rank = f"at least {len(letters)}" if is_open else str(len(letters))
        fits = len(type.shape) >= len(letters) if is_open else len(type.shape) == len(letters)
        require(fits, f"input {i} is {type}; the op takes a tensor of rank {rank}")
        for axis, (letter, length) in enumerate(zip(letters, type.shape, strict=False)):
            first, where = bound.setdefault(letter, (length, i))
            require(
                first == length,
                f"input {i} is {type}, of length {length} on axis {axis}, but input {where} has {first}",
            )
    return {letter: length for letter, (length, _) in bound.items()}


def _axis_of(call: Call, default: int = 0) -> int:
    """Attribute `axis` as a place in the first input. Raises ValueError outside of it."""
    type, axis = call.inputs[0], call.attribute("axis", default)
    rank = 0 if type is None else len(type.shape)
    require(-rank <= axis < rank, f"axis {axis} of a tensor of rank {rank}")
    return int(axis % rank)


def _broadcasts_to(call: Call, position: int, shape: Sequence[int]) -> None:
    """Check that an input broadcasts to `shape` without enlarging it."""
    type = type_of(call, position)
    if type is not None:
        trailing = shape[len(shape) - len(type.shape) :]
        fits = len(type.shape) <= len(shape) and all(n in (1, m) for n, m in zip(type.shape, trailing, strict=True))
        require(fits, f"input {position} is {type}, which does not broadcast to {list(shape)}")


def _kernel(call: Call, x: TensorType, w: TensorType) -> None:
    """The kernel has the rank of the picture, and the lengths of `kernel_shape`."""
    require(len(x.shape) == len(w.shape), f"input 0 is {x} and input 1 is {w}, of different ranks")
    kernel = call.attribute("kernel_shape", w.shape[2:])
    require(tuple(kernel) == w.shape[2:], f"kernel_shape {list(kernel)} and input 1, {w}, differ")


def _conv(call: Call) -> None:
    """y (N, M, *): x (N, C, *), w (M, C/group, *), bias (M)."""
    x, w = call.inputs[0], call.inputs[1]
    if x is None or w is None:
        return
    group = call.attribute("group", 1)
    _kernel(call, x, w)
    require(
        group >= 1 and w.shape[0] % group == 0 and x.shape[1] == w.shape[1] * group,
        f"input 1 is {w}; with group {group} it needs {x.shape[1]}/{group} channels and a multiple of {group} filters",
    )


def _conv_transpose(call: Call) -> None:
    """y (N, M, *): x (N, C, *), w (C, M/group, *), bias (M)."""
    x, w, bias = call.inputs[0], call.inputs[1], type_of(call, 2)
    if x is None or w is None:
        return
    group = call.attribute("group", 1)
    _kernel(call, x, w)
    require(group >= 1 and x.shape[1] % group == 0, f"{x.shape[1]} channels do not divide into {group} groups")
    filters = w.shape[1] * group
    require(bias is None or bias.shape == (filters,), f"input 2 is {bias}; the op takes one entry a filter, {filters}")


def _deform_conv(call: Call) -> None:
    """As Conv, with an offset for each cell of the output in each position of the kernel."""
    w, offset, mask = call.inputs[1], call.inputs[2], type_of(call, 4)
    _conv(call)
    if w is None or offset is None:
        return
    require(len(offset.shape) == len(w.shape), f"input 2 is {offset}; it needs the rank of input 1, {w}")
    taps = math.prod(w.shape[2:]) * call.attribute("offset_group", 1)
    axes = len(w.shape) - 2
    require(offset.shape[1:2] == (taps * axes,), f"input 2 is {offset}; axis 1 needs {axes} · {taps} entries")
    require(
        mask is None or (mask.shape[1:2] == (taps,) and mask.shape[2:] == offset.shape[2:]),
        f"input 4 is {mask}; it needs {taps} entries on axis 1 and the lengths of input 2, {offset}",
    )


def _recurrent(gates: int) -> Callable[[Call], None]:
    def rule(call: Call) -> None:
        """X (T, B, I), W (D, G·H, I), R (D, G·H, H), bias (D, 2·G·H); the state has one row an entry of the batch."""
        by_batch = bool(call.attribute("layout", 0))
        given = "BTI DGI DGH DE B BDH BDH DP" if by_batch else "TBI DGI DGH DE B DBH DBH DP"
        found = check_lengths(call, given)
        directions = 2 if call.attribute("direction", "forward") == "bidirectional" else 1
        hidden = call.attribute("hidden_size", found.get("H", 0))
        expected = {"D": directions, "H": hidden, "G": gates * hidden, "E": 2 * gates * hidden, "P": 3 * hidden}
        names = {"D": "directions", "H": "hidden cells", "G": "rows of W", "E": "biases", "P": "peephole weights"}
        for letter, length in expected.items():
            actual = found.get(letter, length)
            require(actual == length, f"{actual} {names[letter]}; with hidden_size {hidden} the op takes {length}")

    return rule


def _labels(call: Call) -> None:
    """Scores (N, C, *), labels (N, *)."""
    scores, labels = call.inputs[0], call.inputs[1]
    if scores is not None and labels is not None:
        shape = (scores.shape[0], *scores.shape[2:])
        require(labels.shape == shape, f"input 1 is {labels}; input 0, {scores}, needs labels of shape {list(shape)}")


def _gemm(call: Call) -> None:
    a, b = call.inputs[0], call.inputs[1]
    if a is not None and b is not None:
        rows, columns = a.shape[bool(call.attribute("transA", 0))], b.shape[not call.attribute("transB", 0)]
        _broadcasts_to(call, 2, (rows, columns))


def _scale_and_bias(call: Call) -> None:
    for i in range(1, len(call.inputs)):
        if call.inputs[0] is not None:
            _broadcasts_to(call, i, call.inputs[0].shape)


def _gather_elements(call: Call) -> None:
    """Ranks agree, and indices are no longer than the data on other axes; updates have the shape of the indices."""
    data, indices, updates = call.inputs[0], call.inputs[1], type_of(call, 2)
    if data is None or indices is None:
        return
    axis = _axis_of(call)
    fits = len(data.shape) == len(indices.shape) and all(
        i == axis or n <= m for i, (n, m) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    require(fits, f"input 1 is {indices}, which does not lie in input 0, {data}, along axis {axis}")
    require(
        updates is None or updates.shape == indices.shape,
        f"input 2 is {updates}; it needs the shape of input 1, {indices}",
    )


def _scatter_nd(call: Call) -> None:
    data, indices, updates = call.inputs
    if data is None or indices is None or updates is None:
        return
    depth = indices.shape[-1] if indices.shape else 0
    require(1 <= depth <= len(data.shape), f"input 1 is {indices}, indices of {depth} axes into {data}")
    shape = (*indices.shape[:-1], *data.shape[depth:])
    require(updates.shape == shape, f"input 2 is {updates}; input 1, {indices}, needs updates of shape {list(shape)}")


def _quantize(call: Call) -> None:
    """The scale is one number, one a cell along `axis`, or one a block of `block_size` cells along it."""
    x, scale, zero = call.inputs[0], call.inputs[1], type_of(call, 2)
    if scale is None:
        return
    one = ((), (1,))
    fits = zero is None or zero.shape == scale.shape or (zero.shape in one and scale.shape in one)
    require(fits, f"input 2 is {zero}; it needs the shape of input 1, {scale}")
    if x is None or scale.shape in one:
        return
    axis, block = _axis_of(call, 1), call.attribute("block_size", 0)
    require(block >= 0, f"block_size is {block}; it must be 0 or more")
    expected = list(x.shape)
    expected[axis] = -(-x.shape[axis] // block) if block else x.shape[axis]
    found = list(scale.shape) if block else [*x.shape[:axis], *scale.shape, *x.shape[axis + 1 :]]
    require(found == expected, f"input 1 is {scale}; input 0, {x}, needs a scale for each part of axis {axis}")


def _einsum(call: Call) -> None:
    """Axes of one letter have one length, or length 1; letters of the result are those of inputs."""
    equation = str(call.attribute("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    lengths: dict[str, int] = {}
    for i, (term, type) in enumerate(zip(terms.split(","), call.inputs, strict=False)):
        before, dots, after = term.partition("...")
        if type is None:
            continue
        axes = len(before) + len(after)
        fits = axes <= len(type.shape) if dots else axes == len(type.shape)
        require(fits, f"term {term[:80]!r} for input {i}, {type}; write letters, one an axis, and at most one '...'")
        tail = type.shape[len(type.shape) - len(after) :]
        for letter, length in (*zip(before, type.shape, strict=False), *zip(after, tail, strict=True)):
            known = lengths.get(letter, 1)
            require(known == length or 1 in (known, length), f"letter {letter!r} has lengths {known} and {length}")
            lengths[letter] = length if known == 1 else known
    letters = set(result) - {"."} if arrow else set()
    require(letters <= set(terms), f"equation {equation[:80]!r} returns letters that no input has")


def _one_number(call: Call) -> None:
    """Bounds of Clip, axis of CumSum: one element each."""
    for i, type in enumerate(call.inputs[1:], 1):
        fits = type is None or (len(type.shape) <= 1 and type.elements == 1)
        require(fits, f"input {i} is {type}; the op takes one number")


def _cumulate(call: Call) -> None:
    x, axis = call.inputs[0], call.constant(1)
    _one_number(call)
    given = type_of(call, 1)
    require(given is None or not (given.shape and call.op.endswith("CumProd")), f"input 1 is {given}; it takes rank 0")
    if x is not None and axis is not None:
        rank = len(x.shape)
        require(-rank <= int(axis.item()) < rank, f"axis {axis.item()} of a tensor of rank {rank}")


def _reverse_sequence(call: Call) -> None:
    x, lengths = call.inputs[0], call.inputs[1]
    axes = call.attribute("batch_axis", 1), call.attribute("time_axis", 0)
    require(sorted(axes) == [0, 1], f"batch_axis {axes[0]} and time_axis {axes[1]}; they are 0 and 1")
    if x is not None and lengths is not None:
        require(
            lengths.shape == x.shape[axes[0] : axes[0] + 1],
            f"input 1 is {lengths}; it needs one length for each entry on axis {axes[0]} of {x}",
        )


def _blocks(call: Call) -> None:
    x, size = call.inputs[0], call.attribute("blocksize", 1)
    check_choice(call, "mode", ("DCR", "CRD"))
    require(size >= 1, f"blocksize is {size}; it must be at least 1")
    if x is not None:
        lengths, part = (x.shape[1:2], size * size) if call.op.endswith("DepthToSpace") else (x.shape[2:], size)
        require(not any(n % part for n in lengths), f"{x} does not divide into blocks of {size}")


def _same_shape(call: Call) -> None:
    x, indices = call.inputs[0], call.inputs[1]
    if x is not None and indices is not None:
        require(x.shape == indices.shape, f"input 1 is {indices}; it needs the shape of input 0, {x}")


def _axes(call: Call) -> None:
    x = call.inputs[0]
    rank = 4 if x is None else len(x.shape)
    axes = call.attribute("axes", [0, 2, 3])
    require(all(-rank <= axis < rank for axis in axes), f"axes {axes} of a tensor of rank {rank}")


def _affine_grid(call: Call) -> None:
    theta, size = call.inputs[0], call.inputs[1]
    if theta is None:
        return
    axes = 2 if size is None or size.shape != (5,) else 3
    shape = (theta.shape[:1] or (0,)) + (axes, axes + 1)
    require(theta.shape == shape, f"input 0 is {theta}; the op takes {axes}x{axes + 1} matrices")
    content = call.constant(1)
    require(
        content is None or content.ndim != 1 or int(content[0]) == theta.shape[0],
        f"input 0 is {theta}, of another batch than input 1",
    )


def _mode(*names: str) -> Callable[[Call], None]:
    return lambda call: check_choice(call, "mode", names)


def _resize(call: Call) -> None:
    """A region of interest has two entries for each resized axis."""
    x, roi = call.inputs[0], type_of(call, 1)
    check_choice(call, "mode", ("nearest", "linear", "cubic"))
    if x is not None and call.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        count = 2 * len(call.attribute("axes", x.shape))
        require(
            roi is not None and roi.shape == (count,), f"input 1 is {roi}; tf_crop_and_resize takes {count} entries"
        )


def _pad(call: Call) -> None:
    value = type_of(call, 2)
    check_choice(call, "mode", ("constant", "reflect", "edge", "wrap"))
    fits = value is None or (len(value.shape) <= 1 and value.elements == 1)
    require(fits, f"input 2 is {value}; the op takes one number")


def _compress(call: Call) -> None:
    """A condition is no longer than the axis, or than the elements where no axis is given."""
    x, condition = call.inputs[0], call.inputs[1]
    if x is not None and condition is not None:
        length = x.shape[_axis_of(call)] if "axis" in call.attributes else x.elements
        require(condition.shape[0] <= length, f"input 1 is {condition}; the op selects among {length} entries of {x}")


def _axis_in_range(call: Call) -> None:
    if call.inputs[0] is not None:
        _axis_of(call, -1)


def _transform_axis(call: Call) -> None:
    """A DFT runs over any axis but the last, which holds real and imaginary parts."""
    x, axis = call.inputs[0], call.constant(2)
    place = call.attribute("axis", 1) if call.opset < 20 else -2 if axis is None or axis.size != 1 else int(axis.item())
    if x is not None and call.opset >= 17:
        rank = len(x.shape)
        require(-rank <= place < rank and place % rank != rank - 1, f"axis {place} of {x}, whose last axis holds parts")
        to_real = call.attribute("inverse", 0) and call.attribute("onesided", 0) and type_of(call, 1) is None
        require(
            not to_real or x.shape[place] > 1, f"the one-sided spectrum {x} of a signal of length 0; give dft_length"
        )


def _zero_points(filters: int, position: int) -> Callable[[Call], None]:
    """Zero points of the first operand are one number, of the second one number or one for each filter or column."""

    def rule(call: Call) -> None:
        weight, zero = call.inputs[1], type_of(call, position)
        if call.op.endswith("ConvInteger"):
            _conv(call)
        fits = weight is None or zero is None or zero.shape in ((), (1,), (weight.shape[filters],))
        require(fits, f"input {position} is {zero}; it takes one number, or one a filter or column of {weight}")

    return rule


def _slice(call: Call) -> None:
    lists = [type for type in call.inputs[1:] if type is not None]
    for a, b in pairwise(lists):
        require(a.shape == b.shape, f"{a} and {b} as starts, ends, axes or steps, of different lengths")


def _random_uniform(call: Call) -> None:
    low, high = call.attribute("low", 0.0), call.attribute("high", 1.0)
    require(low <= high, f"low {low} above high {high}")


#: Op -> rule.
RULES: dict[str, Callable[[Call], None]] = {
    "AffineGrid": _affine_grid,
    "Clip": _one_number,
    "Compress": _compress,
    "Conv": _conv,
    "ConvInteger": _zero_points(0, 3),
    "ConvTranspose": _conv_transpose,
    "CumProd": _cumulate,
    "CumSum": _cumulate,
    "DFT": _transform_axis,
    "DeformConv": _deform_conv,
    "DepthToSpace": _blocks,
    "DequantizeLinear": _quantize,
    "Einsum": _einsum,
    "GRU": _recurrent(3),
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "LSTM": _recurrent(4),
    "LayerNormalization": _scale_and_bias,
    "LpNormalization": _axis_in_range,
    "MaxUnpool": _same_shape,
    "MeanVarianceNormalization": _axes,
    "MelWeightMatrix": _one_number,
    "NegativeLogLikelihoodLoss": _labels,
    "MatMulInteger": _zero_points(-1, 3),
    "Pad": _pad,
    "PRelu": _scale_and_bias,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _scale_and_bias,
    "RNN": _recurrent(1),
    "RandomUniform": _random_uniform,
    "Resize": _resize,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _gather_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "SoftmaxCrossEntropyLoss": _labels,
    "SpaceToDepth": _blocks,
    "TensorScatter": _mode("linear", "circular"),
    "Trilu": _one_number,
    "Upsample": _mode("nearest", "linear"),
}
