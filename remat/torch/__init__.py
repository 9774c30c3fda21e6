"""PyTorch in and out: record a training step, plan it, and train within the budget.

import remat.torch

model = remat.torch.optimize(model, (batch,), budget="8GiB")  # train it as before
print(remat.torch.report_of(model))

captured = remat.torch.capture(model, batch)  # the step as a graph document, for `remat plan`
captured.save("step.json")

`capture` needs PyTorch and the standard library only; planning and training need the other dependencies of remat.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError('remat.torch needs PyTorch: pip install "remat[torch]"') from error

from remat.torch.capturing import Capture, capture
from remat.torch.step.errors import AlreadyPlanned, BudgetNotMet, NotCaptured, NotPlaced, OtherStep
from remat.torch.step.heap import keep_memory

if TYPE_CHECKING:
    from remat.torch.measurement import measure_plan
    from remat.torch.ranks import plan_on_rank_0
    from remat.torch.sharded import ShardedPlan, plan_sharded
    from remat.torch.training import Backend, arena_of, backend, optimize, report_of

# Names that need the planner are imported at first use, so that a step can be captured where only PyTorch is.
_LATER = {
    "Backend": "training",
    "ShardedPlan": "sharded",
    "arena_of": "training",
    "backend": "training",
    "measure_plan": "measurement",
    "optimize": "training",
    "plan_on_rank_0": "ranks",
    "plan_sharded": "sharded",
    "report_of": "training",
}

__all__ = [
    "AlreadyPlanned",
    "Backend",
    "BudgetNotMet",
    "Capture",
    "NotCaptured",
    "NotPlaced",
    "OtherStep",
    "ShardedPlan",
    "arena_of",
    "backend",
    "capture",
    "keep_memory",
    "measure_plan",
    "optimize",
    "plan_on_rank_0",
    "plan_sharded",
    "report_of",
]


def __getattr__(name: str) -> Any:
    """Public names, imported at first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
