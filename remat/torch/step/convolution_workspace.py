"""Workspace of convolutions on a CPU that were not measured: the copies that oneDNN makes.

It computes on a blocked layout, whose channels are rounded up to whole blocks of 16 where the processor has AVX-512,
else of 8:

    forward                   copies of input and weight, and the blocked result; then the result beside the blocked one
    gradient of the input     copies of gradient and weight, and the blocked result; then the result beside it
    gradient of the weight    copies of input and gradient, and the blocked result; then the result beside it

Left as they lie: all of a pointwise convolution, inputs of few channels, tensors whose channels are the innermost
dimension. Groups of several channels are not rounded up. A pointwise convolution with a stride first copies what it
reads of one image. With a stride, the gradient of the input is computed beside a copy of that input.

Found by measuring each shape alone, in float32 on one thread with PyTorch 2.13 (`tests/torch/test_workspace.py`).

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

#: Channels of a block without AVX-512 and with it.
NARROW, WIDE = 8, 16
#: For the gradient of the weight, inputs of fewer channels have no copy; from then on to WIDE, all blocks are narrow.
FEW_CHANNELS = 4
#: Kernels of a depthwise convolution from which on the gradient of the weight needs no copies.
LARGE_KERNEL = 5
#: Limits of oneDNN's instructions that leave AVX-512 out; an environment variable of either name sets one.
NARROW_LIMITS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2")
LIMIT_NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution; `result` is its result, or the gradient of that."""

    data: Any
    weight: Any
    result: Any
    stride: Sequence[int]
    padding: Sequence[int]
    is_transposed: bool
    groups: int

    def forward(self) -> int:
        """Bytes of workspace of the result."""
        if self._is_plain:
            return 0
        if self._is_channels_last:
            return int(self.weight.nbytes) * (1 if self.groups > 1 else 2)
        if self.is_transposed:
            return int(max(self.weight.nbytes + self.data.nbytes, 2 * self.result.nbytes))
        read = _bytes(self.weight, self._block)
        if self._is_pointwise or self.groups > 1 or self.data.shape[1] >= channel_block():
            read = self._copied_data() + self._blocked_weight()
        blocked = self._blocked(self.result)
        return max(read + blocked - int(self.result.nbytes), blocked)

    def gradients(self, of_data: bool, of_weight: bool) -> int:
        """Bytes of workspace of the gradients computed, the larger of both."""
        if self._is_plain:
            return 0
        if self._is_channels_last:
            return int(self.weight.nbytes) * (4 if self.groups > 1 else 3)
        returned = int(self.weight.nbytes) if of_weight else 0
        data = self._gradient_of_data() - returned if of_data and not self.is_transposed else 0
        weight = self._gradient_of_weight(returned) if of_weight or self.is_transposed else 0
        return max(data, weight) + (0 if self.result.is_contiguous() else int(self.result.nbytes))

    def _gradient_of_data(self) -> int:
        """Bytes beside the gradient of the input; that of the weight is not there yet."""
        is_strided = any(step > 1 for step in self.stride)
        if is_strided and (self.groups == 1 or self.weight.shape[1] > channel_block()):
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
            elif channels < FEW_CHANNELS and not self.is_transposed:
                read, weight = self._blocked(self.result), _bytes(self.weight, self._block)
        return max(read + weight - returned, weight)

    @property
    def _is_plain(self) -> bool:
        return self.groups == 1 and self._is_pointwise and all(step == 1 for step in self.stride)

    @property
    def _is_pointwise(self) -> bool:
        return all(size == 1 for size in self.weight.shape[2:]) and not any(self.padding)

    @property
    def _is_depthwise(self) -> bool:
        return bool(self.groups > 1 and self.groups == self.data.shape[1] == self.result.shape[1])

    @property
    def _is_channels_last(self) -> bool:
        data = self.data
        return bool(data.dim() == 4 and data.shape[1] > 1 and data.stride(1) == 1 and prod(data.shape[2:]) > 1)

    @property
    def _block(self) -> int:
        """Channels of a block; 1: they are not rounded up."""
        return channel_block() if self.groups == 1 or self._is_depthwise else 1

    def _blocked(self, tensor: Any) -> int:
        return _bytes(tensor, 1, self._block)

    def _blocked_weight(self) -> int:
        return _bytes(self.weight, self._block, 1 if self._is_depthwise else self._block)

    def _copied_data(self) -> int:
        """The blocked input, and what the stride of a pointwise convolution leaves of one image of it."""
        blocked, parts = self._blocked(self.data), self.data.shape[0] * prod(self.stride)
        is_strided = self._is_pointwise and any(step > 1 for step in self.stride)
        return blocked + (blocked // parts if is_strided and parts else 0)


def channel_block() -> int:
    """Channels of a block on this machine: 8, or 16 where oneDNN may use AVX-512."""
    limits = {os.environ.get(name, "").upper() for name in LIMIT_NAMES}
    return WIDE if torch.backends.cpu.get_cpu_capability() == "AVX512" and not limits & {*NARROW_LIMITS} else NARROW


def _bytes(tensor: Any, *blocks: int) -> int:
    """Bytes of a tensor whose first sizes are rounded up to multiples of the blocks."""
    sizes = (-(-size // block) * block for size, block in zip_longest(tensor.shape, blocks, fillvalue=1))
    return int(prod(sizes) * tensor.element_size())
