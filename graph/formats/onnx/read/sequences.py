"""Sequences of tensors: read as lists of values while the file is read, since a graph has tensors only.

    SplitToSequence(x) ── SequenceAt(·, 1) ── y        becomes        Split(x) ── y

A Loop that carries a sequence is unrolled; its trip count must be a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graph.formats.onnx.read.protos import RawNode
from graph.formats.onnx.read.scope import Scope, Slot
from graph.formats.onnx.read.upgrade_context import NodeUpgradeContext
from graph.ir import Role
from graph.ops.registry.onnx_fallback import type_of_array

if TYPE_CHECKING:
    from graph.formats.onnx.read.node_walk import NodeWalk

MAX_TRIPS = 4096  # of a loop that is unrolled
#: Ops that read or return a sequence.
OPS = frozenset(
    {
        "ConcatFromSequence",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    }
)
Elements = tuple[Slot, ...]


def is_sequence(slot: Slot | None) -> bool:
    return slot is not None and slot.elements is not None


def read_sequence_op(walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> None:
    """Bind the output of an op on sequences. Raises BadGraph where a position or a length is not constant."""
    if raw.op in ("SequenceConstruct", "SequenceEmpty"):
        _define(raw, tuple(slot for slot in slots if slot is not None), scope)
    elif raw.op == "SplitToSequence":
        _define(raw, _split(walk, raw, slots, scope), scope)
    elif raw.op == "ConcatFromSequence":
        axis, is_new = _integer(raw, "axis", None), bool(_integer(raw, "new_axis", 0))
        concat(walk, raw, _elements(raw, slots), axis, is_new, raw.outputs[0], scope)
    else:
        elements = _elements(raw, slots)
        if raw.op == "SequenceLength":
            _constant(raw.outputs[0], np.array(len(elements)), scope)
        elif raw.op == "SequenceInsert":
            if len(slots) < 2 or slots[1] is None or is_sequence(slots[1]):
                raise _fault(raw, " without a tensor to insert", "a sequence and a tensor")
            place = _position(raw, slots, 2, len(elements), len(elements) + 1)
            _define(raw, (*elements[:place], slots[1], *elements[place:]), scope)
        else:
            last = len(elements) - 1
            place = _position(raw, slots, 1, None if raw.op == "SequenceAt" else last, len(elements))
            if raw.op == "SequenceAt":
                scope.slots[raw.outputs[0]] = elements[place]
            else:
                _define(raw, elements[:place] + elements[place + 1 :], scope)


def concat(
    walk: NodeWalk, raw: RawNode, elements: Elements, axis: int, is_new: bool, output: str, scope: Scope
) -> None:
    """Define `output` as the tensors of a sequence along an axis, which is a new one if `is_new`."""
    if not elements:
        raise _fault(raw, " of an empty sequence", "at least one tensor")
    place, parts = NodeUpgradeContext(raw, scope), []
    for k, element in enumerate(elements):
        name = place.fresh(f"{output}/{k}")
        scope.slots[name] = element
        if is_new:
            at = place.constant(np.array([axis]), f"{output}/axis")
            name = _emit(walk, raw, "Unsqueeze", [name, at], [place.fresh(f"{output}/{k}/row")], {}, scope)[0]
        parts.append(name)
    _emit(walk, raw, "Concat", parts, [output], {"axis": axis}, scope)


def _split(walk: NodeWalk, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> Elements:
    """The parts of a tensor: with a list of lengths, with one length, or single rows, which `keepdims=0` squeezes."""
    source = slots[0] if slots else None
    if source is None or source.type is None or not source.type.shape:
        raise _fault(raw, " of a value that is no tensor with axes", "a tensor of known shape")
    rank, axis = len(source.type.shape), _integer(raw, "axis", 0)
    if not -rank <= axis < rank:
        raise _fault(raw, f" with axis {axis} for {source.type}", f"an axis of {-rank} to {rank - 1}")
    length = source.type.shape[axis]
    given = slots[1] if len(slots) > 1 else None
    sizes = np.array(1) if given is None else given.known
    if sizes is None or sizes.ndim > 1 or (sizes.ndim == 0 and sizes < 1):
        raise _fault(raw, " into lengths that are not constant, or below 1", "a constant number or list of lengths")
    step = int(sizes) if sizes.ndim == 0 else 0
    lengths = [min(step, length - k) for k in range(0, length, step)] if step else [int(n) for n in sizes]
    if not lengths:
        return ()
    place = NodeUpgradeContext(raw, scope)
    names = [place.fresh(f"{raw.outputs[0]}/{k}") for k in range(len(lengths))]
    given_lengths = place.constant(np.array(lengths), f"{raw.outputs[0]}/lengths")
    names = _emit(walk, raw, "Split", [raw.inputs[0], given_lengths], names, {"axis": axis}, scope)
    if given is None and not _integer(raw, "keepdims", 1):
        at = place.constant(np.array([axis]), f"{raw.outputs[0]}/axis")
        names = [_emit(walk, raw, "Squeeze", [x, at], [place.fresh(f"{x}/row")], {}, scope)[0] for x in names]
    return tuple(slot for slot in map(scope.find, names) if slot is not None)


def _emit(
    walk: NodeWalk,
    raw: RawNode,
    op: str,
    inputs: list[str],
    outputs: list[str],
    attributes: dict[str, Any],
    scope: Scope,
) -> list[str]:
    walk.fold_or_make(RawNode(op, "", inputs, outputs, raw.path, attributes), scope)
    return outputs


def _define(raw: RawNode, elements: Elements, scope: Scope) -> None:
    if any(is_sequence(element) for element in elements):
        raise _fault(raw, " of sequences", "tensors")
    scope.define(raw.outputs[0], None, elements=elements)


def _constant(name: str, array: np.ndarray, scope: Scope) -> None:
    scope.define(name, type_of_array(array), role=Role.CONSTANT, data=array, is_baked=True)


def _elements(raw: RawNode, slots: Sequence[Slot | None]) -> Elements:
    if not slots or slots[0] is None or slots[0].elements is None:
        raise _fault(raw, " of a value whose tensors are not known", "a sequence that this graph builds")
    return slots[0].elements


def _position(raw: RawNode, slots: Sequence[Slot | None], i: int, default: int | None, count: int) -> int:
    """Constant position, from the end if below 0, among `count` places."""
    slot = slots[i] if i < len(slots) else None
    content = slot.known if slot is not None else None if default is None else np.array(default)
    if content is None or content.size != 1:
        raise _fault(raw, " at a position that is not constant", "a constant position")
    place = int(content.reshape(-1)[0])
    if not -count <= place < count:
        raise _fault(raw, f" at position {place} of {count}", "a position inside the sequence")
    return place % count


def _integer(raw: RawNode, name: str, default: int | None) -> int:
    value = raw.attribute(name, default)
    if not isinstance(value, int):
        raise raw.error("bad_attribute", f" with {name} {str(value)[:80]}", "an integer", "correct the node")
    return value


def _fault(raw: RawNode, found: str, expected: str) -> Exception:
    return raw.error("unsupported_op", found, expected, "export the model with tensors instead of sequences")
