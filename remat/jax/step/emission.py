"""Running a step in the order of a plan: equations are bound again one by one, inside `jax.jit` or outside.

    plan    a ──▶ b ──▶ loss ──▶ grad b ──▶ a' ──▶ grad a           a' reads the inputs of a again

Each task reads its values behind a barrier with a result of the task before it, so XLA runs tasks in this order, merges
no repeat with its first run, and fuses nothing across tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from remat.jax.step.program import Equation, Program, Value
from remat.jax.step.tasks import Task


class Emission:
    """A program in the order of a plan.

    Parameters:
        program: The step.
        tasks: Its tasks.
        order: (name of a task, run); what appears again is computed again.
    """

    def __init__(self, program: Program, tasks: Sequence[Task], order: Sequence[tuple[str, int]]):
        self.program = program
        named = {task.name: task for task in tasks}
        self.order = [named[name] for name, _ in order]

    def __call__(self, flat: Sequence[Any]) -> list[Any]:
        """Loss, auxiliary results and gradients for the arguments of one call, flat."""
        program = self.program
        arrays: dict[Value, Any] = dict(program.constants)
        arrays |= zip(program.inputs, flat, strict=True)
        before: list[Any] = []  # results of the tasks just before
        for task in self.order:
            operands = {value: arrays[value] for value in task.reads}
            if operands and before:
                behind, _ = jax.lax.optimization_barrier((list(operands.values()), before))
                operands = dict(zip(operands, behind, strict=True))
            written = computed(task, operands)
            arrays |= written
            before = ([] if operands else before) + list(written.values())[:1]
        return [arrays[atom] if isinstance(atom, Value) else atom.val for atom in program.results]


def computed(task: Task, arrays: dict[Value, Any]) -> dict[Value, Any]:
    """The results of a task from the values that it reads."""
    inside = dict(arrays)
    for equation in task.equations:
        inside |= bound(equation, inside)
    return {value: inside[value] for value in task.root.writes}


def bound(equation: Equation, arrays: dict[Value, Any]) -> dict[Value, Any]:
    """The results of an equation from arrays that hold its operands."""
    source = equation.source
    operands = [arrays[atom] if isinstance(atom, Value) else atom.val for atom in equation.inputs]
    with jax.named_scope(equation.name):
        found = source.primitive.bind(*operands, **source.primitive.get_bind_params(source.params))
    results = found if source.primitive.multiple_results else [found]
    return {value: result for value, result in zip(equation.outputs, results, strict=True) if value is not None}
