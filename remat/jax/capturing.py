"""One training step of a JAX function as a graph document: `capture`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.jax.loops.records import scan_record
from remat.jax.loops.scans import Scan, with_scans
from remat.jax.step.compiling import compiler_options
from remat.jax.step.document import document
from remat.jax.step.private import source_line
from remat.jax.step.program import Equation, Program, trace
from remat.jax.step.tasks import Task, tasks_of
from remat.jax.step.workspaces import workspaces

if TYPE_CHECKING:
    from remat.report import Report

# Imports inside functions: the planner takes seconds to load.

#: Loops and branches that a warning names.
MAX_NAMED = 5


@dataclass(frozen=True, eq=False)
class Capture:
    """A training step as a graph document, from `capture`; `scans` are those whose bodies are in it."""

    document: dict[str, Any]
    program: Program
    tasks: list[Task]
    scans: dict[Equation, Scan]

    def to_json(self) -> str:
        """The document as JSON, which `remat plan` reads."""
        return json.dumps(self.document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file for `remat plan`. Raises OSError."""
        Path(path).write_text(self.to_json())

    def plan(self, budget: str | float | int | None = None, **request: Any) -> Report:
        """Plan the step: `remat.plan` for the device at hand, unless `request` names another. Raises BadInput."""
        from remat.jax.planning import plan_step

        return plan_step(self, budget, request)


def capture(
    function: Callable[..., Any],
    *shapes: Any,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    fused: bool = True,
    measure: bool = False,
    name: str = "",
) -> Capture:
    """Trace one training step of a function, `jax.value_and_grad(function)`, as one graph document.

    Nothing is computed, and no array is needed: shapes are enough, so a model larger than the machine is traced.

    >>> captured = remat.jax.capture(loss, params, jax.ShapeDtypeStruct((32, 784), "float32"))
    >>> captured.plan("60%").peak_bytes

    Parameters:
        function: Returns a scalar loss, or with `has_aux` a pair of loss and anything else.
        shapes: The positional arguments of one call: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        argnums, has_aux: As of `jax.value_and_grad`.
        fused: A node for each group of equations that XLA computes in one kernel, as plans need it; else a node for
            each equation.
        measure: Compile every distinct task of the step alone, so that its workspace is in the document. Takes seconds,
            and no memory.
        name: Name of the model in reports; that of the function by default.

    Raises:
        NotCaptured: The function branches on data, has shapes that depend on data, returns no scalar, or has side
            effects; the message has the line of the function.
    """
    program, scans = with_scans(trace(function, shapes, argnums, has_aux))
    tasks = tasks_of(program, fused, scans)

    def taken(tasks: Sequence[Task]) -> dict[str, int]:
        return workspaces(tasks, compiler_options()) if measure else {}

    records = {equation: scan_record(scan, taken(scan.tasks)) for equation, scan in scans.items()}
    outside = taken([task for task in tasks if task.root not in scans])
    named = name or getattr(function, "__name__", "")
    made = document(program, tasks, named, outside, records)
    made["annotations"]["import_warnings"] = _warnings(tasks, scans)
    return Capture(made, program, tasks, scans)


def _warnings(tasks: Sequence[Task], scans: dict[Equation, Scan]) -> list[str]:
    """Which loops and branches are planned whole."""
    every = [*tasks, *(task for scan in scans.values() if not scan.gradient_of for task in scan.tasks)]
    found = [task.root for task in every if task.root.primitive in ("scan", "while", "cond") and task.root not in scans]
    if not found:
        return []
    places = [f"{one.primitive} at {source_line(one.source) or 'an unknown line'}" for one in found]
    shown = list(dict.fromkeys(places))
    rest = [f"and {len(shown) - MAX_NAMED} more"] if len(shown) > MAX_NAMED else []
    return [
        f"{len(found)} loops and branches are one task each, recomputed whole or not at all: "
        f"{', '.join([*shown[:MAX_NAMED], *rest])}"
    ]
