"""Workspace of convolutions on a CPU that were not measured: the copies that oneDNN makes.

It computes on a blocked layout, whose channels are rounded up to whole blocks of 16 where the processor has AVX-512,
else of 8:

    forward                   copies of input and weight, and the blocked result; then the result beside the blocked one
    gradient of the input     copies of gradient and weight, and the blocked result; then the result beside it
    gradient of the weight    copies of input and gradient, and the blocked result; then the result beside it

Left as they lie: inputs of few channels, and tensors whose channels are the innermost dimension. Groups of several
channels are not rounded up. A pointwise convolution with a stride first copies what it reads of one image for each
thread. With a stride, the gradient of the input is computed beside a copy of that input.

PyTorch computes some convolutions by itself (`_is_by_pytorch`): from columns of the input, a copy of each number for
each product that it is in, or a pointwise one as it is.

Found by measuring each shape alone, in float32 on one thread with PyTorch 2.13 (`tests/torch/test_workspace.py`). Not
modelled: dilation, groups that are no multiple of a block, several results for each channel of a depthwise one, scratch
of strided convolutions of up to 4 channels (the first of a vision transformer), transposed ones with up to 8 results.

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any

import torch

from remat.torch.step.aot import has_avx512

#: Channels of a block without AVX-512 and with it.
NARROW, WIDE = 8, 16
#: For the gradient of the weight, inputs of fewer channels have no copy; from then on to WIDE, all blocks are narrow.
FEW_CHANNELS = 4
#: Kernels of a depthwise convolution from which on its gradient of the weight is computed as that of any groups.
LARGE_KERNEL = 5
#: Limits of oneDNN's instructions that leave AVX-512 out; environment variables that set one, the first given counts.
NARROW_LIMITS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
LIMIT_NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
#: PyTorch computes pointwise convolutions of fewer images by itself, on one thread.
ONEDNN_IMAGES = 16
#: And of one image those of at most so many numbers, unless the kernel is larger than so many both ways.
SMALL_IMAGE, SMALL_KERNEL = 20_480, 3


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution; `result` is its result, or the gradient of that."""

    data: Any
    weight: Any
    result: Any
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    groups: int

    def forward(self) -> int:
        """Bytes of workspace of the result."""
        if self._is_by_pytorch:
            return self._columns() + self._joined(self.result)
        if self._is_channels_last:
            return int(self.weight.nbytes) * (1 if self.groups > 1 else 2)
        if self.is_transposed:
            return int(max(self.weight.nbytes + self.data.nbytes, 2 * self.result.nbytes))
        read = _bytes(self.weight, self._block)
        if self._is_pointwise or self.groups > 1 or self.data.shape[1] >= channel_block():
            read = self._copied_data() + self._blocked_weight()
        blocked = self._blocked(self.result)
        return max(read + blocked - int(self.result.nbytes), blocked)

    def gradients(self, of_data: bool, of_weight: bool, of_bias: bool = False) -> int:
        """Bytes of workspace of the gradients that are wanted; oneDNN computes that of the bias with the weight's."""
        if self._is_by_pytorch:
            return self._columns() + self._joined(self.data) * of_data
        if self._is_channels_last:
            return int(self.weight.nbytes) * self._weights_of_channels_last()
        returned = int(self.weight.nbytes) if of_weight or of_bias else 0
        data = self._gradient_of_data() - returned if of_data else 0
        weight = self._gradient_of_weight(returned) if of_weight or of_bias else 0
        return max(data, weight) + (0 if self.result.is_contiguous() else int(self.result.nbytes))

    def _gradient_of_data(self) -> int:
        """Bytes beside the gradient of the input; that of the weight is not there yet."""
        if self.is_transposed:
            return self._blocked_weight() + self._blocked(self.data)
        if self._is_strided and (self.groups == 1 or self.weight.shape[1] > channel_block()):
            return 2 * int(self.data.nbytes)
        blocked = self._blocked(self.data)
        held = self._blocked(self.result) + self._blocked_weight() + blocked - int(self.data.nbytes)
        return max(held, blocked)

    def _gradient_of_weight(self, returned: int) -> int:
        """Bytes beside both gradients; that of the weight has so many `returned`."""
        if self._is_depthwise and max(self.weight.shape[2:]) >= LARGE_KERNEL:
            return 0
        if self.groups > 1 and not self._is_depthwise and (self.weight.shape[1] % NARROW or self._is_pointwise):
            return 0
        read = self._copied_data() + self._blocked(self.result)
        weight = self._blocked_weight()
        channels = (self.result if self.is_transposed else self.data).shape[1]
        if self.groups == 1 and not self._is_pointwise:
            if FEW_CHANNELS <= channels < WIDE:
                read = _bytes(self.data, 1, NARROW) + _bytes(self.result, 1, NARROW)
                weight = _bytes(self.weight, NARROW, NARROW)
            elif channels < FEW_CHANNELS:
                read = self._blocked(self.data if self.is_transposed else self.result)
                weight = _bytes(self.weight, self._block)
        return max(read + weight - returned, weight)

    def _weights_of_channels_last(self) -> int:
        """How many weights the gradients take where channels are the innermost dimension.

        Large kernels of a depthwise convolution have a block of inputs and one of results for each channel; without
        AVX-512 those only that are no larger than the image.
        """
        if self.groups == 1:
            return 3
        kernel, block = max(self.weight.shape[2:]), channel_block()
        is_large = kernel >= LARGE_KERNEL and (block == WIDE or kernel <= min(self.data.shape[2:]))
        return block * block + 1 if self._is_depthwise and is_large else 4

    def _columns(self) -> int:
        """Bytes of the columns that PyTorch makes of one image; none for a pointwise convolution without a stride."""
        if self._is_pointwise and not self._is_strided:
            return 0
        inside, outside = (self.result, self.data) if self.is_transposed else (self.data, self.result)
        kernel, places = prod(self.weight.shape[2:]), prod(outside.shape[2:])
        return int(inside.shape[1] // self.groups * kernel * places * inside.element_size())

    def _joined(self, tensor: Any) -> int:
        """Bytes of the parts of a tensor, one of each group, that PyTorch then joins."""
        return int(tensor.nbytes) if self.groups > 1 else 0

    @property
    def _is_by_pytorch(self) -> bool:
        """PyTorch's own condition, of its source `aten/src/ATen/native/Convolution.cpp`, for numbers of 32 bits."""
        last, images = self.weight.shape[-2:], self.data.shape[0]
        is_dilated = any(step > 1 for step in self.dilation)
        is_simple = not self._is_strided and not is_dilated and images < ONEDNN_IMAGES and all(s == 1 for s in last)
        if is_simple and torch.get_num_threads() == 1:
            return True
        is_small = images == 1 and self.data.numel() <= SMALL_IMAGE
        return self.groups == 1 and is_small and not all(size > SMALL_KERNEL for size in last)

    @property
    def _is_strided(self) -> bool:
        return any(step > 1 for step in self.stride)

    @property
    def _is_pointwise(self) -> bool:
        return all(size == 1 for size in self.weight.shape[2:]) and not any(self.padding)

    @property
    def _is_depthwise(self) -> bool:
        return bool(self.groups > 1 and self.groups == self.data.shape[1] == self.result.shape[1])

    @property
    def _is_channels_last(self) -> bool:
        return any(
            tensor.dim() in (4, 5) and tensor.shape[1] > 1 and tensor.stride(1) == 1 and prod(tensor.shape[2:]) > 1
            for tensor in (self.data, self.weight)
        )

    @property
    def _block(self) -> int:
        """Channels of a block; 1: they are not rounded up."""
        return channel_block() if self.groups == 1 or self._is_depthwise else 1

    def _blocked(self, tensor: Any) -> int:
        return _bytes(tensor, 1, self._block)

    def _blocked_weight(self) -> int:
        return _bytes(self.weight, self._block, 1 if self._is_depthwise else self._block)

    def _copied_data(self) -> int:
        """The blocked input; of a strided pointwise convolution also what it reads of one image for each thread."""
        blocked, images = self._blocked(self.data), self.data.shape[0]
        if not images or not self._is_pointwise or not self._is_strided:
            return blocked
        return blocked + min(images, torch.get_num_threads()) * (blocked // (images * prod(self.stride)))


def channel_block() -> int:
    """Channels of a block on this machine: 8, or 16 where oneDNN may use AVX-512."""
    limit = next((given for name in LIMIT_NAMES if (given := os.environ.get(name))), "")
    return WIDE if has_avx512() and limit.upper() not in NARROW_LIMITS else NARROW


def _bytes(tensor: Any, *blocks: int) -> int:
    """Bytes of a tensor whose first sizes are rounded up to multiples of the blocks."""
    sizes = (-(-size // block) * block for size, block in zip_longest(tensor.shape, blocks, fillvalue=1))
    return int(prod(sizes) * tensor.element_size())
