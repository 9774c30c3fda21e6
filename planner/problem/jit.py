"""Kernels: loops that run as plain Python, or compiled by numba where the start-up cost pays off.

A kernel is an ordinary function over lists or arrays. Kernels that call one another form a set, callees
first; `compiled` returns the set in machine code, from the disk cache once warm.
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
    """A set of kernels and the options to compile them."""

    functions: tuple[Kernel, ...]
    signatures: Callable[[], Mapping[str, Any]]  # by name; imports numba, which takes half a second
    loops: Mapping[str, Kernel]  # by name: explicit loops to compile instead of a kernel that uses numpy
    allocating: frozenset[str]  # names of kernels that allocate arrays or lists

    def interpreted(self) -> dict[str, Kernel]:
        """The plain Python kernels by name."""
        return {kernel.__name__: kernel for kernel in self.functions}

    def is_compiled(self) -> bool:
        """Whether this process has already compiled or loaded the set."""
        return self in _compiled

    def is_on_disk(self) -> bool:
        """Whether the disk cache holds the set: its last kernel, which is compiled after all others.

        The cache is next to the kernel's file, or in folders below NUMBA_CACHE_DIR.
        """
        last = self.functions[-1]
        file, cache_dir = Path(last.__code__.co_filename), os.environ.get("NUMBA_CACHE_DIR")
        root, folder = (Path(cache_dir), "*") if cache_dir else (file.parent, "__pycache__")
        return any(root.glob(f"{folder}/{file.stem}.{last.__qualname__}_{self._digest()}-*.nbi"))

    def compiled(self) -> dict[str, Kernel]:
        """The kernels in machine code by name, compiled or loaded once per process."""
        if not self.is_compiled():
            _compiled[self] = self._compile()
        return _compiled[self]

    def _digest(self) -> str:
        """Hash of the source files of the kernels and of this file, which holds the compiler options."""
        own = {function.__code__.co_filename for function in (*self.functions, *self.loops.values())}
        files = sorted({*own, __file__})
        return sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:12]

    def _compile(self) -> dict[str, Kernel]:
        import numba  # heavy: half a second, not needed where nothing is compiled

        signatures, sources = self.signatures(), self._digest()
        scope: dict[str, Any] = {}
        for function in self.functions:
            name = function.__name__
            kernel = self.loops.get(name, function)
            # The copy resolves the kernels it calls, itself included, to their compiled versions.
            seen = {**kernel.__globals__, **scope}
            copy = FunctionType(kernel.__code__, seen, kernel.__name__)
            # Numba's cache checks the file of one kernel only; the name carries the hash of all files.
            copy.__qualname__, copy.__module__ = f"{kernel.__qualname__}_{sources}", kernel.__module__
            # Without numba's runtime (`_nrt`) references are not counted. Counting is an atomic operation at
            # each use of a field, most of the time of a kernel over a record of arrays.
            options = {"cache": True, "nogil": True, "_nrt": name in self.allocating}  # nogil: threads run in parallel
            scope[name] = seen[name] = numba.njit(**options)(copy)  # type: ignore[call-overload]
            scope[name].compile(signatures[name])
            scope[name].disable_compile()
        return scope


_compiled: dict[Kernels, dict[str, Kernel]] = {}
