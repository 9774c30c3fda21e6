"""JAX in and out: trace a training step, plan it, and train within the budget.

import remat.jax

loss_and_gradients = remat.jax.optimize(loss, params, batch, budget="60%")  # in place of jax.value_and_grad(loss)
print(loss_and_gradients.report)

captured = remat.jax.capture(loss, params, batch)  # the step as a graph document, for `remat plan`
captured.save("step.json")
"""

from __future__ import annotations

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError('remat.jax needs JAX: pip install "remat[jax]"') from error

from remat.jax.capturing import Capture, capture
from remat.jax.checkpointing import Policy, policy
from remat.jax.step.compiling import compiler_options
from remat.jax.training import Planned, optimize
from remat.steps.errors import BudgetNotMet, NotCaptured, OtherStep, PlanNotKept

__all__ = [
    "BudgetNotMet",
    "Capture",
    "NotCaptured",
    "OtherStep",
    "PlanNotKept",
    "Planned",
    "Policy",
    "capture",
    "compiler_options",
    "optimize",
    "policy",
]
