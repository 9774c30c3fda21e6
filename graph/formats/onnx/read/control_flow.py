"""If, Loop and Scan: an If with a constant condition is inlined, a Loop that carries a sequence is unrolled, other
ops become nodes with bodies.

If    outputs of the taken branch; both branches return the same types
Loop  body(iteration, condition, carried...) -> condition, carried..., stacked...
Scan  body(carried..., slices...) -> carried..., stacked...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import GraphProto

from graph.builder.builder import Builder
from graph.errors import BadGraph, quoted
from graph.formats.onnx.read import sequences
from graph.formats.onnx.read.faults import arity_error, sequence_error
from graph.formats.onnx.read.protos import RawNode
from graph.formats.onnx.read.scope import GraphFrame, Scope, Slot
from graph.ir import Body, Role, TensorType
from graph.ops.registry.onnx_fallback import type_of_array

if TYPE_CHECKING:
    from graph.formats.onnx.read.node_walk import NodeWalk

_COUNTER, _CONDITION = TensorType("int64", ()), TensorType("bool", ())
TypeList = list[TensorType]


def control_flow(walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> None:
    """Inline the taken branch, or add a node with bodies. Raises BadGraph where shapes depend on data."""
    if raw.op == "If" and slots and slots[0] is not None and slots[0].known is not None:
        _inline(walk, raw, bool(slots[0].known.all()), scope)
        return
    if raw.op == "Loop" and any(map(sequences.is_sequence, slots)):
        _unroll(walk, raw, slots, scope)
        return
    if any(map(sequences.is_sequence, slots)):
        raise sequence_error(raw.shown, raw.path)
    readers = {"If": _if, "Loop": _loop, "Scan": _scan}
    if raw.op not in readers:
        raise raw.error(
            "unsupported_op", ", which has nested graphs", "If, Loop or Scan", "export the model without this op"
        )
    bodies, types = readers[raw.op](walk, raw, slots, scope)
    most = _max_trips(walk, raw, scope) if raw.op == "Loop" else None
    walk.make(raw, slots, types, scope, bodies, None if most is None else {"annotations": {"max_trips": most}})
    if most is not None:
        walk.model.max_lengths.warn(f"{raw.shown} is planned for at most {most} iterations")


def nested_bodies(walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> dict[str, Body]:
    """Bodies of a node in a file written by `remat`, which declares the types of formal inputs and outputs."""
    bodies = {}
    for name, graph in raw.bodies.items():
        formals = [walk.model.formal(proto, f"{raw.path}.{name}") for proto in graph.input]
        bodies[name], _ = _body(walk, graph, formals, scope, f"{raw.path}.{name}")
    return bodies


def _inline(walk: NodeWalk, raw: RawNode, taken: bool, scope: Scope) -> None:
    branch = "then_branch" if taken else "else_branch"
    graph = _graph(raw, branch)
    if graph.input:
        raise BadGraph.one(
            "bad_body",
            f"{raw.path}.{branch}",
            f"{len(graph.input)} inputs",
            "none: a branch reads names outside",
            "correct the nested graph",
        )
    if len(raw.outputs) > len(graph.output):
        raise arity_error(raw, 1, len(graph.output))
    inner = scope.inner(scope.frame, scope.prefix)
    inner.renamed = {v.name: scope.value_name(out) for v, out in zip(graph.output, raw.outputs, strict=False)}
    walk.model.hold(graph, inner, f"{raw.path}.{branch}")
    walk.nodes(graph.node, inner, f"{raw.path}.{branch}")
    for proto, out in zip(graph.output, raw.outputs, strict=False):
        if out:
            scope.slots[out] = inner.find(proto.name)


def _unroll(walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> None:
    """Inline every iteration of a loop that carries a sequence."""
    body, path = _graph(raw, "body"), f"{raw.path}.body"
    trips = slots[0].known if slots[0] is not None else None
    if trips is None or trips.size != 1 or int(trips.reshape(-1)[0]) > sequences.MAX_TRIPS:
        raise raw.error(
            "unsupported_op",
            ", which carries a sequence",
            f"a constant trip count of at most {sequences.MAX_TRIPS}",
            "export the model with a constant trip count, or with tensors instead of sequences",
        )
    carried = list(slots[2:])
    if len(body.input) != len(carried) + 2 or len(body.output) < len(carried) + 1:
        raise raw.error(
            "bad_body", f" with {len(body.input)} inputs", f"{len(carried) + 2}", "correct the nested graph"
        )
    prefix = f"{scope.prefix}{raw.name or raw.outputs[0]}/"
    shared = scope.inner(scope.frame, prefix)
    walk.model.hold(body, shared, path)
    stacked: list[list[Slot]] = [[] for _ in body.output[1 + len(carried) :]]
    going = slots[1].known if len(slots) > 1 and slots[1] is not None else np.array(True)
    for k in range(int(trips.reshape(-1)[0])):
        if going is None:
            raise raw.error(
                "unsupported_op",
                ", which carries a sequence and may stop early",
                "a constant condition",
                "export the model without the early exit",
            )
        if not going.all():
            break
        inner = shared.inner(scope.frame, f"{prefix}{k}/")
        for proto, array in zip(body.input[:2], (np.array(k), going.reshape(())), strict=True):
            inner.define(proto.name, type_of_array(array), role=Role.CONSTANT, data=array, is_baked=True)
        inner.slots.update(zip((proto.name for proto in body.input[2:]), carried, strict=True))
        walk.nodes(body.node, inner, path)
        found = [inner.find(proto.name) for proto in body.output]
        going = found[0].known if found[0] is not None else None
        carried = found[1 : 1 + len(carried)]
        for rows, slot in zip(stacked, found[1 + len(carried) :], strict=True):
            rows += [slot] if slot is not None else []
    for out, slot in zip(raw.outputs, carried, strict=False):
        if out:
            scope.slots[out] = slot
    for out, rows in zip(raw.outputs[len(carried) :], stacked, strict=False):
        if out:
            sequences.concat(walk, raw, tuple(rows), 0, True, out, scope)


def _if(
    walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope
) -> tuple[dict[str, Body], list[TensorType | None]]:
    then, first = _body(walk, _graph(raw, "then_branch"), [], scope, f"{raw.path}.then_branch")
    other, second = _body(walk, _graph(raw, "else_branch"), [], scope, f"{raw.path}.else_branch")
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            raise raw.error(
                "type_conflict",
                f", whose output {i} is {a} in one branch and {b} in the other",
                "the same type from both branches",
                "make the condition a constant, or pad the outputs to one shape",
            )
    return {"then_branch": then, "else_branch": other}, list(first)


def _loop(
    walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope
) -> tuple[dict[str, Body], list[TensorType | None]]:
    carried = _typed(raw, slots[2:])
    body, types = _body(
        walk, _graph(raw, "body"), [_COUNTER, _CONDITION, *carried], scope, f"{raw.path}.body", slots[2:]
    )
    _carries(raw, carried, types[1 : 1 + len(carried)])
    stacked = types[1 + len(carried) :]
    trips = slots[0].known if slots and slots[0] is not None else None
    most = _max_trips(walk, raw, scope)
    if stacked and trips is None and most is None:
        raise raw.error(
            "unknown_size",
            ", which stacks outputs over an unknown number of iterations",
            "a constant trip count, or an upper bound on it",
            f"pass --max {next(iter(_outer_names(raw, scope)))}=N, or export the model with a constant trip count",
        )
    if trips is not None and trips.size != 1:
        raise _bad_attribute(raw, f"a trip count of shape {list(trips.shape)}", "one number")
    bounds = [n for n in (most, None if trips is None else max(0, int(trips.reshape(-1)[0]))) if n is not None]
    count = min(bounds, default=0)
    return {"body": body}, [*carried, *(TensorType(t.dtype, (count, *t.shape)) for t in stacked)]


def _max_trips(walk: NodeWalk, raw: RawNode, scope: Scope) -> int | None:
    """Largest trip count of a Loop, set by the caller under the name of the node or of an output."""
    return walk.model.max_lengths.find(*_outer_names(raw, scope), *([scope.prefix + raw.name] if raw.name else []))


def _outer_names(raw: RawNode, scope: Scope) -> list[str]:
    return [scope.value_name(name) for name in raw.outputs if name]


def _scan(
    walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope
) -> tuple[dict[str, Body], list[TensorType | None]]:
    given = _typed(raw, slots)
    scanned = raw.attribute("num_scan_inputs", 1)
    if not isinstance(scanned, int) or not 1 <= scanned <= len(given):
        raise _bad_attribute(raw, f"num_scan_inputs {scanned} for {len(given)} inputs", f"1 to {len(given)}")
    carried, sequences = given[: len(given) - scanned], given[len(given) - scanned :]
    axes = _axes(raw, "scan_input_axes", sequences, 0)
    lengths = {t.shape[axis] for t, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise raw.error(
            "type_conflict", f" over sequences of lengths {sorted(lengths)}", "one length", "correct the shapes or axes"
        )
    slices = [_without(t, axis) for t, axis in zip(sequences, axes, strict=True)]
    body, types = _body(walk, _graph(raw, "body"), [*carried, *slices], scope, f"{raw.path}.body", slots)
    _carries(raw, carried, types[: len(carried)])
    stacked = types[len(carried) :]
    places = _axes(raw, "scan_output_axes", stacked, 1)
    (length,) = lengths
    return {"body": body}, [*carried, *(_with(t, axis, length) for t, axis in zip(stacked, places, strict=True))]


def _body(
    walk: NodeWalk, graph: GraphProto, formals: TypeList, scope: Scope, path: str, given: Sequence[Slot | None] = ()
) -> tuple[Body, TypeList]:
    """(body of a nested graph, types of its outputs). `given` are the slots of its last inputs. Raises BadGraph."""
    if len(graph.input) != len(formals):
        raise BadGraph.one(
            "bad_body",
            path,
            f"{len(graph.input)} inputs",
            f"{len(formals)}, the number passed by the node",
            "correct the nested graph",
        )
    frame = GraphFrame(Builder(graph.name, scope.frame.builder.opset), scope.frame)
    inner = scope.inner(frame, "")
    outer = [None] * (len(formals) - len(given)) + [*given]
    for proto, type, passed in zip(graph.input, formals, outer, strict=True):
        v = frame.id_of(inner.define(proto.name, type, role=Role.INPUT))
        if passed is not None and passed.is_short:
            frame.short.add(v)
    walk.model.hold(graph, inner, path)
    walk.nodes(graph.node, inner, path)
    outputs: list[int] = []
    types: TypeList = []
    for proto in graph.output:
        slot = inner.find(proto.name)
        if slot is None or slot.type is None:
            raise BadGraph.one(
                "unknown_size",
                path,
                f"output {quoted(proto.name)} of unknown type",
                "a static type",
                "give the value a static shape",
            )
        types.append(slot.type)
        if slot.frame is not frame or slot.role is not Role.ACTIVATION:
            slot = _copied(walk, slot, inner, proto.name, path)
        outputs.append(frame.id_of(slot))
    return frame.body(outputs), types


def _copied(walk: NodeWalk, slot: Slot, scope: Scope, name: str, path: str) -> Slot:
    """Slot of an Identity of the value: a body may only return values that its nodes write."""
    walk.make(RawNode("Identity", "", [name], [name], path), [slot], [slot.type], scope)
    copy = scope.find(name)
    assert copy is not None
    return copy


def _graph(raw: RawNode, name: str) -> GraphProto:
    if name not in raw.bodies:
        raise raw.error("bad_attribute", f" without {name}", f"a graph as attribute {name}", "add it")
    return raw.bodies[name]


def _typed(raw: RawNode, slots: Sequence[Slot | None]) -> TypeList:
    found = [slot.type for slot in slots if slot is not None and slot.type is not None]
    if len(found) != len(slots):
        raise raw.error("type_conflict", " with an absent or untyped input", "typed inputs", "give them all")
    return found


def _carries(raw: RawNode, before: TypeList, after: TypeList) -> None:
    for i, (a, b) in enumerate(zip(before, after, strict=False)):
        if a != b:
            raise raw.error(
                "type_conflict",
                f", whose loop-carried value {i} enters as {a} and leaves as {b}",
                "a loop-carried value of constant type",
                "give it its final shape before the loop",
            )
    if len(before) != len(after):
        raise raw.error(
            "bad_body", f" whose body returns {len(after)} carried values", f"{len(before)}", "correct the nested graph"
        )


def _axes(raw: RawNode, name: str, types: TypeList, more: int) -> list[int]:
    """Attribute with one axis per type; `more` is the number of axes added to each type. Raises BadGraph."""
    axes = raw.attribute(name, [0] * len(types))
    fits = isinstance(axes, list) and len(axes) == len(types) and all(type(axis) is int for axis in axes)
    if not fits or not all(
        -len(t.shape) - more <= axis < len(t.shape) + more for t, axis in zip(types, axes, strict=True)
    ):
        shown = ", ".join(map(str, types))
        raise _bad_attribute(raw, f"{name} {str(axes)[:80]} for {shown or 'nothing'}", "an axis of each")
    return list(axes)


def _bad_attribute(raw: RawNode, found: str, expected: str) -> BadGraph:
    return raw.error("bad_attribute", f" with {found}", expected, "correct the node")


def _without(type: TensorType, axis: int) -> TensorType:
    axis += len(type.shape) if axis < 0 else 0
    return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])


def _with(type: TensorType, axis: int, length: int) -> TensorType:
    axis += len(type.shape) + 1 if axis < 0 else 0
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis:]))
