"""A step with some modules wrapped in `torch.utils.checkpoint`, as the sequence that PyTorch then runs.

    forward        a  b  c  d           b and c in a wrapped module: the results of b are dropped after the forward pass
    backward                D  B C  c' b'           B C: run again before the first of their gradients that reads them

What a checkpoint does (non-reentrant, `torch/utils/checkpoint.py` of PyTorch 2.13):

- It holds the inputs of the module, and the state of the random generator, until the last of its gradients ran.
- The first gradient of the module that reads anything saved runs the module's forward pass again, up to the last
  result that a gradient of the module reads. Each such result is held until that gradient.
- An op whose results are kept (a selective policy) does not run again.

Local variables of the module's forward function hold their tensors until it returns, which no graph shows: where they
hold what no gradient reads, PyTorch takes more than this while the module runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from planner.problem import TO_LAST_READ, Problem, liveness
from planner.problem.columns import Csr
from planner.wraps.eager import DROPOUT, EagerStep, enclosing

#: Path of a wrapped module -> ops whose results it keeps.
Wraps = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Region:
    """A wrapped module: what runs again, where, and what is held meanwhile. Tasks ascend."""

    forward: list[int]
    again: list[int]  # forward tasks up to the last that runs again
    kept: frozenset[int]  # tasks whose results are kept; those in `again` are skipped
    wanted: frozenset[int]  # buffers that gradients of the module read from the second run
    inputs: list[int]  # buffers
    trigger: int  # backward task before which `again` runs; -1: none reads anything
    last: int  # backward task after which inputs are dropped

    @classmethod
    def of(cls, step: EagerStep, path: str, ops: frozenset[str], below: list[int] | None = None) -> Region:
        """The module at `path`. `below`: its tasks, if known."""
        below = step.below(path) if below is None else below
        forward = [task for task in below if step.is_forward[task]]
        kept = frozenset(task for task in forward if step.op[task] in ops)
        inside = set(forward)
        gradients = [task for task in below if not step.is_forward[task] and step.reads_of_checkpoint(task)]
        again = inside - kept
        wanted = {b for task in gradients for b in step.reads[task] if step.producer[b] in again}
        until = max((step.producer[b] for b in wanted), default=-1)
        read = dict.fromkeys(b for task in forward for b in step.reads[task])
        return cls(
            forward,
            [task for task in forward if task <= until],
            kept,
            frozenset(wanted),
            [b for b in read if step.producer[b] >= 0 and step.producer[b] not in inside and not step.is_resident(b)],
            gradients[0] if gradients else -1,
            gradients[-1] if gradients else -1,
        )

    def ticks(self, step: EagerStep) -> int:
        """Time of what runs again."""
        return int(sum(int(step.problem.cost[task]) for task in self.again if task not in self.kept))


@dataclass(slots=True)
class Sequence:
    """A step as it runs, one row a run: the task of `EagerStep`, and the module if it runs again."""

    problem: Problem
    task: list[int] = field(default_factory=list)
    region: list[str] = field(default_factory=list)

    def bytes_of_steps(self) -> np.ndarray:
        """int64[runs]: bytes held in each run."""
        return liveness.profile(self.problem, np.arange(len(self.task)))


def checkpointed(step: EagerStep, wraps: Wraps) -> Sequence:
    """The sequence of a step whose modules in `wraps`, none inside another, are wrapped."""
    return _Writer(step, wraps).sequence()


class _Writer:
    """State of one `checkpointed` call."""

    def __init__(self, step: EagerStep, wraps: Wraps):
        self.step = step
        below: dict[str, list[int]] = {path: [] for path in wraps}
        self.owner = [enclosing(module, wraps) for module in step.module]
        for task, path in enumerate(self.owner):
            if path:
                below[path].append(task)
        self.regions = {path: Region.of(step, path, ops, below[path]) for path, ops in wraps.items()}
        self.task: list[int] = []
        self.region: list[str] = []
        self.cost: list[int] = []
        self.workspace: list[int] = []
        self.reads: list[list[int]] = []
        self.writes: list[list[int]] = []
        self.extra_sizes: list[int] = []

    def sequence(self) -> Sequence:
        step, problem = self.step, self.step.problem
        copies: dict[str, dict[int, int]] = {}
        states = {path: self._new(step.state_bytes) for path, region in self.regions.items() if region.trigger >= 0}
        for task in range(problem.tasks):
            path = self.owner[task]
            region = self.regions.get(path)
            reads, writes = step.reads[task], step.writes[task]
            if region is not None and task == region.trigger:
                copies[path] = self._run_again(path, region)
            if region is not None and region.trigger >= 0:
                if task == region.forward[0]:
                    writes = [*writes, states[path]]
                if not step.is_forward[task]:
                    reads = [copies.get(path, {}).get(b, b) for b in reads]
                if task == region.last:
                    left = [b for t in region.kept - set(region.again) for b in step.writes[t]]
                    reads = list(dict.fromkeys([*reads, *region.inputs, *left, states[path]]))
            self._add(task, "", int(problem.cost[task]), int(problem.workspace[task]), reads, writes)
        return Sequence(self._problem(), self.task, self.region)

    def _run_again(self, path: str, region: Region) -> dict[int, int]:
        """Add the runs of a module in the backward pass. Returns the new buffer of each buffer it writes again."""
        step, problem = self.step, self.step.problem
        copies: dict[int, int] = {}
        for task in region.again:
            if task in region.kept:
                self._add(task, path, 0, 0, step.writes[task], [])
                continue
            reads = [copies.get(b, b) for b in step.reads[task]]
            written = step.writes[task]
            if task == region.again[-1] and step.op[task] == DROPOUT and step.on_cpu:
                written = [b for b in written if b in region.wanted]  # stops between its mask and its result
            copies.update({b: self._new(int(problem.size[b])) for b in written})
            writes = [copies[b] for b in written]
            self._add(task, path, int(problem.cost[task]), int(problem.workspace[task]), reads, writes)
        return copies

    def _new(self, size: int) -> int:
        self.extra_sizes.append(size)
        return self.step.problem.buffers + len(self.extra_sizes) - 1

    def _add(self, task: int, region: str, cost: int, workspace: int, reads: list[int], writes: list[int]) -> None:
        self.task.append(task)
        self.region.append(region)
        self.cost.append(cost)
        self.workspace.append(workspace)
        self.reads.append(reads)
        self.writes.append(writes)

    def _problem(self) -> Problem:
        problem, task, more = self.step.problem, np.array(self.task, np.int64), len(self.extra_sizes)
        return replace(
            problem,
            cost=np.array(self.cost, np.int64),
            workspace=np.array(self.workspace, np.int64),
            phase=problem.phase[task],
            engine=problem.engine[task],
            repeat=problem.repeat[task],
            optional=problem.optional[task],
            heavy=problem.heavy[task],
            recompute=problem.recompute[task],
            size=np.append(problem.size, self.extra_sizes).astype(np.int64),
            space=np.append(problem.space, np.zeros(more, np.int8)).astype(np.int8),
            hold=np.append(problem.hold, np.full(more, TO_LAST_READ)).astype(np.int8),
            checkpoint=np.append(problem.checkpoint, np.zeros(more, bool)).astype(bool),
            reads=Csr.of(self.reads),
            shape_reads=Csr.empty(len(task)),
            writes=Csr.of(self.writes),
            takeover=Csr.empty(problem.buffers + more),
            after_every=Csr.empty(len(task)),
            after_first=Csr.empty(len(task)),
        )
