"""Uses of every op of the table with the arrays they get.

Most come from differentiating the gradient examples: each node of such a graph, forward and backward,
is a use. `op_examples.py` adds ops no gradient meets, other dtypes, integers, empty tensors and scalars.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import ABSENT, Graph, Role
from graph.ops.registry.registry import Call, make_call
from tests.contracts.composite_examples import COMPOSITES
from tests.contracts.gradient_examples import EXAMPLES, Example
from tests.contracts.op_examples import MORE
from tests.contracts.test_every_gradient import built, targets_of


@dataclass(frozen=True, eq=False)
class Use:
    """One call with its inputs."""

    call: Call
    arrays: tuple[np.ndarray | None, ...]

    def __str__(self) -> str:
        return f"{self.call.op}({', '.join(map(str, self.call.inputs))} {dict(self.call.attributes)})"


def uses_by_op() -> dict[str, list[Use]]:
    """All uses, by op; of equal calls the first."""
    found: dict[str, dict[str, Use]] = {}
    graphs = [*map(_differentiated, (*EXAMPLES, *COMPOSITES)), *(built(example, example.dtype) for example in MORE)]
    for graph, given in graphs:
        for use in _uses_of(graph, given):
            call = use.call
            alike = repr((call.inputs, call.outputs, sorted(call.attributes.items(), key=repr), call.opset))
            found.setdefault(call.op, {}).setdefault(alike, use)
    return {op: list(uses.values()) for op, uses in found.items()}


def graph_of(use: Use) -> Graph:
    """A graph of this one node."""
    builder = Builder("one op", {"": use.call.opset})
    inputs = [
        ABSENT if type is None else builder.value(f"x{i}", type, Role.INPUT, data=constant)
        for i, (type, constant) in enumerate(zip(use.call.inputs, use.call.constants, strict=True))
    ]
    slots = [f"y{i}" if wanted else None for i, wanted in enumerate(use.call.used)]
    outputs = builder.node(use.call.op, inputs, outputs=slots, attributes=use.call.attributes)
    return builder.build([v for v in outputs if v != ABSENT])


def _differentiated(example: Example) -> tuple[Graph, dict[str, np.ndarray]]:
    graph, given = built(example)
    targets = targets_of(graph, given)[0]
    return differentiate(graph, targets, head_gradients={y: f"d{y[1:]}" for y in targets}), given


def _uses_of(graph: Graph, given: dict[str, np.ndarray]) -> list[Use]:
    names = {value.name for value in graph.values}
    feeds = {name: array for name, array in given.items() if name in names}
    values = execute(graph, feeds, keep=names).values
    found = []
    for node in graph.nodes:
        arrays = tuple(None if v == ABSENT else values[graph.values[v].name] for v in node.inputs)
        found.append(Use(replace(make_call(graph, node), stream=node.stream or node.name), arrays))
    return found
