"""Loops that run as plain Python, or compiled by numba where that pays for its start.

A kernel is an ordinary function over lists or arrays. Those that call one another make a set, each
after the ones it calls; `compiled` gives the set in machine code, from the disk cache once warm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

Kernel = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class Kernels:
    """Kernels by name, and how they are compiled."""

    functions: tuple[Kernel, ...]
    signatures: Callable[[], Mapping[str, Any]]  # by name; imports numba, half a second
    loops: Mapping[str, Kernel]  # by name: what is compiled instead, where numpy is only faster interpreted
    allocating: frozenset[str]  # names of those that make arrays or lists

    def interpreted(self) -> dict[str, Kernel]:
        return {kernel.__name__: kernel for kernel in self.functions}

    def is_compiled(self) -> bool:
        """Whether this process has paid for compiling or loading them already."""
        return self in _compiled

    def is_on_disk(self) -> bool:
        """Whether the cache holds the last kernel, which is compiled after all others.

        It is beside the kernel's file, or in folders below NUMBA_CACHE_DIR.
        """
        last = self.functions[-1]
        file, elsewhere = Path(last.__code__.co_filename), os.environ.get("NUMBA_CACHE_DIR")
        place, folder = (Path(elsewhere), "*") if elsewhere else (file.parent, "__pycache__")
        return any(place.glob(f"{folder}/{file.stem}.{last.__qualname__}_{self._digest()}-*.nbi"))

    def compiled(self) -> dict[str, Kernel]:
        """The kernels in machine code, made once a process."""
        if not self.is_compiled():
            _compiled[self] = self._compile()
        return _compiled[self]

    def _digest(self) -> str:
        """Of the files the kernels stand in, and of this one, which says how they are compiled."""
        own = {function.__code__.co_filename for function in (*self.functions, *self.loops.values())}
        files = sorted({*own, __file__})
        return sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:12]

    def _compile(self) -> dict[str, Kernel]:
        import numba  # heavy: half a second, and not needed where nothing is compiled

        signatures, sources = self.signatures(), self._digest()
        scope: dict[str, Any] = {}
        for function in self.functions:
            name = function.__name__
            kernel = self.loops.get(name, function)
            # The copy sees the compiled versions of the kernels it calls, itself too, under their own names.
            seen = {**kernel.__globals__, **scope}
            copy = FunctionType(kernel.__code__, seen, kernel.__name__)
            # The cache looks at the file of one kernel only; the name tells it of all it was compiled with.
            copy.__qualname__, copy.__module__ = f"{kernel.__qualname__}_{sources}", kernel.__module__
            # Without numba's runtime (`_nrt`) nobody counts references, which at each use of a field is an
            # atomic operation: most of the time of a kernel that goes through a record of arrays.
            options = {"cache": True, "nogil": True, "_nrt": name in self.allocating}  # threads run side by side
            scope[name] = seen[name] = numba.njit(**options)(copy)  # type: ignore[call-overload]
            scope[name].compile(signatures[name])
            scope[name].disable_compile()
        return scope


_compiled: dict[Kernels, dict[str, Kernel]] = {}
