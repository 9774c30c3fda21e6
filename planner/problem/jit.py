"""Kernels: loops that run as plain Python, or compiled by numba where the start-up cost pays off.

A kernel is an ordinary function over lists or arrays. `Kernels` names the entry points of a set; the kernels that they
call belong to it, and the annotations of a kernel are its compiled signature:

    def slot_of(t: AnnealingTimeline, use: int) -> int        a NamedTuple of arrays, and 64-bit numbers

`compiled` returns the set in machine code, from the disk cache once warm.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import FunctionType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

Kernel = Callable[..., Any]

# Arrays in annotations of kernels: dtype and dimensions, C-contiguous. Interpreted, a row may be a list.
Row = Annotated[Any, "int64", 1]
Table = Annotated[Any, "int64", 2]
Cube = Annotated[Any, "int64", 3]
Reals = Annotated[Any, "float64", 1]


@dataclass(frozen=True, eq=False)
class Kernels:
    """A set of kernels and the options to compile them."""

    entries: tuple[Kernel, ...]  # the kernels that Python calls
    loops: Mapping[str, Kernel] = field(default_factory=dict)  # by name: compiled instead of a kernel that uses numpy
    allocating: frozenset[str] = frozenset()  # names of kernels that allocate arrays or lists

    @cached_property
    def functions(self) -> tuple[FunctionType, ...]:
        """The entry points and all kernels that they call, callees first."""
        found: dict[FunctionType, None] = {}
        for entry in self.entries:
            _add_with_callees(entry, found)
        return tuple(found)

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
        kernels: list[Any] = [*self.functions, *self.loops.values()]
        files = sorted({*(kernel.__code__.co_filename for kernel in kernels), __file__})
        return sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:12]

    def _compile(self) -> dict[str, Kernel]:
        import numba  # heavy: half a second, not needed where nothing is compiled

        sources, scope = self._digest(), dict[str, Any]()
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
            if not isinstance(scope[name], FunctionType):  # as with NUMBA_DISABLE_JIT
                scope[name].compile(_signature(function))
                scope[name].disable_compile()
        return scope


_compiled: dict[Kernels, dict[str, Kernel]] = {}


def _add_with_callees(kernel: Any, found: dict[FunctionType, None]) -> None:
    """Add the kernel to `found`, after the functions that its code names."""
    if not isinstance(kernel, FunctionType) or kernel in found:
        return
    for instruction in dis.get_instructions(kernel):
        if instruction.opname == "LOAD_GLOBAL":
            _add_with_callees(kernel.__globals__.get(instruction.argval), found)
    found[kernel] = None


def _signature(kernel: Kernel) -> Any:
    """The numba signature of a kernel, from its annotations."""
    hints = get_type_hints(kernel, include_extras=True)
    result = _numba_type(hints.pop("return"))
    return result(*map(_numba_type, hints.values()))


def _numba_type(hint: Any) -> Any:
    """The numba type of an annotation: a number, an array, or a tuple or NamedTuple of these."""
    import numba  # heavy: half a second, not needed where nothing is compiled

    numbers = {int: numba.int64, float: numba.float64, bool: numba.boolean, NoneType: numba.void}
    if hint in numbers:
        return numbers[hint]
    if get_origin(hint) is Annotated:
        _, dtype, dimensions, *options = get_args(hint)
        return numba.types.Array(getattr(numba, dtype), dimensions, "C", readonly="readonly" in options)
    is_record = isinstance(hint, type)
    members = get_type_hints(hint, include_extras=True).values() if is_record else get_args(hint)
    types = [_numba_type(each) for each in members]
    return numba.types.BaseTuple.from_types(types, hint if is_record else None)  # type: ignore[no-untyped-call]
