"""Kernels: loops that run as plain Python, or compiled by numba where the start-up cost pays off.

A kernel is an ordinary function over lists or arrays. `Kernels` names the entry points of a set; the kernels that they
call belong to it, and the annotations of a kernel are its compiled signature:

    def slot_of(t: AnnealingTimeline, use: int) -> int        a NamedTuple of arrays, and 64-bit numbers

`compiled` returns the set in machine code, from the installation or the disk cache if it is there.
"""

from __future__ import annotations

import dis
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import FunctionType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from planner import prebuilt_kernels

log = logging.getLogger(__name__)

Kernel = Callable[..., Any]

#: Files that decide how kernels are compiled.
# `columns.py` has constants that kernels hold as numbers.
COMPILER_FILES = tuple(str(Path(__file__).with_name(name)) for name in ("columns.py", "jit.py", "kernel_compiler.py"))

# Arrays in annotations of kernels: dtype and dimensions, C-contiguous. Interpreted, a row may be a list.
Row = Annotated[Any, "int64", 1]
Table = Annotated[Any, "int64", 2]
Cube = Annotated[Any, "int64", 3]
Reals = Annotated[Any, "float64", 1]
Column = Annotated[Any, "int64", 1, "readonly"]  # of a problem


@dataclass(frozen=True, eq=False)
class Kernels:
    """A set of kernels and the options to compile them."""

    entries: tuple[Kernel, ...]  # the kernels that Python calls
    loops: Mapping[str, Kernel] = field(default_factory=dict)  # by name: compiled instead of a kernel that uses numpy
    allocating: frozenset[str] = frozenset()  # names of kernels that allocate arrays or lists

    @cached_property
    def digest(self) -> str:
        """Hash of the source files of the kernels and of their compiler."""
        kernels: list[Any] = [*self.functions, *self.loops.values()]
        files = sorted({*(kernel.__code__.co_filename for kernel in kernels), *COMPILER_FILES})
        return sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:12]

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

    def code_bytes(self) -> int:
        """Size of the bytecode, to which the time to compile is about proportional."""
        return sum(len(kernel.__code__.co_code) for kernel in self.functions)

    def is_compiled(self) -> bool:
        """Whether this process has already compiled or loaded the set."""
        return self in _compiled

    def is_on_disk(self) -> bool:
        """Whether the installation or the disk cache holds the set: its last kernel, compiled after all others.

        The cache is next to the kernel's file, or in folders below NUMBA_CACHE_DIR.
        """
        last = self.functions[-1]
        if prebuilt_kernels.file_of(f"{last.__qualname__}_{self.digest}"):
            return True
        file, cache_dir = Path(last.__code__.co_filename), os.environ.get("NUMBA_CACHE_DIR")
        root, folder = (Path(cache_dir), "*") if cache_dir else (file.parent, "__pycache__")
        return any(root.glob(f"{folder}/{file.stem}.{last.__qualname__}_{self.digest}-*.nbi"))

    def compiled(self) -> dict[str, Kernel]:
        """The entry points in machine code by name, compiled or loaded once per process."""
        if not self.is_compiled():
            _compiled[self] = self._compile()
        return _compiled[self]

    def _compile(self) -> dict[str, Kernel]:
        try:
            scope = self._compile_modules()
        except Exception:  # a numba with another compiler; one by one, kernels are right and take longer to compile
            log.debug("event=kernels_compiled_one_by_one", exc_info=True)
            scope = self._compile_one_by_one()
        return {entry.__name__: scope[entry.__name__] for entry in self.entries}

    def _compile_modules(self) -> dict[str, Kernel]:
        """Load each entry point, or compile it in one module with its callees."""
        scope = dict[str, Any]()
        for function in self.functions:
            if function in self.entries:
                self._add_module(function, scope)
        return scope

    def _add_module(self, entry: FunctionType, scope: dict[str, Any]) -> None:
        """Add an entry point to `scope`, and if it is compiled, the callees before it that are not there yet."""
        from planner.problem.kernel_compiler import module_pipelines  # numba is heavy: half a second

        copy = self._copy(entry)

        def compile_callees() -> None:
            for callee in self.functions[: self.functions.index(entry)]:
                if callee.__name__ not in scope:
                    self._add_compiled(callee, self._copy(callee), scope, pipeline_class=of_callee)
            copy.__globals__.update(scope)

        of_callee, of_entry = module_pipelines(compile_callees)
        self._add_compiled(entry, copy, scope, cache=True, pipeline_class=of_entry)

    def _compile_one_by_one(self) -> dict[str, Kernel]:
        """Load or compile each kernel in a module of its own."""
        scope = dict[str, Any]()
        for function in self.functions:
            self._add_compiled(function, self._copy(function), scope, cache=True)
        return scope

    def _copy(self, function: FunctionType) -> FunctionType:
        """The function to compile as a kernel: with globals of its own, and a name that carries the hash of all files.

        Numba's cache checks the file of one kernel only.
        """
        kernel = self.loops.get(function.__name__, function)
        copy = FunctionType(kernel.__code__, {**kernel.__globals__}, kernel.__name__)
        copy.__qualname__, copy.__module__ = f"{kernel.__qualname__}_{self.digest}", kernel.__module__
        return copy

    def _add_compiled(self, kernel: Kernel, copy: FunctionType, scope: dict[str, Any], **options: Any) -> None:
        """Compile or load the copy of a kernel; `scope` has the compiled kernels that it calls, and gets this one."""
        import numba  # heavy: half a second, not needed where nothing is compiled

        from planner.problem.kernel_compiler import PrebuiltCache  # as heavy

        name = kernel.__name__
        copy.__globals__.update(scope)
        # Without numba's runtime (`_nrt`) references are not counted. Counting is an atomic operation at
        # each use of a field, most of the time of a kernel over a record of arrays.
        options |= {"nogil": True, "_nrt": name in self.allocating}  # nogil: threads run in parallel
        compiled: Any = numba.njit(**options)(copy)
        copy.__globals__[name] = compiled  # a kernel may call itself
        if not isinstance(compiled, FunctionType):  # as with NUMBA_DISABLE_JIT
            if options.get("cache") and (file := prebuilt_kernels.file_of(copy.__qualname__)):
                compiled._cache = PrebuiltCache(copy, file)
            compiled.compile(_signature(kernel))
            compiled.disable_compile()
        scope[name] = compiled


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
