"""Options of XLA under which a plan has its effect."""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax

from remat.jax.step.private import options_of_called_jit
from remat.steps.errors import PlanNotKept

#: XLA's compiler for CPUs removes barriers early by default, so that plans have no effect, and orders ops for speed. A
#: loop of few bytes becomes one kernel, and a barrier in it ends the process.
CPU_OPTIONS = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cse_barrier_expander,while-loop-invariant-code-motion,small-while-loop-hoisting",
}


def compiler_options() -> dict[str, Any]:
    """Options for a `jax.jit` around planned functions: `jax.jit(step, compiler_options=remat.jax.compiler_options())`.

    On a CPU the numbers are right without them, but XLA then ignores the order of the plan. Other devices need none.
    """
    return dict(CPU_OPTIONS) if jax.default_backend() == "cpu" else {}


def warn_of_lacking_options() -> None:
    """Warn with `PlanNotKept` of options that the `jax.jit` around a planned function lacks, in the user's call of it.

    Options given to `compile` after `jax.jit(...).lower(...)` are not known yet: nothing is said of them.
    """
    given, flags = options_of_called_jit(), os.environ.get("XLA_FLAGS", "")
    if given is None:
        return
    lacking = [
        f"{name}={value}"
        for name, value in compiler_options().items()
        if not {*value.split(",")} <= {*str(given.get(name, "")).split(",")} and f"--{name}={value}" not in flags
    ]
    if lacking:
        text = f"the jax.jit around a planned function lacks {', '.join(lacking)}: XLA ignores the order of the plan, "
        remedy = "and it saves no memory; use jax.jit(..., compiler_options=remat.jax.compiler_options())"
        warnings.warn(text + remedy, PlanNotKept, stacklevel=3)
