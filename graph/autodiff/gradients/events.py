"""What happened while gradients were made, told as it happens and listed in the answer.

    {"event": "added", "node": "grad/fc1", "op": "MatMul", "gradient_of": "fc1", "gradients": {"grad/fc1": "w"}}
    {"event": "finalised", "value": "w", "gradient": "grad/fc1", "node": "grad/fc1"}

`gradients` says which of its outputs are parts of the gradient of which forward values. After the
event "finalised" nothing more is added to the gradient of a wanted value: it may be sent or applied.
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
    gradient_of: str = ""  # the forward node, or the value whose parts are summed
    gradients: Mapping[str, str] = field(
        default_factory=lambda: EMPTY
    )  # of the node's outputs: gradient -> forward value
    value: str = ""  # finalised: the wanted value
    gradient: str = ""  # finalised: its gradient; of a row-sparse one the values

    def document(self) -> dict[str, Any]:
        """The event as JSON, without what it does not say."""
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

FINALISES = "finalises_gradient_of"  # annotation of the node after which a wanted value's gradient is complete
ROW_SPARSE = "row_sparse_gradients"  # annotation of the graph: value -> {"indices": name, "values": name}


def gradient_report(
    graph: Graph, events: Sequence[GradientEvent], wanted: Sequence[str] | None = None
) -> dict[str, Any]:
    """What a report says of gradients: a pair for each wanted value, every parameter by default, and the events.

    A value without gradient has null; a row-sparse gradient is {"indices": name, "values": name}.
    """
    names = [value.name for value in graph.values]
    if wanted is None:
        wanted = [value.name for value in graph.values if value.role is Role.PARAMETER]
    dense = {names[v]: graph.values[gradient] for v, gradient in graph.gradients}
    rows: Mapping[str, Any] = graph.annotations.get(ROW_SPARSE, EMPTY)
    by = {event.value: event.node for event in events if event.event == "finalised"}
    pairs = []
    for name in wanted:
        made = dense.get(name)
        type = None if made is None else made.type
        pairs.append(
            {
                "value": name,
                "gradient": rows.get(name) if made is None else made.name,
                "shape": None if type is None else list(type.shape),
                "dtype": None if type is None else type.dtype,
                "finalised_by": by.get(name) or None,
            }
        )
    return {"pairs": pairs, "events": [event.document() for event in events]}
