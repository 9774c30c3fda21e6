"""One byte array in which every value of a run lives at a planned address.

Live addresses are kept as disjoint intervals. A write onto live bytes is refused, unless they belong
to an input that ends at this very node and may be taken over. Freed bytes are overwritten at once, so
that whoever reads them computes something else.
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
    """Planned addresses, in bytes. A value or node without bytes may have -1 or be left out."""

    size_bytes: int
    value_offsets: Sequence[int]  # per value of the graph; a view has its storage's
    workspace_offsets: Mapping[int, int] = field(default_factory=dict)  # node -> where its workspace lies


class ArenaBytes:
    """The bytes of a running arena and which of them are live, by whom."""

    def __init__(self, size_bytes: int):
        self.memory = np.full(size_bytes, POISON, np.uint8)
        self.starts: list[int] = []  # of live intervals, ascending; they are disjoint
        self.owners: list[int] = []
        self.ends: dict[int, int] = {}  # owner -> end of its interval
        self.begins: dict[int, int] = {}

    def live(self, owner: int) -> bool:
        return owner in self.begins

    def overlapping(self, begin: int, end: int) -> Iterable[tuple[int, int]]:
        """(owner, bytes in common) of every live interval that meets [begin, end)."""
        at = max(0, bisect.bisect_right(self.starts, begin) - 1)
        while at < len(self.starts) and self.starts[at] < end:
            owner = self.owners[at]
            common = min(end, self.ends[owner]) - max(begin, self.starts[at])
            if common > 0:
                yield owner, common
            at += 1

    def claim(self, owner: int, begin: int, size: int, name: str) -> None:
        """Make [begin, begin + size) live. Raises ArenaFault when any of it is live already or outside."""
        if size == 0:
            self.begins[owner] = self.ends[owner] = 0
            return
        self.check_inside(begin, size, name)
        for _, common in self.overlapping(begin, begin + size):
            raise ArenaFault(f"{name} is to lie at [{begin}, {begin + size}), of which {common} bytes are live")
        at = bisect.bisect_left(self.starts, begin)
        self.starts.insert(at, begin)
        self.owners.insert(at, owner)
        self.begins[owner], self.ends[owner] = begin, begin + size

    def release(self, owner: int) -> None:
        """Free an owner's bytes and overwrite them."""
        begin, end = self.begins.pop(owner), self.ends.pop(owner)
        if end > begin:
            at = bisect.bisect_left(self.starts, begin)
            del self.starts[at], self.owners[at]
            self.memory[begin:end] = POISON

    def check_inside(self, begin: int, size: int, name: str) -> None:
        if begin < 0 or begin + size > len(self.memory):
            raise ArenaFault(
                f"{name} is to lie at [{begin}, {begin + size}), outside an arena of {len(self.memory)} bytes"
            )

    def load(self, begin: int, type: TensorType) -> np.ndarray:
        """The array that lies at an address, as a copy."""
        return unpacked(self.memory[begin : begin + type.nbytes], type)

    def store(self, begin: int, array: np.ndarray, type: TensorType) -> None:
        self.memory[begin : begin + type.nbytes] = packed(array, type)


def packed(array: np.ndarray, type: TensorType) -> np.ndarray:
    """uint8[type.nbytes]: the elements as bytes, several to a byte below 8 bits, the first lowest."""
    bits = DTYPE_BITS[type.dtype]
    flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)
    if bits >= 8:
        return flat
    each = 8 // bits
    codes = np.zeros(type.nbytes * each, np.uint8)
    codes[: flat.size] = flat & (2**bits - 1)
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(codes.reshape(-1, each) << shifts, axis=1), np.uint8)


def unpacked(data: np.ndarray, type: TensorType) -> np.ndarray:
    """The array whose bytes `packed` makes; always a copy."""
    bits, dtype = DTYPE_BITS[type.dtype], numpy_dtype(type.dtype)
    if bits >= 8:
        return data.copy().view(dtype).reshape(type.shape)
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    codes = ((data[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1)[: type.elements]
    if type.dtype.startswith("int"):  # the sign bit is spread to the byte's top
        codes = ((codes ^ np.uint8(1 << (bits - 1))) - np.uint8(1 << (bits - 1))).astype(np.uint8)
    return np.array(codes, order="C").view(dtype).reshape(type.shape)
