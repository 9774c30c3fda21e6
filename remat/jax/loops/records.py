"""Nodes of scans in the document of a step: ONNX's `Scan`, with a node for each task of the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.ops.control_flow.interface import ROWS, SLICED
from remat.jax.loops.scans import Scan
from remat.jax.step.document import node_record, source_notes, value_record
from remat.jax.step.program import Value

#: Annotation of a node in a body: the name of its task.
TASK = "task"


def scan_record(scan: Scan, workspaces: Mapping[str, int]) -> dict[str, Any]:
    """The record of a scan; `workspaces` has bytes that tasks of its body take beside their values, by name.

    Directions are relative to the forward pass: it runs from the first row to the last.
    """
    direction = int(bool(scan.gradient_of))
    stacks = len(scan.equation.outputs) - len(scan.carries)
    attributes: dict[str, Any] = {
        "num_scan_inputs": len(scan.sequences),
        "scan_input_directions": [direction] * len(scan.sequences),
    }
    if stacks:
        attributes["scan_output_directions"] = [direction] * stacks
    notes: dict[str, Any] = {"gradient_of": scan.gradient_of} if scan.gradient_of else {"checkpointed": False}
    notes[ROWS] = SLICED
    phase = "backward" if scan.gradient_of else "forward"
    return {
        "name": scan.equation.name,
        "op": "Scan",
        "inputs": [value.name for _, value in (*scan.carries, *scan.sequences)],
        "outputs": ["" if value is None else value.name for value in scan.equation.outputs],
        "attributes": attributes,
        "phase": phase,
        "bodies": {"body": _body(scan, phase, workspaces)},
        "annotations": {**source_notes(scan.equation), **notes},
    }


def _body(scan: Scan, phase: str, workspaces: Mapping[str, int]) -> dict[str, Any]:
    tasks = scan.tasks
    nodes = []
    for task in tasks:
        record = node_record(task, phase, workspaces.get(task.name, 0))
        record["annotations"] = {**record["annotations"], TASK: f"{scan.equation.name}/{task.name}"}
        nodes.append(record)
    return {
        "inputs": [value.name for value, _ in (*scan.carries, *scan.sequences)],
        "captures": {inner.name: outer.name for inner, outer in scan.captures},
        "values": [value_record(value) for value in (*scan.body.inputs, *(v for task in tasks for v in task.writes))],
        "nodes": nodes,
        "outputs": [value.name for value in scan.body.results if isinstance(value, Value)],
    }
