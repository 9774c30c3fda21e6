"""Compile an entry point and its callees as one LLVM module; imports numba, see `jit.py`.

Compiled one by one, a kernel is optimised again within each kernel that calls it, and gets unused machine
code and an unused Python wrapper. In one module all are optimised and translated once.

Extension points of numba: https://numba.readthedocs.io/en/stable/developer/custom_pipeline.html
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.compiler import Compiler, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import NoPythonBackend

log = logging.getLogger(__name__)


class PrebuiltCache(FunctionCache):
    """numba's disk cache of a function, and the file of a prebuilt kernel where the cache has no entry."""

    def __init__(self, function: Callable[..., Any], prebuilt: Path):
        super().__init__(function)
        self.prebuilt = prebuilt

    def _load_overload(self, signature: Any, target: Any) -> Any:
        found = super()._load_overload(signature, target)
        if found is None:
            try:
                found = self._impl.rebuild(target, pickle.loads(self.prebuilt.read_bytes()))
            except Exception:  # cut off, or of another compiler: it is compiled instead
                log.warning("event=prebuilt_kernel_unusable file=%s", self.prebuilt, exc_info=True)
        return found


@register_pass(mutates_CFG=False, analysis_only=False)
class RegisterCallee(LoweringPass):
    """Pass that makes a kernel without machine code of its own known to its callers."""

    _name = "remat_register_callee"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Register the kernel under a new built-in function, the key by which numba finds a compiled function."""
        key: Callable[..., None] = [].append
        state.targetctx.insert_user_function(key, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(entry_point=key)
        return True


def module_pipelines(compile_callees: Callable[[], None]) -> tuple[type[Compiler], type[Compiler]]:
    """Values of numba's option `pipeline_class` for the callees and the entry point of one module.

    `compile_callees` is called if the entry point is compiled, that is, if it is not in numba's cache.
    """
    libraries: list[Any] = []  # numba's handle of the module, once there are callees

    def library_of(state: Any) -> Any:
        if not libraries:
            library = state.targetctx.codegen().create_library("remat_kernels")
            link = library.add_linking_library
            library.add_linking_library = lambda other: None if other is library else link(other)
            library.enable_object_caching()
            libraries.append(library)
        return libraries[0]

    class CalleeCompiler(Compiler):
        def __init__(self, *context: Any):
            super().__init__(*context)
            self.state.library = library_of(self.state)
            flags = self.state.flags
            flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True

        def define_pipelines(self) -> list[Any]:
            passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
            passes.add_pass_after(RegisterCallee, NoPythonBackend)
            passes.finalize()
            return [passes]

    class EntryCompiler(Compiler):
        def __init__(self, *context: Any):
            compile_callees()
            super().__init__(*context)
            self.state.library = library_of(self.state)
            self.state.flags.no_cfunc_wrapper = True

    return CalleeCompiler, EntryCompiler
