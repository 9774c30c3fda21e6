"""Computing precision of kernels: float64 for float64, float32 for narrower floats.

Arguments are made contiguous, so that results depend only on shapes and contents, not on strides or
addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graph.ir import TensorType

CHUNK_BYTES = 8 << 20  # of temporaries per chunk; about the size of a cache


def upcast(array: np.ndarray) -> np.ndarray:
    """`array`, contiguous, in computing precision; itself if it is so already."""
    return np.asarray(array, np.float64 if array.dtype == np.float64 else np.float32, order="C")


def upcast_or_none(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else upcast(array)


def downcast_like(result: np.ndarray, like: np.ndarray) -> np.ndarray:
    """`result` rounded to the element type of `like`."""
    return np.asarray(result.astype(like.dtype, copy=False))


def chunks(count: int, bytes_each: int) -> Iterator[slice]:
    """Slices of range(count) of about CHUNK_BYTES each, at least one item."""
    step = max(1, CHUNK_BYTES // max(1, bytes_each))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def statistics_dtype(dtype: str) -> str:
    """Element type of means and deviations of a tensor of `dtype`: float32 at least."""
    return "float64" if dtype == "float64" else "float32"


def require_input_type(type: TensorType | None, what: str) -> TensorType:
    """`type`, which must be known. Raises ValueError naming the input."""
    if type is None:
        raise ValueError(f"{what} has no type; declare its shape and dtype")
    return type


def attribute_shape(attributes: Mapping[str, Any], name: str, op: str) -> tuple[int, ...]:
    """The shape in attribute `name`. Raises ValueError if it is missing."""
    found = attributes.get(name)
    if found is None:
        raise ValueError(f"{op} needs attribute {name}, the shape of its output")
    return tuple(int(n) for n in found)
