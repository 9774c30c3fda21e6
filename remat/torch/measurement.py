"""One step of a module with and without a plan: peak and time by PyTorch's own counters, beside the prediction.

    CPU     allocator events of the profiler                     wall time
    CUDA    max_memory_allocated, peak of requested_bytes        CUDA events

Run as a program, it measures the target of a JSON request on standard input, and writes the document, or a problem, to
the file that its argument names: `remat measure` runs it, since steps may take the process down.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from app.cli.console.files import read_report
from remat.steps.child import answer_request
from remat.torch.capturing import Loss, WithLoss
from remat.torch.step.aot import allocated_peak
from remat.torch.step.errors import BudgetNotMet, NotCaptured, OtherStep
from remat.torch.step.heap import keep_memory
from remat.torch.step.planning import PlanSource
from remat.torch.time_ratio import MAX_SECONDS, time_ratio
from remat.torch.training import Budget, arguments, optimize, report_of

FORMAT = "remat-measurement/1"
Step = Callable[[], None]


def measure_plan(
    module: nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    budget: Budget = None,
    *,
    loss: Loss | None = None,
    plan: PlanSource | None = None,
    steps: int | None = None,
    timing_seconds: float | None = None,
    **request: Any,
) -> dict[str, Any]:
    """Run training steps with and without a plan: a `remat-measurement/1` document of what was measured and predicted.

    >>> found = remat.torch.measure_plan(model, (batch,), budget="50%", loss=lambda logits: logits.square().mean())
    >>> found["plan"]["peak_bytes"] / found["plan"]["predicted_peak_bytes"]

    Gradients of the module and of its inputs are cleared, parameters stay as they are. Steps without and with the plan
    alternate. The overhead is the median over the steps with the plan, each beside the two steps without it before and
    after it, and `overhead_error` its standard error. Both kinds run in this process as it is: call `keep_memory`
    before, if the training loop does. Peaks are those of one step and include parameters, buffers and inputs.

    Parameters:
        module: Returns its loss, unless `loss` computes it from what the module returns.
        steps: Timed steps with the plan; None: until the standard error of the overhead is half a point.
        timing_seconds: After so many seconds, and five steps with the plan, no more of them begin; None: 12, and with
            `steps` no bound.
        example_inputs, budget, plan, request: As in `optimize`. A plan over its budget is measured as well.

    Raises:
        TypeError: What the step returns is not a loss.
        ValueError: `steps` below 1, or `timing_seconds` that are no finite number from 0 on.
        NotCaptured, OtherStep, AlreadyPlanned, BadInput: As in `optimize`.
    """
    max_seconds = _max_seconds(steps, timing_seconds)
    trained = module if loss is None else WithLoss(module, loss)
    planned = optimize(trained, example_inputs, budget, plan=plan, over_budget="train", **request)
    found: Mapping[str, Any] | None = report_of(planned)
    if found is None:
        assert plan is not None
        found = plan if isinstance(plan, Mapping) else read_report(os.fspath(plan))
    args, kwargs = arguments(example_inputs)
    tensors = [*trained.parameters(), *trained.buffers(), *_tensors(args, kwargs)]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    device = tensors[0].device
    kinds = {"baseline": trained, "plan": planned}
    calls = {kind: functools.partial(_step, each, args, kwargs) for kind, each in kinds.items()}
    peaks = {}
    try:
        for call in calls.values():
            call()
        for kind, call in calls.items():
            _clear_gradients(trained, args, kwargs)  # gradients of the step before are not held before this one
            peaks[kind] = _peaks(call, device)
        base, other = (functools.partial(_seconds, calls[kind], device) for kind in ("baseline", "plan"))
        times = time_ratio(base, other, runs=steps, max_seconds=max_seconds)
    finally:
        _clear_gradients(trained, args, kwargs)
    seconds = {"baseline": times.base_seconds, "plan": times.other_seconds}
    rows = {
        kind: {
            **{name: None if peak is None else peak + sum(held.values()) for name, peak in peaks[kind].items()},
            "seconds": seconds[kind],
            "predicted_peak_bytes": found[kind]["peak_bytes"],
            "predicted_seconds": found[kind]["seconds"],
        }
        for kind in calls
    }
    return {
        "format": FORMAT,
        "model": found["model"]["name"] or type(module).__name__,
        "device": "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "counter": "allocator events" if device.type == "cpu" else "max_memory_allocated",
        "steps": times.runs,
        "status": found["plan"]["status"],
        "budget_bytes": found["plan"]["budget_bytes"],
        **rows,
        "overhead": times.ratio - 1,
        "overhead_error": times.error,
        "predicted_overhead": found["plan"]["overhead"],
    }


def _max_seconds(steps: int | None, timing_seconds: float | None) -> float:
    """Seconds after which no more timed steps begin. Raises ValueError for steps or seconds that cannot be."""
    if steps is not None and steps < 1:
        raise ValueError(f"steps={steps}: time at least one step")
    if timing_seconds is None:
        return MAX_SECONDS if steps is None else math.inf
    if not 0 <= timing_seconds < math.inf:
        raise ValueError(f"timing_seconds={timing_seconds}: give a finite number from 0 on")
    return timing_seconds


def _step(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    _clear_gradients(module, args, kwargs)
    loss = module(*args, **kwargs)
    if not torch.is_tensor(loss) or loss.numel() != 1:
        raise TypeError(f"the module returns {_described(loss)}, not a loss; give a function of it as `loss`")
    loss.backward()


def _clear_gradients(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    for tensor in (*module.parameters(), *_tensors(args, kwargs)):
        tensor.grad = None


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves((list(args), dict(kwargs))) if torch.is_tensor(leaf)]


def _described(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if torch.is_tensor(value) else type(value).__name__


def _peaks(step: Step, device: torch.device) -> dict[str, int | None]:
    """Largest numbers of bytes that a step holds at once beyond what was held before."""
    if device.type == "cpu":
        return {"peak_bytes": allocated_peak(step), "requested_bytes": None}
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    counters = {"peak_bytes": "allocated_bytes.all", "requested_bytes": "requested_bytes.all"}
    return {name: after[f"{counter}.peak"] - before[f"{counter}.current"] for name, counter in counters.items()}


def _seconds(step: Step, device: torch.device) -> float:
    if device.type == "cpu":
        began = time.perf_counter()
        step()
        return time.perf_counter() - began
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000


class NoTarget(TypeError):
    """What is named is no function that returns a module and its inputs."""


def load_target(target: str) -> tuple[nn.Module, Any, Loss | None]:
    """(module, example inputs, loss or None) from the function `package.module:function` or `file.py:function`.

    Raises NoTarget for another target or result, and what the module or the function raises.
    """
    place, _, name = target.rpartition(":")
    if not place:
        raise NoTarget(f"{target!r} is no target; name a function as package.module:function or file.py:function")
    make = getattr(_loaded(place), name, None)
    if not callable(make):
        raise NoTarget(f"{place} has no function {name!r}; name one that returns (module, inputs)")
    made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise NoTarget(f"{target} returns {type(made).__name__}; return (module, inputs) or (module, inputs, loss)")
    return made if len(made) == 3 else (*made, None)


def _loaded(place: str) -> ModuleType:
    """The Python module of a file, or of that name. Raises NoTarget if it is not there, and what it raises."""
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise NoTarget(f"{place}: no such file")
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # another module, which that one imports
        raise NoTarget(f"{place}: no such Python module; give a file as file.py:function") from None


def main() -> None:
    """Measure the target of the request on standard input, in a process that keeps its memory."""
    keep_memory()
    answer_request(_measured, expected=(BudgetNotMet, NotCaptured, NoTarget, OtherStep))


def _measured(request: dict[str, Any]) -> dict[str, Any]:
    module, inputs, loss = load_target(request.pop("target"))
    return measure_plan(module, inputs, loss=loss, **request)


if __name__ == "__main__":
    main()
