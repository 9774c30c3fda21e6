"""A byte array that holds every value of a run at its planned address.

Live addresses are disjoint intervals. A write onto live bytes raises ArenaFault, unless they belong to an
input whose last use is this node and that may be overwritten in place. Freed bytes are poisoned at once,
so that a read after free changes the result.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graph.errors import ArenaFault
from graph.ir import DTYPE_BITS, TensorType
from graph.ops.registry.onnx_fallback import numpy_dtype

POISON = 0xFF  # NaN in every float


@dataclass(frozen=True, eq=False, slots=True)
class Arena:
    """Planned addresses, in bytes. The address of a value or workspace of 0 bytes may be -1."""

    size_bytes: int
    value_offsets: Sequence[int]  # per value; a view has the offset of its storage
    workspace_offsets: Mapping[int, int] = field(default_factory=dict)  # node -> offset of its workspace


class ArenaBytes:
    """The bytes of an arena during a run, and the live intervals with their owners."""

    def __init__(self, size_bytes: int):
        self.memory = np.full(size_bytes, POISON, np.uint8)
        self.starts: list[int] = []  # of the disjoint live intervals, ascending
        self.owners: list[int] = []
        self.ends: dict[int, int] = {}  # owner -> end of its interval
        self.begins: dict[int, int] = {}

    def live(self, owner: int) -> bool:
        return owner in self.begins

    def overlapping(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """(owner, common bytes) of every live interval that overlaps [begin, end)."""
        at = max(0, bisect.bisect_right(self.starts, begin) - 1)
        while at < len(self.starts) and self.starts[at] < end:
            owner = self.owners[at]
            common = min(end, self.ends[owner]) - max(begin, self.starts[at])
            if common > 0:
                yield owner, common
            at += 1

    def claim(self, owner: int, begin: int, size: int, name: str) -> None:
        """Make [begin, begin + size) live. Raises ArenaFault if part of it is live or outside the arena."""
        if size == 0:
            self.begins[owner] = self.ends[owner] = 0
            return
        self.check_inside(begin, size, name)
        for _, common in self.overlapping(begin, begin + size):
            raise ArenaFault(f"{name} is placed at [{begin}, {begin + size}), of which {common:,} bytes are live")
        at = bisect.bisect_left(self.starts, begin)
        self.starts.insert(at, begin)
        self.owners.insert(at, owner)
        self.begins[owner], self.ends[owner] = begin, begin + size

    def release(self, owner: int) -> None:
        """Free an owner's bytes and poison them."""
        begin, end = self.begins.pop(owner), self.ends.pop(owner)
        if end > begin:
            at = bisect.bisect_left(self.starts, begin)
            del self.starts[at], self.owners[at]
            self.memory[begin:end] = POISON

    def check_inside(self, begin: int, size: int, name: str) -> None:
        if begin < 0 or begin + size > len(self.memory):
            raise ArenaFault(
                f"{name} is placed at [{begin}, {begin + size}), outside an arena of {len(self.memory):,} bytes"
            )

    def load(self, begin: int, type: TensorType) -> np.ndarray:
        """A copy of the array at an address."""
        return unpacked(self.memory[begin : begin + type.nbytes], type)

    def store(self, begin: int, array: np.ndarray, type: TensorType) -> None:
        self.memory[begin : begin + type.nbytes] = packed(array, type)


def packed(array: np.ndarray, type: TensorType) -> np.ndarray:
    """uint8[type.nbytes]: the elements as bytes; sub-byte elements are packed, the first in the lowest bits."""
    bits = DTYPE_BITS[type.dtype]
    flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    if bits >= 8:
        return flat
    per_byte = 8 // bits
    codes = np.zeros(type.nbytes * per_byte, np.uint8)
    codes[: flat.size] = flat & (2**bits - 1)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(codes.reshape(-1, per_byte) << shifts, axis=1), np.uint8)


def unpacked(data: np.ndarray, type: TensorType) -> np.ndarray:
    """The array of which `data` are the packed bytes; always a copy."""
    bits, dtype = DTYPE_BITS[type.dtype], numpy_dtype(type.dtype)
    if bits >= 8:
        return data.copy().view(dtype).reshape(type.shape)
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    codes = ((data[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1)[: type.elements]
    if type.dtype.startswith("int"):  # sign extension
        codes = ((codes ^ np.uint8(1 << (bits - 1))) - np.uint8(1 << (bits - 1))).astype(np.uint8)
    return np.array(codes, order="C").view(dtype).reshape(type.shape)
