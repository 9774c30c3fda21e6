"""Window geometry of convolutions and pools: kernel, strides, dilations, pads, counts.

Output cell o of an axis reads input cells o*stride + k*dilation - begin for k = 0 .. kernel-1:

    input      .  .  0  1  2  3  4  .          begin 2, end 1, kernel 3, stride 2
    windows    ╰─o=0─╯
                     ╰─o=1─╯
                           ╰─o=2─╯
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Index = tuple[Any, ...]  # of a numpy array
WHOLE = (slice(None), slice(None))  # all images, all channels


@dataclass(frozen=True, slots=True)
class Windows:
    """Per spatial axis: input and output lengths, and the geometry of the windows."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]  # padding before the first cell
    end: tuple[int, ...]  # padding after the last cell, as declared
    output: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.input)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def reach(self) -> tuple[int, ...]:
        """Cells from the first to the last cell of a window, inclusive."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def is_pointwise(self) -> bool:
        """True if each output cell reads only the input cell at its own position."""
        return self.taps == 1 and self.input == self.output and not any(self.begin) and set(self.stride) <= {1}

    def tap_slices(self, axis: int, tap: int) -> tuple[slice, slice]:
        """(output cells, input cells) that kernel position `tap` of `axis` connects, padding excluded."""
        stride, offset = self.stride[axis], tap * self.dilation[axis] - self.begin[axis]
        low = max(0, -(offset // stride))
        high = min(self.output[axis], (self.input[axis] - 1 - offset) // stride + 1)
        if high <= low:
            return slice(0, 0), slice(0, 0)
        first = low * stride + offset
        return slice(low, high), slice(first, first + (high - low - 1) * stride + 1, stride)

    def places(self) -> Iterator[tuple[Index, Index, Index]]:
        """Per kernel position, row-major: (position, output index, input index), both indices into (N, C, ...)."""
        axes = [[(tap, *self.tap_slices(axis, tap)) for tap in range(k)] for axis, k in enumerate(self.kernel)]
        for place in itertools.product(*axes):
            yield ((*WHOLE, *(p[0] for p in place)), (*WHOLE, *(p[1] for p in place)), (*WHOLE, *(p[2] for p in place)))

    def transpose_pads(self) -> tuple[list[int], list[int]]:
        """(`pads`, `output_padding`) of the ConvTranspose from output lengths to input lengths."""
        ends, extra = [], []
        for n, o, s, reach, begin in zip(self.input, self.output, self.stride, self.reach, self.begin, strict=True):
            surplus = s * (o - 1) + reach - begin - n
            ends.append(max(surplus, 0))
            extra.append(max(-surplus, 0))
        return [*self.begin, *ends], extra


def windows(
    attributes: Mapping[str, Any], spatial: Sequence[int], kernel: Sequence[int], ceil: bool = False
) -> Windows:
    """Windows of a Conv or pool with these attributes over `spatial`.

    Raises ValueError for an invalid attribute length or value.
    """
    rank = len(spatial)
    stride = axis_attribute(attributes, "strides", rank, 1)
    dilation = axis_attribute(attributes, "dilations", rank, 1)
    if len(kernel) != rank:
        raise ValueError(f"kernel_shape {list(kernel)} needs {rank} entries, one per spatial axis")
    if min((*stride, *dilation, *kernel), default=1) < 1:
        raise ValueError("kernel_shape, strides and dilations must be at least 1")
    auto = auto_pad(attributes)
    begin, end, output = [], [], []
    pads = axis_attribute(attributes, "pads", 2 * rank, 0) if auto == "NOTSET" else (0,) * (2 * rank)
    for axis, n in enumerate(spatial):
        s, reach = stride[axis], (kernel[axis] - 1) * dilation[axis] + 1
        before, after = pads[axis], pads[rank + axis]
        if auto.startswith("SAME"):
            count = -(-n // s)
            before, after = split_padding(max(0, (count - 1) * s + reach - n), auto == "SAME_LOWER")
        else:
            room = n + before + after - reach
            count = (-(-room // s) if ceil and auto == "NOTSET" else room // s) + 1
            if ceil and (count - 1) * s >= n + before and count > 1:
                count -= 1  # no window starts in the padding after the last cell
        begin.append(before)
        end.append(after)
        output.append(max(0, count))
    return Windows(tuple(spatial), tuple(kernel), stride, dilation, tuple(begin), tuple(end), tuple(output))


def axis_attribute(attributes: Mapping[str, Any], name: str, count: int, default: int) -> tuple[int, ...]:
    """The integers of attribute `name`, else `count` times `default`. Raises ValueError on another length."""
    found = attributes.get(name)
    if found is None or (len(found) == 0 and count):
        return (default,) * count
    if len(found) != count:
        raise ValueError(f"{name} {list(found)} has {len(found)} entries, {count} expected")
    return tuple(int(i) for i in found)


def auto_pad(attributes: Mapping[str, Any]) -> str:
    """NOTSET, VALID, SAME_UPPER or SAME_LOWER. Raises ValueError for anything else."""
    found = attributes.get("auto_pad", "NOTSET")
    name = found.decode() if isinstance(found, bytes) else str(found or "NOTSET")
    if name not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {name!r} must be NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    return name


def split_padding(total: int, more_before: bool) -> tuple[int, int]:
    """`total` as (before, after); an odd unit goes before if `more_before`, else after."""
    less = total // 2
    return (total - less, less) if more_before else (less, total - less)
