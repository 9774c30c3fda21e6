"""A translated op as rows of a document, with the value names of its file.

    FC(x, w, b) -> y     becomes     fc/0: Flatten(x) -> fc/0        fc: Gemm(fc/0, w, b) -> y

The annotation of the last row records the original op, so that writers can restore it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from graph.formats.document.schema import NodeRow, ValueRow
from graph.formats.document.tensor_content import encode_array, write_attributes
from graph.formats.native.write import PHASE_WORDS
from graph.formats.shared.op_table import Translation
from graph.ir import ABSENT, OPERAND_OF, Graph, Node, Role, TensorType


class Origin(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Original op of one or several rows; all rows but the last only refer to it by `part_of`."""

    id: str = ""  # unique in the file
    op: str = ""
    name: str = ""
    attributes: dict[str, Any] = {}
    inputs: list[str] = []  # names in the file
    outputs: list[str] = []
    part_of: str = ""  # on all but the last row: `id` of the op; other fields where the row writes an output of the op
    # Names that the row read and wrote, and per body the outer names of its captures; None: the op's own lists.
    row_inputs: list[str] | None = None
    row_outputs: list[str] | None = None
    captures: dict[str, list[str]] = {}
    inner: list[str] = []  # names that the row read from earlier rows of the op


def translation_rows(
    translation: Translation,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    losses: Sequence[str] = (),
    phase: str = "forward",
    types: dict[str, TensorType | None] | None = None,
) -> tuple[list[ValueRow], list[NodeRow]]:
    """(rows of intermediate values, node rows). The last node is named `name`.

    `inputs` and `outputs` are names in the document, "" where absent; `losses` are names for the losses of the
    translation. The types of intermediate values are added to `types`. A name that is both input and output is
    written after its last read.
    """
    graph = translation.graph
    names = {v: inputs[i] for i, v in enumerate(translation.inputs) if v is not None}
    delayed: list[tuple[str, str]] = []  # (name in the meantime, output) of outputs that are also inputs
    for v, output in _named_outputs(translation, outputs, losses):
        names[v] = output
        if _is_read_after(translation, inputs, output, v):
            names[v] = f"{name}/late{len(delayed)}"
            delayed.append((names[v], output))
    values: list[ValueRow] = []
    for v, value in enumerate(graph.values):
        if v in names:
            continue
        names[v] = f"{name}/{len(names)}"
        if types is not None:
            types[names[v]] = value.type
        row = _intermediate(names[v], graph, v)
        if row is not None:
            values.append(row)
    names[ABSENT] = ""
    nodes = [_row(node, f"{name}/{n}", names, phase) for n, node in enumerate(graph.nodes)]
    for k, (source, output) in enumerate(delayed, len(nodes)):
        nodes.append(NodeRow(f"{name}/{k}", "Identity", [source], [output], None, phase))  # type: ignore[arg-type]
    if nodes:
        nodes[-1].name = name
    return values, nodes


def _named_outputs(
    translation: Translation, outputs: Sequence[str], losses: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """(value, name) of the outputs and losses that the file names."""
    for ids, names in ((translation.outputs, outputs), (translation.losses, losses)):
        for v, name in zip(ids, names, strict=False):
            if v is not None and name:
                yield v, name


def _is_read_after(translation: Translation, inputs: Sequence[str], name: str, v: int) -> bool:
    """True when an input with this name is read after the node that writes `v`."""
    same = {u for u, given in zip(translation.inputs, inputs, strict=False) if u is not None and given == name}
    if not same:
        return False
    nodes = translation.graph.nodes
    writer = next(n for n, node in enumerate(nodes) if v in node.writes)
    return any(not same.isdisjoint(node.reads) for node in nodes[writer + 1 :])


def _intermediate(name: str, graph: Graph, v: int) -> ValueRow | None:
    """Row of a constant, or of a value whose type is not inferred; None for other values."""
    value, type = graph.values[v], graph.values[v].type
    if type is None:
        return None
    if value.role is Role.CONSTANT and value.data is not None:
        return ValueRow(name, list(type.shape), type.dtype, "constant", data=encode_array(value.data))
    opaque = any("::" in node.op for node in graph.nodes if v in node.writes)
    return ValueRow(name, list(type.shape), type.dtype) if opaque else None


def mark_origin(rows: Sequence[NodeRow], framework: str, origin: Origin, values: Mapping[str, ValueRow]) -> None:
    """Annotate the rows of one op with their origin: rows that write its outputs in full, the others by reference;
    of an op with nested graphs the last row only.

    Each notes the names of its operands, so that a writer finds the values that they are after a pass. Of the given
    `values`, an operand that no row reads is annotated with the op and its name there.
    """
    read: set[str] = set()
    written: set[str] = set()
    nested = any(row.bodies for row in rows)
    for row in rows:
        captures = {key: list(body.captures.values()) for key, body in row.bodies.items() if body.captures}
        names = dict.fromkeys([*row.inputs, *(name for captured in captures.values() for name in captured)])
        inner = [name for name in names if name and name in written]
        read.update(names.keys() - written)
        written.update(row.outputs)
        is_last = row is rows[-1]
        is_whole = is_last or not (nested or set(origin.outputs).isdisjoint(row.outputs))
        note = origin if is_whole else Origin()
        note = replace(
            note,
            part_of="" if is_last else origin.id,
            row_inputs=None if is_last and row.inputs == origin.inputs else row.inputs,
            row_outputs=None if is_last and row.outputs == origin.outputs else row.outputs,
            captures=captures,
            inner=inner,
        )
        row.annotations = {**(row.annotations or {}), framework: msgspec.to_builtins(note)}
    for name in origin.inputs:
        value = values.get(name)
        if value is not None and value.role != "activation" and name not in read:
            notes = dict(value.annotations or {})
            value.annotations = {**notes, OPERAND_OF: {**notes.get(OPERAND_OF, {}), origin.id: name}}


def _row(node: Node, name: str, names: Mapping[int, str], phase: str) -> NodeRow:
    effect = None if node.effect is None else node.effect.value
    reads = None if node.gradient_reads is None else [names[v] for v in node.gradient_reads]
    return NodeRow(
        name,
        node.op,
        [names[v] for v in node.inputs],
        [names[v] for v in node.outputs],
        write_attributes(node.attributes) if node.attributes else None,
        phase if node.phase == 0 else PHASE_WORDS[node.phase],  # type: ignore[arg-type]
        annotations=dict(node.annotations) or None,
        effect=effect,  # type: ignore[arg-type]
        recompute=node.recompute,  # type: ignore[arg-type]
        gradient_reads=reads,
    )
