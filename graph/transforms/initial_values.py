"""Initial values of parameters: runs an initialization graph and returns contents and devices.

fill ──▶ w (gpu:0)    fill ──▶ b ──▶ CopyGPUToCPU ──▶ host        w on gpu:0, host on the cpu
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graph.execution.interpreter import execute
from graph.ir import ABSENT, Graph
from graph.ssa.naming import base_name
from graph.transforms.device_placement import HOST, device_of, operand_devices


@dataclass(frozen=True, eq=False, slots=True)
class InitialValue:
    """Initial value of one parameter."""

    content: np.ndarray
    device: str  # of the output of the node that computes it


def initial_values(graph: Graph, default: str = HOST) -> dict[str, InitialValue]:
    """The outputs of the graph by name, after executing it. Raises CannotExecute."""
    contents = execute(graph).outputs
    location: dict[int, str] = {}
    for node in graph.nodes:
        _, outputs = operand_devices(node, device_of(node) or default)
        location.update((v, device or default) for v, device in zip(node.outputs, outputs, strict=True) if v != ABSENT)
    return {
        base_name(graph.values[v]): InitialValue(contents[graph.values[v].name], location.get(v, default))
        for v in graph.outputs
    }
