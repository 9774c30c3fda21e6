"""What wrapping one module changes: a linear model, exact for one module alone.

Wrapped modules change the bytes of a step almost independently: the bytes of a step are those without wraps, less what
each wrapped module frees there. `choose.py` corrects the sum by the evaluator where modules share values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner.problem import Csr, liveness
from planner.wraps.checkpointed import Region
from planner.wraps.eager import EagerStep

MAX_KEPT_OPS = 3  # op types of a module that its policy may keep: those with the most time
PYTORCH_OP = re.compile(r"aten::\w+\.\w+")
MIN_SHARE = 1e-3  # of the peak: a candidate that frees less nowhere matters


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """One module with one policy."""

    path: str
    ops: frozenset[str]  # whose results it keeps
    ticks: int  # of what runs again
    region: Region
    freed: tuple[tuple[int, int, int], ...]  # (first task, last task + 1, bytes); negative bytes are held longer
    extra: int  # bytes that the second run needs beyond what it computes again

    def freed_at(self, task: int) -> int:
        """Bytes less than without wraps while a task runs."""
        return sum(size for begin, end, size in self.freed if begin <= task < end)


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """A step without wraps."""

    start: np.ndarray  # int64[m]  first task during which a buffer is held; -1: always
    stop: np.ndarray  # int64[m]  task after the last one
    step_bytes: np.ndarray  # int64[n]
    readers: Csr  # buffer -> tasks

    @classmethod
    def of(cls, step: EagerStep) -> Baseline:
        problem = step.problem
        order = np.arange(problem.tasks)
        found = liveness.lifetimes(problem, order)
        start, stop = np.full(problem.buffers, -1, np.int64), np.full(problem.buffers, -1, np.int64)
        start[found.buffer], stop[found.buffer] = found.writer_step, found.stop
        return cls(start, stop, liveness.profile(problem, order, found), problem.reads.transposed(problem.buffers))


def candidates(step: EagerStep, baseline: Baseline) -> list[Candidate]:
    """Modules that may be wrapped and free memory, each with every policy worth trying."""
    enough = MIN_SHARE * int(baseline.step_bytes.max(initial=0))
    found = []
    for path in step.modules:
        if step.why_not(path):
            continue
        below = step.below(path)
        for ops in policies(step, below):
            region = Region.of(step, path, ops, below)
            if region.trigger < 0:
                continue
            freed = tuple(_freed(step, baseline, region, below))
            if sum(max(0, size) for _, _, size in freed) >= enough:
                ticks, extra = region.ticks(step), _extra_bytes(step, baseline, region)
                found.append(Candidate(path, ops, ticks, region, freed, extra))
    return found


def policies(step: EagerStep, below: list[int]) -> Iterator[frozenset[str]]:
    """Sets of ops whose results a module may keep: of the heavy ones that draw no random numbers."""
    forward = [task for task in below if step.is_forward[task]]
    random = step.random_ops(forward)
    ticks: dict[str, int] = {}
    for task in forward:
        if step.problem.heavy[task] and step.op[task] not in random and PYTORCH_OP.fullmatch(step.op[task]):
            ticks[step.op[task]] = ticks.get(step.op[task], 0) + int(step.problem.cost[task])
    heavy = sorted(ticks, key=lambda op: (-ticks[op], op))[:MAX_KEPT_OPS]
    for count in range(len(heavy) + 1):
        yield from map(frozenset, combinations(heavy, count))


def _freed(step: EagerStep, baseline: Baseline, region: Region, below: list[int]) -> Iterator[tuple[int, int, int]]:
    """What is freed, and what is held longer, as in `Candidate.freed`."""
    size, inside = step.problem.size, set(below)
    for task in region.forward:
        for b in step.writes[task]:
            stop = int(baseline.stop[b])
            if step.is_resident(b) or not size[b]:
                continue
            outside = (int(t) for t in baseline.readers[b] if step.is_forward[t] or int(t) not in inside)
            dropped = max(outside, default=task) + 1
            if task in region.kept:
                dropped = max(dropped, region.trigger)
            elif stop > region.trigger:
                stop = max(dropped, region.trigger)
            else:
                continue
            if dropped < stop:
                yield dropped, stop, int(size[b])
            elif stop < dropped:
                yield stop, dropped, -int(size[b])
    for b in region.inputs:
        if baseline.stop[b] <= region.last:
            yield int(baseline.stop[b]), region.last + 1, -int(size[b])


def _extra_bytes(step: EagerStep, baseline: Baseline, region: Region) -> int:
    """Largest number of bytes in the second run, less what the gradients of the module read of it."""
    size = step.problem.size
    runs = [task for task in region.again if task not in region.kept]
    last = {b: n for n, task in enumerate(runs) for b in step.reads[task]}
    live: dict[int, int] = {}
    highest = 0
    for n, task in enumerate(runs):
        live.update({b: int(size[b]) for b in step.writes[task]})
        highest = max(highest, sum(live.values()) + int(step.problem.workspace[task]))
        live = {b: held for b, held in live.items() if b in region.wanted or last.get(b, -1) > n}
    kept = sum(int(size[b]) for b in region.wanted)
    return highest - kept
