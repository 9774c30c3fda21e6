"""Type inference of control flow: formal inputs of bodies, and outputs of nodes with bodies."""

from __future__ import annotations

from collections.abc import Sequence

from graph.ir import Body, Node, TensorType
from graph.ops.control_flow.interface import CALL, LoopInterface, Values, scan_axes, trip_count

TRIP_INDEX_TYPE, CONDITION_TYPE = TensorType("int64", ()), TensorType("bool", ())
Types = list[TensorType | None]


def formal_types(node: Node, given: Sequence[TensorType | None]) -> Types | None:
    """Types of the formal inputs of a body from `given`, the types of the inputs; None for other ops.

    The node may lack its bodies.
    """
    if node.op == "If":
        return []
    if node.op == "Loop":
        return [TRIP_INDEX_TYPE, CONDITION_TYPE, *given[2:]]
    if node.op == CALL:
        return list(given)
    if node.op != "Scan":
        return None
    scanned = min(int(node.attributes.get("num_scan_inputs", 1)), len(given))
    states, sequences = list(given[: len(given) - scanned]), given[len(given) - scanned :]
    axes = scan_axes(node, "input", scanned)
    return states + [element_type(type, axis) for type, axis in zip(sequences, axes, strict=False)]


def output_types(node: Node, values: Values) -> Types | None:
    """Types of the node's outputs; None for an op that is not control flow or lacks its bodies."""
    if node.op == "If" and "then_branch" in node.bodies:
        then = _of(node.bodies["then_branch"])
        other = _of(node.bodies["else_branch"]) if "else_branch" in node.bodies else []
        return [a or b for a, b in zip(then, [*other, *[None] * len(then)], strict=False)]
    if "body" not in node.bodies:
        return None
    made = _of(node.bodies["body"])
    if node.op == CALL:
        return made
    if node.op not in ("Loop", "Scan"):
        return None
    trips = LoopInterface.of(node)
    given = [values[v].type if v >= 0 else None for v in node.inputs[trips.lead : trips.lead + trips.states]]
    after = made[trips.lead_out : trips.lead_out + trips.states]
    length = trip_count(values, node).bound
    rows, axes = made[trips.lead_out + trips.states :], scan_axes(node, "output", trips.emitted)
    return [a or b for a, b in zip(given, after, strict=False)] + [
        stack_type(type, axis, length) for type, axis in zip(rows, axes, strict=False)
    ]


def _of(body: Body) -> Types:
    return list(body.graph.types_of(body.graph.outputs))


def element_type(type: TensorType | None, axis: int) -> TensorType | None:
    """Type of an element of a sequence along `axis`."""
    if type is None or not -len(type.shape) <= axis < len(type.shape):
        return None
    axis += len(type.shape) if axis < 0 else 0
    return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])


def stack_type(type: TensorType | None, axis: int, length: int | None) -> TensorType | None:
    """Type of a stack of `length` rows along `axis`."""
    if type is None or length is None or not -len(type.shape) - 1 <= axis <= len(type.shape):
        return None
    axis += len(type.shape) + 1 if axis < 0 else 0
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis:]))


__all__ = ["CONDITION_TYPE", "TRIP_INDEX_TYPE", "element_type", "formal_types", "output_types", "stack_type"]
