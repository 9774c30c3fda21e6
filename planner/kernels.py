"""Loops that run as plain Python, or compiled by numba where that pays for its start.

A kernel is an ordinary function over arrays. Kernels that call one another stand in one tuple, each
after those it calls; `compiled` gives the same tuple in machine code, from the disk cache once warm.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

Kernel = Callable[..., Any]

_compiled: dict[tuple[Kernel, ...], tuple[Kernel, ...]] = {}


def compiled(kernels: tuple[Kernel, ...], signatures: Callable[[], tuple[Any, ...]]) -> tuple[Kernel, ...]:
    """The kernels in machine code, compiled once a process for numba signatures."""
    if kernels not in _compiled:
        import numba  # half a second, so only for those who need it

        scope: dict[str, Kernel] = {}
        for kernel, signature in zip(kernels, signatures(), strict=True):
            # The copy sees the compiled versions of the kernels it calls under their own names.
            copy = FunctionType(kernel.__code__, {**kernel.__globals__, **scope}, kernel.__name__)
            copy.__qualname__, copy.__module__ = kernel.__qualname__, kernel.__module__
            scope[kernel.__name__] = numba.njit(signature, cache=True)(copy)
        _compiled[kernels] = tuple(scope[kernel.__name__] for kernel in kernels)
    return _compiled[kernels]


def is_compiled(kernels: tuple[Kernel, ...]) -> bool:
    """Whether this process has paid for compiling them already."""
    return kernels in _compiled
