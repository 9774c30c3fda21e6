"""Running a step in the order of a plan: equations are bound again one by one, inside `jax.jit` or outside.

    plan    a ──▶ b ──▶ loss ──▶ grad b ──▶ a' ──▶ grad a           a' reads the inputs of a again

Each task reads its values behind a barrier with a result of the task before it, so XLA runs tasks in this order, merges
no repeat with its first run, and fuses nothing across tasks.
"""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax

from remat.jax.step.program import Program, Value
from remat.jax.step.tasks import Task


class Run(NamedTuple):
    """One run of a task, with the keys of what it reads and writes, in the order of `task.reads` and `task.writes`."""

    task: Task
    reads: Sequence[Hashable]
    writes: Sequence[Hashable]


class Emission:
    """A program in the order of a plan.

    Parameters:
        program: The step.
        order: Its tasks in the order of the plan; what appears again is computed again.
    """

    def __init__(self, program: Program, order: Sequence[Task]):
        self.program = program
        self.runs = [Run(task, task.reads, task.writes) for task in order]
        self.flops = sum(task.flops for task in order)

    def __call__(self, flat: Sequence[Any]) -> list[Any]:
        """Loss, auxiliary results and gradients for the arguments of one call, flat."""
        program = self.program
        arrays: dict[Hashable, Any] = dict(program.constants)
        arrays |= zip(program.inputs, flat, strict=True)
        run_in_order(self.runs, arrays)
        return [arrays[atom] if isinstance(atom, Value) else atom.val for atom in program.results]


def run_in_order(runs: Sequence[Run], arrays: MutableMapping[Hashable, Any]) -> None:
    """Compute runs one after the other, each behind a barrier with a result of the run before it; adds to `arrays`."""
    before: list[Any] = []  # results of the runs just before
    for task, reads, writes in runs:
        operands = [arrays[key] for key in reads]
        if operands and before:
            operands, _ = jax.lax.optimization_barrier((operands, before))
        found = task.computed(dict(zip(task.reads, operands, strict=True)))
        written = [found[value] for value in task.writes]
        arrays.update(zip(writes, written, strict=True))
        before = ([] if operands else before) + written[:1]
