"""One training step of a module as a graph document: `capture`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn

from remat.torch.step.errors import NotCaptured
from remat.torch.step.recording import (
    COMPILE_ERRORS,
    NO_GRADIENT,
    CompilerName,
    Passes,
    Step,
    capture_error,
    require_choice,
    step_backend,
)
from remat.torch.step.trace import with_times

if TYPE_CHECKING:
    from remat.report import Report

# Imports inside functions: the planner and Inductor take seconds to load.

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Capture:
    """A training step as a graph document, from `capture`."""

    document: dict[str, Any]
    device: torch.device

    def to_json(self) -> str:
        """The document as JSON, which `remat plan` reads."""
        return json.dumps(self.document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file for `remat plan`. Raises OSError."""
        Path(path).write_text(self.to_json())

    def with_times(self, trace: str | os.PathLike[str]) -> Capture:
        """The step with the time of its ops in a trace of PyTorch's profiler, in place of flops and bytes moved.

        >>> with torch.profiler.profile(record_shapes=True) as profile:
        ...     train_one_step()
        >>> profile.export_chrome_trace("trace.json")
        >>> captured.with_times("trace.json").plan("50%")

        An op has the median time of the calls with its name and shapes, on a GPU that of their kernels; an op that the
        trace does not have keeps its cost.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is no trace with shapes of the ops of this step.
        """
        return Capture(with_times(self.document, trace), self.device)

    def plan(self, budget: str | float | int | None = None, **request: Any) -> Report:
        """Plan the step: `remat.plan` with the runtime and device at hand, unless `request` names others."""
        from remat.torch.step.planning import plan_step

        return plan_step(self, budget, request)


def capture(
    module: nn.Module,
    *args: Any,
    loss: Loss | None = None,
    name: str = "",
    measure: bool = False,
    compiler: CompilerName = "eager",
    recording: Literal["graph", "eager"] = "graph",
    **kwargs: Any,
) -> Capture:
    """Record one training step of a module: forward pass, loss and backward pass, as one graph document.

    Nothing is computed (but see `measure`). The module may hold fake tensors (`torch._subclasses.FakeTensorMode`), so a
    model larger than the machine is recorded in seconds.

    >>> captured = remat.torch.capture(model, batch, loss=lambda logits: logits.square().mean())
    >>> captured.plan("50%").peak_bytes

    Parameters:
        module: The model in the mode to record; `train()` for training.
        args, kwargs: Arguments of one call, with the shapes of training.
        loss: Computes the loss from what the module returns. Without it, the step ends where the module does, and the
            gradients of what it returns come in from outside.
        name: Name of the model in reports; the class of the module by default.
        measure: Measure the times of ops in the step, which runs a few times, and their workspaces on made-up data; see
            `optimize`. The documents of two captures then differ in their costs.
        compiler: What will run the step: "eager", op by op, or "inductor". Plans are for one of them.
        recording: `graph` captures with `torch.compile`. `eager` runs one step and records its ops, for models that are
            not one graph: the document is for planning and prediction, `optimize` cannot train with it.

    Raises:
        NotCaptured: The step is not one graph of fixed shapes, or nothing in it needs a gradient.
        ValueError: `compiler` or `recording` is none of their choices, or `recording="eager"` meets another compiler.
    """
    require_choice("recording", recording, ("graph", "eager"))
    require_choice("compiler", compiler, get_args(CompilerName))
    if recording == "eager":
        if compiler != "eager":
            raise ValueError('recording="eager" is of a step that runs op by op; leave out the compiler')
        from remat.torch.step.eager import record_eager_step

        return Capture(*record_eager_step(module, args, kwargs, loss, name or type(module).__name__, measure))
    recorded: list[Step] = []

    def record(step: Step, *_: Any) -> Passes:
        recorded.append(step)
        raise _Recorded

    named, root = name or type(module).__name__, "" if loss is None else "module"
    if compiler == "inductor":
        from remat.torch.inductor.backend import compiled_backend

        backend = compiled_backend(record, named, measure, root)
    else:
        backend = step_backend(record, named, measure, root)
    trained = module if loss is None else WithLoss(module, loss)
    try:
        with torch.enable_grad():
            torch.compile(trained, backend=backend, fullgraph=True, dynamic=False, isolate_recompiles=True)(
                *args, **kwargs
            )
    except COMPILE_ERRORS as error:
        ours = capture_error(error)
        if not isinstance(ours, _Recorded):
            raise ours from None
    if not recorded:
        raise NotCaptured(NO_GRADIENT)
    return Capture(recorded[0].document, recorded[0].device)


class _Recorded(Exception):
    """Ends a compilation once the joint graph is recorded."""


class WithLoss(nn.Module):
    """A module followed by its loss."""

    def __init__(self, module: nn.Module, loss: Loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.loss(self.module(*args, **kwargs))
