"""Gradient events: sent to callbacks during differentiation and listed in the report.

    {"event": "added", "node": "grad/fc1", "op": "MatMul", "gradient_of": "fc1", "gradients": {"grad/fc1": "w"}}
    {"event": "finalised", "value": "w", "gradient": "grad/fc1", "node": "grad/fc1"}

`gradients` maps outputs of the node to the forward values whose gradient they contribute to. After the event
"finalised" the gradient of a wanted value does not change any more: it may be all-reduced or applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.ir import EMPTY, Graph, Role


@dataclass(frozen=True, slots=True)
class GradientEvent:
    """One event; `node` is a backward node, "" where a gradient needed none."""

    event: str  # "added" or "finalised"
    node: str
    op: str = ""
    gradient_of: str = ""  # the forward node, or the value whose contributions are summed
    gradients: Mapping[str, str] = field(
        default_factory=lambda: EMPTY
    )  # of the node's outputs: gradient -> forward value
    value: str = ""  # finalised: the wanted value
    gradient: str = ""  # finalised: its gradient; the values of a row-sparse one

    def document(self) -> dict[str, Any]:
        """The event as JSON, with the fields of its kind only."""
        if self.event == "finalised":
            return {"event": self.event, "value": self.value, "gradient": self.gradient, "node": self.node}
        return {
            "event": self.event,
            "node": self.node,
            "op": self.op,
            "gradient_of": self.gradient_of,
            "gradients": dict(self.gradients),
        }


GradientCallback = Callable[[GradientEvent], object]

FINALISES = "finalises_gradient_of"  # annotation of the node that completes the gradient of a wanted value
ROW_SPARSE = "row_sparse_gradients"  # annotation of the graph: value -> {"indices": name, "values": name}


def gradient_report(
    graph: Graph, events: Sequence[GradientEvent], wanted: Sequence[str] | None = None
) -> dict[str, Any]:
    """The section on gradients of a report: a pair for each wanted value (default: every parameter), and the events.

    The gradient is null for a value without one, and {"indices": name, "values": name} for a row-sparse one.
    """
    names = [value.name for value in graph.values]
    if wanted is None:
        wanted = [value.name for value in graph.values if value.role is Role.PARAMETER]
    dense = {names[v]: graph.values[gradient] for v, gradient in graph.gradients}
    rows: Mapping[str, Any] = graph.annotations.get(ROW_SPARSE, EMPTY)
    completed_by = {event.value: event.node for event in events if event.event == "finalised"}
    pairs = []
    for name in wanted:
        gradient = dense.get(name)
        type = None if gradient is None else gradient.type
        pairs.append(
            {
                "value": name,
                "gradient": rows.get(name) if gradient is None else gradient.name,
                "shape": None if type is None else list(type.shape),
                "dtype": None if type is None else type.dtype,
                "finalised_by": completed_by.get(name) or None,
            }
        )
    return {"pairs": pairs, "events": [event.document() for event in events]}
