"""Loops that run as plain Python, or compiled by numba where that pays for its start.

A kernel is an ordinary function over lists or arrays. Those that call one another make a set, each
after the ones it calls; `compiled` gives the set in machine code, from the disk cache once warm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

Kernel = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class Kernels:
    """Kernels by name, and how they are compiled."""

    functions: tuple[Kernel, ...]
    signatures: Callable[[], Mapping[str, Any]]  # by name; imports numba, half a second
    loops: Mapping[str, Kernel]  # by name: what is compiled instead, where numpy is only faster interpreted

    def interpreted(self) -> dict[str, Kernel]:
        return {kernel.__name__: kernel for kernel in self.functions}

    def is_compiled(self) -> bool:
        """Whether this process has paid for compiling or loading them already."""
        return id(self) in _compiled

    def compiled(self) -> dict[str, Kernel]:
        """The kernels in machine code, made once a process."""
        if not self.is_compiled():
            _compiled[id(self)] = self._compile()
        return _compiled[id(self)]

    def _compile(self) -> dict[str, Kernel]:
        import numba

        signatures = self.signatures()
        scope: dict[str, Kernel] = {}
        for function in self.functions:
            name = function.__name__
            kernel = self.loops.get(name, function)
            # The copy sees the compiled versions of the kernels it calls under their own names.
            copy = FunctionType(kernel.__code__, {**kernel.__globals__, **scope}, kernel.__name__)
            copy.__qualname__, copy.__module__ = kernel.__qualname__, kernel.__module__
            scope[name] = numba.njit(signatures[name], cache=True)(copy)
        return scope


_compiled: dict[int, dict[str, Kernel]] = {}
