"""PyTorch in and out: record a training step, plan it, and train within the budget.

import remat.torch

model = remat.torch.optimize(model, (batch,), budget="8GiB")  # train it as before
print(remat.torch.report_of(model))

captured = remat.torch.capture(model, batch)  # the step as a graph document, for `remat plan`
captured.save("step.json")
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError('remat.torch needs PyTorch: pip install "remat[torch]"') from error

from remat.torch.capturing import Capture, capture
from remat.torch.measurement import measure_plan
from remat.torch.ranks import plan_on_rank_0
from remat.torch.step.errors import AlreadyPlanned, BudgetNotMet, NotCaptured, NotPlaced, OtherStep
from remat.torch.training import Backend, arena_of, backend, optimize, report_of

__all__ = [
    "AlreadyPlanned",
    "Backend",
    "BudgetNotMet",
    "Capture",
    "NotCaptured",
    "NotPlaced",
    "OtherStep",
    "arena_of",
    "backend",
    "capture",
    "measure_plan",
    "optimize",
    "plan_on_rank_0",
    "report_of",
]
