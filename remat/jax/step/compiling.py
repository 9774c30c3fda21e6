"""Options of XLA under which a plan has its effect."""

from __future__ import annotations

from typing import Any

import jax

#: XLA's compiler for CPUs removes barriers early by default, so that plans have no effect, and orders ops for speed.
CPU_OPTIONS = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cse_barrier_expander,while-loop-invariant-code-motion",
}


def compiler_options() -> dict[str, Any]:
    """Options for a `jax.jit` around planned functions: `jax.jit(step, compiler_options=remat.jax.compiler_options())`.

    On a CPU the numbers are right without them, but XLA then ignores the order of the plan. Other devices need none.
    """
    return dict(CPU_OPTIONS) if jax.default_backend() == "cpu" else {}
