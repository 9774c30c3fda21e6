"""The columns of buffers: how long each is held, and its category in reports."""

from __future__ import annotations

import numpy as np

from graph.ir import Phase, Role
from planner import problem as columns
from planner.lowering.lowered_graph import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS
from planner.lowering.tasks_and_buffers import TasksAndBuffers


def holds(numbers: TasksAndBuffers, returns_forward_outputs: bool) -> np.ndarray:
    """int8[m]: how long each buffer is held (`Problem.hold`)."""
    hold = np.full(len(numbers.buffer_value), columns.TO_LAST_READ, np.int8)
    for v in numbers.graph.outputs:
        producer = numbers.producer[numbers.roots[v]]
        forward = producer >= 0 and numbers.graph.nodes[producer].phase == Phase.FORWARD
        hold[numbers.value_buffer[v]] = (
            columns.HANDED_OUT if returns_forward_outputs and forward else columns.TO_THE_END
        )
    activation = Role.ACTIVATION  # every other role is resident
    hold[[numbers.graph.values[v].role is not activation for v in numbers.buffer_value]] = columns.RESIDENT
    return hold


def categories(numbers: TasksAndBuffers) -> np.ndarray:
    """int8[m]: category of each buffer in reports."""
    graph = numbers.graph
    category = np.full(len(numbers.buffer_value), ACTIVATIONS, np.int8)
    update, activation = Phase.UPDATE, Role.ACTIVATION
    updated = {numbers.roots[v] for node in graph.nodes if node.phase is update for v in node.reads}
    for b, v in enumerate(numbers.buffer_value):
        role = graph.values[v].role
        if role is activation:
            continue
        if role in (Role.PARAMETER, Role.CONSTANT):
            category[b] = PARAMETERS
        elif role is Role.STATE:
            is_optimizer = v in updated or "state_of" in graph.values[v].annotations
            category[b] = OPTIMIZER if is_optimizer else PARAMETERS
    for _, gradient in graph.gradients:
        category[numbers.value_buffer[gradient]] = GRADIENTS
    return category
