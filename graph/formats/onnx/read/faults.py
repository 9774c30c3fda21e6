"""Errors about a node, with its name, path, inputs and constants."""

from __future__ import annotations

from collections.abc import Sequence

from graph.errors import BadGraph, quoted
from graph.formats.onnx.read.protos import RawNode
from graph.formats.onnx.read.scope import Slot
from graph.ops.registry.onnx_fallback import schema_of


def untyped_error(raw: RawNode, name: str, opset: int, flag: str = "") -> BadGraph:
    """Error for an output of unknown type: not a tensor, of data-dependent shape, or of an unknown op.

    `flag` sets its largest length.
    """
    schema = schema_of(raw.op, opset)
    kinds = {t for output in schema.outputs for t in output.types} if schema is not None else {"tensor()"}
    if not any(kind.startswith("tensor(") for kind in kinds):
        return raw.error(
            "unsupported_op",
            f", which outputs {', '.join(sorted(kinds)[:2])}",
            "ops on tensors",
            "export the model with tensors instead of sequences and optionals",
        )
    cause = "whose shape depends on data" if schema is not None else "an unknown op, without a declared type"
    return BadGraph.one(
        "unknown_size",
        raw.path,
        f"output {quoted(name)} of {raw.shown}, {cause}",
        "a shape that follows from the inputs of the model",
        (f"pass {flag} for its largest length, " if flag else "")
        + "give the value a static shape in the model's value_info, or cut the model before it",
    )


def sequence_error(reader: str, path: str) -> BadGraph:
    """Error for a sequence where a graph needs a tensor."""
    return BadGraph.one(
        "unsupported_op",
        path,
        f"{reader} is or reads a sequence",
        "a tensor, such as an element (SequenceAt) or all of them (ConcatFromSequence)",
        "export the model with tensors instead of sequences",
    )


def conflict_error(raw: RawNode, slots: Sequence[Slot | None], reason: str) -> BadGraph:
    """Error for inputs that the op does not accept; lists their types, and the values of small constants."""
    read = []
    for name, slot in zip(raw.inputs, slots, strict=True):
        if slot is None:
            continue
        known = slot.known
        is_shape = known is not None and known.ndim < 2 and known.size <= 16
        shown = f"constant {quoted(name)} = {known.tolist()}" if is_shape and known is not None else quoted(name)
        read.append(f"{shown}: {slot.type}")
    return raw.error(
        "type_conflict",
        f": {reason}; it reads {', '.join(read) or 'nothing'}",
        "types and shapes the op accepts",
        "correct the node, or give input shapes that fit the constants baked into the model",
    )


def arity_error(raw: RawNode, inputs: int, outputs: int) -> BadGraph:
    """Error for a call or branch with more inputs or outputs than its definition."""
    return raw.error(
        "bad_body",
        f" with {len(raw.inputs)} inputs and {len(raw.outputs)} outputs",
        f"at most {inputs} inputs and {outputs} outputs, as in its definition",
        "correct the node or the definition",
    )
