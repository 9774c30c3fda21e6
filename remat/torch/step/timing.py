"""Seconds of each op inside a real step, which runs a few times op by op with a clock before each op.

    clock  views, op, frees  clock  views, op, frees  clock ...
           ╰─── one op ───╯         ╰─── one op ───╯

So the time of an op contains the views that it reads, the memory freed after it, and the cost of its call; its inputs
lie in the caches as they do in training. The time of the clock itself is taken off. Needs the memory of a step without
a plan.

Two clocks time a step on one thread of a CPU in turns, and each op has the smaller of its two medians: time of the
processor takes a system call at each op, which slows short ops down by some microseconds beyond its own time; time of
the day contains other processes, which interrupt long ops.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle, pairwise
from typing import Any

import torch
from torch import fx

from remat.torch.step.aot import outside_of_tracing, run_as_it_is, without_autocast
from remat.torch.step.document import COLLECTIVES, TANGENTS
from remat.torch.step.joint import Joint, Result, is_mutation, tensors_of
from remat.torch.step.split import Order, order_as_recorded, split

MIN_RUNS, MAX_SECONDS = 5, 5.0  # timed steps with a clock: so many, or fewer once so many seconds have passed
MAX_RUNS, SECONDS = 20, 2.0  # and up to so many while no more than so many seconds have passed
NOTES = 1000  # of a clock with nothing between them, to time the clock itself
MARGIN = 1.25  # memory of a step beyond its values: workspaces, and the fragmentation of an allocator
Inputs = Mapping[fx.Node, torch.Tensor]


class NotTimed(Exception):
    """A step cannot be run to time its ops; the message says why."""


def seconds_in_step(joint: Joint, inputs: Inputs) -> dict[str, float]:
    """Median seconds of each task of a step, by name, on real inputs and gradients of ones.

    Parameters:
        joint: The step.
        inputs: Its inputs; they are read, never written.

    Raises:
        NotTimed: The inputs are not there, the step communicates or writes to its inputs, has no memory, or fails.
    """
    _require_runnable(joint, inputs)
    step, clocks = TimedStep(joint, inputs, order_as_recorded(joint)), clocks_of(joint.device)
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in clocks]
    try:
        with undisturbed(joint):
            step.run(clocks[0])  # warms caches and the allocator up
            began = time.perf_counter()
            for number, clock in cycle(enumerate(clocks)):
                runs, seconds = len(found[-1][TANGENTS]), time.perf_counter() - began
                if number == 0 and runs > 0 and not _is_another_run_due(runs, seconds):
                    break
                for name, taken in step.run(clock):
                    found[number][name].append(taken)
    except (RuntimeError, MemoryError) as error:
        raise NotTimed(f"the step failed: {str(error).strip().splitlines()[0]}") from None
    return {name: min(statistics.median(each[name]) for each in found) for name in found[0]}


@contextlib.contextmanager
def undisturbed(joint: Joint) -> Iterator[None]:
    """Inside, ops run as in training, and random generators are put back at the end."""
    devices = sorted({t.device.index or 0 for task in joint.tasks for t in tensors_of(task) if t.is_cuda})
    with outside_of_tracing(), torch.random.fork_rng(devices), torch.no_grad(), without_autocast():
        yield


class TimedStep:
    """A step in the order of a plan, op by op with a clock before each op, on real inputs and gradients of ones."""

    def __init__(self, joint: Joint, inputs: Inputs, order: Order):
        self._joint, self._inputs, self._notes = joint, inputs, _Notes(joint.device)
        passes = split(joint, order, before_each=self._notes.add)
        self._forward, self._backward = (run_as_it_is(each, ()) for each in passes)

    def run(self, clock: Clock) -> list[tuple[str, float]]:
        """Names and seconds of the tasks run, in their order, `TANGENTS` between the passes; inside `undisturbed`."""
        joint, notes = self._joint, self._notes
        tangents = [_ones(node.meta["val"]) for node in joint.tangents]
        notes.clock = clock
        saved = list(self._forward([self._inputs[node] for node in joint.inputs]))[joint.forward_outputs :]
        notes.add(TANGENTS)
        arguments = [*saved, *tangents]
        del saved, tangents
        self._backward(arguments)
        notes.add("")
        return notes.read()


def _is_another_run_due(runs: int, seconds: float) -> bool:
    """Whether to time a step once more with each clock, after so many runs in so many seconds."""
    return seconds < (MAX_SECONDS if runs < MIN_RUNS else SECONDS) and runs < MAX_RUNS


Clock = Callable[[], Any]  # seconds, or an event of a GPU


def clocks_of(device: torch.device) -> tuple[Clock, ...]:
    """Clocks that never show less than the time of an op: events on a GPU; see above for a CPU."""
    if device.type == "cuda":
        return (_event,)
    return (time.perf_counter, time.thread_time) if torch.get_num_threads() == 1 else (time.perf_counter,)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


#: Seconds of one note by clock, measured once, so that they are the same in all steps.
OWN_SECONDS: dict[Clock, float] = {_event: 0.0}


class _Notes:
    """Names with the times of a clock; events of a GPU take none of its time."""

    def __init__(self, device: torch.device):
        self.device = device
        self.noted: list[tuple[str, Any]] = []
        for clock in clocks_of(device):
            if clock not in OWN_SECONDS:
                OWN_SECONDS[clock] = 0.0
                self.clock = clock
                for _ in range(NOTES):
                    self.add("")
                OWN_SECONDS[clock] = statistics.median(seconds for _, seconds in self.read())

    def add(self, name: str) -> None:
        self.noted.append((name, self.clock()))

    def read(self) -> list[tuple[str, float]]:
        """Seconds from each note to the next one; forgets them."""
        noted, self.noted = self.noted, []
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return [(name, a.elapsed_time(b) / 1000) for (name, a), (_, b) in pairwise(noted)]
        own = OWN_SECONDS[self.clock]
        return [(name, max(b - a - own, 0.0)) for (name, a), (_, b) in pairwise(noted)]


def _require_runnable(joint: Joint, inputs: Inputs) -> None:
    if missing := [node.name for node in joint.inputs if tensors_of(node) and not _is_real(inputs.get(node), node)]:
        raise NotTimed(f"the step has no real tensor for {missing[0]}")
    for task in joint.tasks:
        if not isinstance(task.target, torch._ops.OpOverload) or task.target.namespace in COLLECTIVES:
            raise NotTimed(f"{task.target} may communicate")
        if is_mutation(task):
            raise NotTimed(f"{task.target} writes to an input of the step")
    needed, free = int(MARGIN * step_bytes(joint)), _free_bytes(joint.device)
    if needed > free:
        raise NotTimed(f"a step without a plan may need {needed} bytes, {free} are free")


def _is_real(given: torch.Tensor | None, node: fx.Node) -> bool:
    wanted = tensors_of(node)[0]
    plain = type(given) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return given is not None and plain and (given.shape, given.dtype) == (wanted.shape, wanted.dtype)


def _ones(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).fill_(1)


def step_bytes(joint: Joint) -> int:
    """Most bytes of computed values that a step without a plan holds at once, without workspaces."""
    last: dict[Result, int] = {}
    for step, task in enumerate(joint.tasks):
        last.update((read, step) for read in joint.reads(task))
    kept = {joint.result(node) for node in joint.outputs if node is not None}
    freed: dict[int, int] = defaultdict(int)
    live = peak = 0
    for step, task in enumerate(joint.tasks):
        value = task.meta.get("val")
        single = isinstance(value, torch.Tensor)
        for number, tensor in enumerate((value,) if single else value or ()):
            if isinstance(tensor, torch.Tensor):
                result, held = Result(task, None if single else number), tensor.untyped_storage().nbytes()
                live += held
                if result not in kept:
                    freed[last.get(result, step)] += held
        peak = max(peak, live)
        live -= freed[step]
    return peak


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    from graph.execution.free_memory import free_bytes  # a capture without `measure` loads PyTorch only

    try:
        return free_bytes()
    except OSError:
        raise NotTimed("the free memory of the machine is not known") from None
