"""Parameters with equal or transposed content under several names: weights that the model may tie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from onnx import TensorProto

from graph.formats.onnx.roles.contents import is_uniform

ContentOf = Callable[[TensorProto], np.ndarray | None]


def equal_groups(tensors: Iterable[TensorProto], content_of: ContentOf) -> list[list[str]]:
    """Names of tensors with the same content or, for matrices, the transposed one; in order of the file.

    Tensors of one element or of equal elements are left out: layers start with the same zeros and ones.
    """
    candidates: dict[object, list[TensorProto]] = {}
    for tensor in tensors:
        raw = tensor.raw_data
        elements = math.prod(tensor.dims)
        if elements > 1 and raw:
            item = len(raw) // elements
            ends = (raw[:item], raw[-item:])  # the same for a matrix and its transpose
            candidates.setdefault((tensor.data_type, *sorted(tensor.dims), *ends), []).append(tensor)
    groups = []
    for alike in candidates.values():
        groups += _equal(alike, content_of) if len(alike) > 1 else []
    return groups


def _equal(tensors: list[TensorProto], content_of: ContentOf) -> list[list[str]]:
    """Groups of two names or more among tensors with the same ends."""
    groups: list[tuple[np.ndarray, list[str]]] = []
    for tensor in tensors:
        own = content_of(tensor)
        if own is None or is_uniform(own):
            continue
        names = next((names for other, names in groups if _is_same(own, other)), None)
        if names is None:
            groups.append((own, [tensor.name]))
        else:
            names.append(tensor.name)
    return [names for _, names in groups if len(names) > 1]


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b) or (a.ndim == b.ndim == 2 and np.array_equal(a, b.T))
