"""Tensors that are never trained, recognized by their content."""

from __future__ import annotations

import numpy as np

MAX_ELEMENTS = 1 << 24  # larger tensors are not examined
_MASKED = -1e4  # values up to here mark masked entries
_INFINITE = 1e30  # absolute values from here on are no weights
_MIN_SERIES = 4  # elements of the shortest series that counts as one


def is_fixed(content: np.ndarray) -> bool:
    """True for a mask, an index series, rotary frequencies, or a table of sines and cosines."""
    if not 0 < content.size <= MAX_ELEMENTS:
        return False
    numbers = content.astype(np.float32)
    if not bool((np.abs(numbers) < _INFINITE).all()) or _is_mask(numbers):
        return True
    squeezed = numbers.squeeze()
    if squeezed.ndim == 1 and squeezed.size >= _MIN_SERIES:
        return _is_series(squeezed)
    return squeezed.ndim > 1 and _is_sinusoidal(squeezed.reshape(-1, squeezed.shape[-1]))


def is_uniform(content: np.ndarray) -> bool:
    """True when all elements are equal."""
    return content.size > 0 and bool((content == content.flat[0]).all())


def _is_mask(numbers: np.ndarray) -> bool:
    """Zeros, and one value of at most -1e4."""
    low = numbers.min()
    return bool(low <= _MASKED and ((numbers == 0) | (numbers == low)).all())


def _is_series(numbers: np.ndarray) -> bool:
    """0, 1, 2, ..., or the frequencies 1, r, r², ... of rotary embeddings."""
    if np.array_equal(numbers, np.arange(numbers.size)):
        return True
    if numbers[0] != 1 or not bool((numbers > 0).all()) or not numbers[1] < 1:
        return False
    return np.allclose(numbers[1:], numbers[:-1] * numbers[1], rtol=1e-3, atol=0)


def _is_sinusoidal(rows: np.ndarray) -> bool:
    """Sines and cosines of positions: both in each row, or one table of each."""
    if len(rows) < 2 or bool((np.abs(rows) > 1 + 1e-6).any()) or is_uniform(rows):
        return False
    width = rows.shape[1]
    if width % 2 == 0 and np.allclose((rows**2).sum(1), width / 2, rtol=1e-3) and not bool((rows == rows[0]).all()):
        return True
    first = next((f for f in (np.sin, np.cos) if bool((rows[0] == f(0)).all())), None)
    return first is not None and abs(float(rows[1, 0]) - float(first(1))) < 1e-4
