"""The graph document of a training step: what `remat.plan` reads, written from the tasks of a program."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jaxlib

from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.costs import array_of, size_of
from remat.jax.step.private import scope, source_line
from remat.jax.step.program import Equation, Program, Value
from remat.jax.step.tasks import Task

RESULTS = "results"
NO_BYTES = {"bytes": 0, "fixed_bytes": True}
MAX_TEXT = 400  # characters of parameters; longer ones are written as a hash
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def framework() -> str:
    """The versions that traced a step; a plan is for one of them."""
    return f"jax {jax.__version__}, jaxlib {jaxlib.__version__}"


def document(
    program: Program,
    tasks: Sequence[Task],
    name: str = "",
    workspaces: Mapping[str, int] | None = None,
    scans: Mapping[Equation, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The `remat/1` document of a step, ready for `json.dumps`: a node for each task.

    XLA holds buffers for the results of a step, its gradients among them, from start to end: here they are one resident
    value together, and what lies in them takes no bytes of its own.

    `workspaces` has bytes that tasks take beside their values, by name; `scans` the records of nodes with bodies.
    """
    values = [
        value_record(value, role="parameter" if value in program.parameters else "input") for value in program.inputs
    ]
    values += [value_record(value, role="constant") for value, _ in program.constants]
    held = results_of(program)
    made = {value for task in tasks for value in task.writes}
    placed = {*held, *in_buffers_of_results(tasks, held)}
    given = set(program.inputs)
    placed.update(value for task in tasks if task.is_reshape and task.reads[0] in given for value in task.writes)
    values += [value_record(value, without_bytes=value in placed) for task in tasks for value in task.writes]
    total = sum(size_of(value.aval) for value in held if value in made)
    values.append({"name": RESULTS, "bytes": total, "role": "state"})
    return {
        "format": "remat/1",
        "name": name,
        "values": values,
        "nodes": [
            scans.get(task.root)
            or node_record(
                task, "forward" if task.root in program.forward else "backward", (workspaces or {}).get(task.name, 0)
            )
            for task in tasks
        ],
        "outputs": [value.name for value in held if value in made],
        "gradients": {
            source.name: gradient.name
            for source, gradient in program.gradients
            if isinstance(gradient, Value) and gradient in made
        },
        "annotations": {"framework": framework(), "device": jax.default_backend()},
    }


def results_of(program: Program) -> list[Value]:
    """Loss, auxiliary results and gradients, each once."""
    return list(dict.fromkeys(atom for atom in program.results if isinstance(atom, Value)))


def with_placed(document: Mapping[str, Any], before: Collection[Value], now: Collection[Value]) -> dict[str, Any]:
    """The document with other values in buffers of results, `now` in place of those `before`."""
    away, there = ({value.name for value in found} for found in (set(before) - set(now), now))
    values = []
    for record in document["values"]:
        fields = {key: field for key, field in record.items() if key not in NO_BYTES or record["name"] not in away}
        values.append(fields | NO_BYTES if record["name"] in there else fields)
    return {**document, "values": values}


def value_record(value: Value, without_bytes: bool = False, **fields: Any) -> dict[str, Any]:
    """The record of a value."""
    shape, dtype = array_of(value.aval)
    record: dict[str, Any] = {"name": value.name, "shape": list(shape), "dtype": dtype_name(dtype), **fields}
    if dtype == jax.dtypes.float0:
        record["dtype"] = "bool"
    if without_bytes or dtype == jax.dtypes.float0:
        record |= NO_BYTES
    return record


def dtype_name(dtype: Any) -> str:
    """Element type in the document, such as `float32` or `float8e4m3fn`."""
    return str(dtype).replace("float8_", "float8")


def node_record(task: Task, phase: str, workspace: int) -> dict[str, Any]:
    """The record of a task that takes `workspace` bytes beside its values."""
    reads, root = task.reads, task.root
    traffic = sum(size_of(value.aval) for value in (*reads, *task.writes))
    cost = {"flops": task.flops, "traffic_bytes": traffic}
    if workspace:
        cost["workspace_bytes"] = workspace
    record: dict[str, Any] = {
        "name": task.name,
        "op": f"jax::{root.primitive}",
        "inputs": [value.name for value in reads],
        "outputs": ["" if value is None else value.name for value in root.outputs],
        "attributes": {"equations": [_text(equation) for equation in task.equations]},
        "phase": phase,
        "cost": cost,
        "annotations": source_notes(root),
    }
    primitives = {equation.primitive for equation in task.equations}
    if "shard_map" in primitives:
        record |= {"effect": "collective", "recompute": "never"}
    elif "rng_uniform" in primitives:
        record["effect"] = "unstable"
    elif primitives & {"dot_general", "conv_general_dilated", "scan", "while"}:
        record["heavy"] = True
    return record


def source_notes(equation: Equation) -> dict[str, str]:
    """Module and line of the user's code that an equation comes from, where known."""
    notes = {"module": scope(equation.source), "line": source_line(equation.source)}
    return {key: text for key, text in notes.items() if text}


def _text(equation: Equation) -> str:
    """The primitive with operands and parameters: equal in every process for the same step."""
    operands = ", ".join(atom.name if isinstance(atom, Value) else _literal(atom) for atom in equation.inputs)
    given = sorted((key, value) for key, value in equation.source.params.items() if not callable(value))
    params = _ADDRESS.sub("", " ".join(f"{key}={value}" for key, value in given if value is not None))
    if len(params) > MAX_TEXT:
        params = f"sha256={hashlib.sha256(params.encode()).hexdigest()}"
    return f"{equation.primitive}({operands}) {params}".rstrip()


def _literal(atom: Any) -> str:
    text = str(atom.val)
    return text if len(text) <= MAX_TEXT else f"sha256={hashlib.sha256(text.encode()).hexdigest()}"
