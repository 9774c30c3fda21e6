"""Gradient of If: an If on the same condition whose branches are the backward bodies of the branches.

F = If(c)   then: a, saved          G = If(c)   then: gradients from dy and the values saved by `then`
            else: b, zeros                      else: gradients from dy; zeros for values it does not use
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from graph.autodiff.gradients.control_flow.backward_body import BackwardBody, build_backward_body, require_type
from graph.autodiff.gradients.control_flow.registry import BodyGradientContext, BodyGradients, body_gradient
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ir import ABSENT, Body, Graph, Node, Phase, TensorType
from graph.ops.control_flow.interface import with_else_branch

_BRANCHES = ("then_branch", "else_branch")


@body_gradient("If")
def if_gradient(context: BodyGradientContext) -> BodyGradients:
    """Gradients of the values that either branch captures; zeros from a branch that does not use the value."""
    node = with_else_branch(context.node, [None if v == ABSENT else context.type_of(v) for v in context.node.inputs])
    heads = {p: gradient for p, gradient in enumerate(context.incoming) if gradient is not None}
    parts = {}
    for key in _BRANCHES:
        body = node.bodies[key]
        wanted = [inner for inner, outer in body.captures if outer in context.needed]
        parts[key] = build_backward_body(key, body, list(heads), wanted, context.differentiate, available=())
    by_branch = {key: _by_outside(part, dict(node.bodies[key].captures)) for key, part in parts.items()}
    owners = list(dict.fromkeys(v for of_branch in by_branch.values() for v in of_branch))
    if not owners:
        return []
    slots = _return_saved(context, node, parts)
    branches = {}
    for key, part in parts.items():
        emit = part.emit(f"grad/{node.name}")
        outputs = [by_branch[key][v] if v in by_branch[key] else emit.zeros(context.type_of(v)).id for v in owners]
        given = {part.heads[p]: gradient for p, gradient in heads.items() if part.reads(part.heads[p])}
        given.update((here, slots[key][v]) for v, here in part.saved.items())
        branches[key] = part.as_body((), outputs, dict(node.bodies[key].captures), given)
    return list(zip(owners, context.add_backward("If", node.inputs, owners, branches), strict=True))


def _by_outside(part: BackwardBody, captures: Mapping[int, int]) -> dict[int, int]:
    """Value of the outer graph -> its gradient in the branch, summed over all captures of it."""
    by_outer: dict[int, int] = {}
    for inner, gradient in part.results.items():
        outer = captures[inner]
        if outer in by_outer:
            emit = part.emit(f"grad/{part.forward.values[inner].name}/sum")
            gradient = emit.add(emit.val(by_outer[outer]), emit.val(gradient)).id
        by_outer[outer] = gradient
    return by_outer


def _return_saved(
    context: BodyGradientContext, node: Node, parts: Mapping[str, BackwardBody]
) -> dict[str, dict[int, int]]:
    """Per branch: saved value -> output of the forward node that returns it. Branches share outputs of one type."""
    slots: list[tuple[TensorType, int]] = []
    of_branch: dict[str, dict[int, int]] = {}  # branch -> saved value -> slot
    for key, part in parts.items():
        taken: set[int] = set()
        of_branch[key] = {}
        for v in part.saved:
            type = require_type(part.forward, v)
            free = [i for i, (slot_type, _) in enumerate(slots) if slot_type == type and i not in taken]
            if not free:
                name = f"{node.name}/saved/{part.forward.values[v].name}"
                slots.append((type, context.builder.value(name, type)))
            of_branch[key][v] = free[0] if free else len(slots) - 1
            taken.add(of_branch[key][v])
    bodies = {}
    for key, part in parts.items():
        by_slot = {slot: v for v, slot in of_branch[key].items()}
        saved = [by_slot.get(i) for i in range(len(slots))]
        graph = _with_outputs(part.forward, saved, [type for type, _ in slots], node.name)
        bodies[key] = Body(graph, node.bodies[key].captures)
    missing = len(node.bodies[_BRANCHES[0]].graph.outputs) - len(node.outputs)
    outputs = (*node.outputs, *[ABSENT] * missing, *(v for _, v in slots))
    context.builder.nodes[context.n] = replace(node, outputs=outputs, bodies=MappingProxyType(bodies))
    return {key: {v: slots[slot][1] for v, slot in places.items()} for key, places in of_branch.items()}


def _with_outputs(graph: Graph, saved: list[int | None], types: list[TensorType], name: str) -> Graph:
    """The branch with more outputs: saved values, and zeros for outputs that only the other branch uses."""
    builder = Builder.from_graph(graph)
    emit = Emit(builder, f"{name}/unsaved", Phase.FORWARD)
    more = [emit.zeros(type).id if v is None else v for v, type in zip(saved, types, strict=True)]
    return replace(graph, values=tuple(builder.values), nodes=tuple(builder.nodes), outputs=(*graph.outputs, *more))
