"""What a training step writes over its parameters and states."""

from __future__ import annotations

from graph.ir import Graph, Role


def updates(graph: Graph) -> dict[int, int]:
    """Parameter or state -> the value that overwrites it last, in the order of the nodes."""
    owner = {v: v for v, value in enumerate(graph.values) if value.role in (Role.PARAMETER, Role.STATE)}
    found: dict[int, int] = {}
    for node in graph.nodes:
        for output, source in node.in_place:
            resident = owner.get(node.inputs[source])
            if resident is not None:
                after = node.outputs[output]
                owner[after], found[resident] = resident, after
    return found
