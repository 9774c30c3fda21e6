"""Bytes that XLA takes beside operands and results of a task: random bits, scatters and loops have their own.

Every distinct task is compiled alone, for shapes: nothing is computed, and no array is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from remat.jax.step.tasks import Task


def workspaces(tasks: Sequence[Task], options: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of workspace of tasks by name; one that XLA does not compile alone is left out.

    Parameters:
        tasks: The tasks of a step.
        options: Options of the compiler, as the step will be compiled.
    """
    known: dict[str, int | None] = {}
    found: dict[str, int] = {}
    for task in tasks:
        function = _function(task)
        shapes = [jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype) for value in task.reads]
        key = str(jax.make_jaxpr(function)(*shapes))
        if key not in known:
            known[key] = _bytes(function, shapes, options)
        size = known[key]
        if size is not None:
            found[task.name] = size
    return found


def _function(task: Task) -> Any:
    def alone(*operands: Any) -> list[Any]:
        return list(task.computed(dict(zip(task.reads, operands, strict=True))).values())

    return alone


def _bytes(function: Any, shapes: Sequence[Any], options: Mapping[str, Any]) -> int | None:
    try:
        compiled = jax.jit(function).lower(*shapes).compile(compiler_options=dict(options))
    except jax.errors.JaxRuntimeError:
        return None
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
