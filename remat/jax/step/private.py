"""The names of JAX that are not public, behind one door; for the JAX of `constraints.txt`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import jax
from jax._src import source_info_util
from jax._src.interpreters import mlir
from jax._src.lax.lax import _convert_element_type
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo


def source_line(equation: Any) -> str:
    """`file:line` of the user's code that an equation comes from, or ""."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    return "" if frame is None else f"{frame.file_name}:{frame.start_line}"


def scope(equation: Any) -> str:
    """Names of `jax.named_scope` and of transformations around an equation, such as `jvp(block)/mlp`."""
    return str(equation.source_info.name_stack)


def is_drop(variable: Any) -> bool:
    """Whether an output of an equation is thrown away."""
    return type(variable).__name__ == "DropVar"


def is_sharded(equation: Any) -> bool:
    """Whether a nested `jit` names the sharding of its arguments or results."""
    named = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return any(type(sharding).__name__ != "UnspecifiedValue" for sharding in named)


def with_weak_type(array: Any, is_weak: bool) -> Any:
    """An array with the same dtype and values, weakly typed or not."""
    return array if jax.typeof(array).weak_type == is_weak else _convert_element_type(array, weak_type=is_weak)


def mlir_text(bytecode: bytes) -> str:
    """Text of a StableHLO module in bytecode, portable or not, with locations."""
    with mlir.make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, bytecode)
        except ir.MLIRError:
            module = ir.Module.parse(bytecode)
        return str(module.operation.get_asm(enable_debug_info=True))


def options_of_called_jit() -> dict[str, Any] | None:
    """Compiler options of the outermost `jax.jit` that is called now and traced for it; None if there is none."""
    frame: FrameType | None = sys._getframe()
    found = None
    while frame is not None:
        if frame.f_code.co_name == "cache_miss" and "jit_info" in frame.f_locals:
            found = frame.f_locals["jit_info"]
        frame = frame.f_back
    return None if found is None else dict(found.compiler_options_kvs)
