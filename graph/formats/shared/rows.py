"""A translated op as rows of a document, with the value names of its file.

    FC(x, w, b) -> y     becomes     fc/0: Flatten(x) -> fc/0        fc: Gemm(fc/0, w, b) -> y

The annotation of the last row records the original op, so that writers can restore it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from graph.formats.document.schema import NodeRow, ValueRow
from graph.formats.document.tensor_content import encode_array, write_attributes
from graph.formats.native.write import PHASE_WORDS
from graph.formats.shared.op_table import Translation
from graph.ir import ABSENT, Node, Role, TensorType


class Origin(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Original op of one or several rows; all rows but the last only refer to it by `part_of`."""

    id: str = ""  # unique in the file
    op: str = ""
    name: str = ""
    attributes: dict[str, Any] = {}
    inputs: list[str] = []  # names in the file
    outputs: list[str] = []
    part_of: str = ""  # on all but the last row: `id` of the op


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
    read_last = {v: n for n, node in enumerate(graph.nodes) for v in node.reads}
    writer = {v: n for n, node in enumerate(graph.nodes) for v in node.writes}
    given: dict[str, int] = {}
    for i, v in enumerate(translation.inputs):
        if v is not None:
            given[inputs[i]] = max(given.get(inputs[i], -1), read_last.get(v, -1))
    late: list[tuple[str, str]] = []
    pairs = list(zip(translation.outputs, outputs, strict=False)) + list(zip(translation.losses, losses, strict=False))
    for v, output in pairs:
        if v is None or not output:
            continue
        names[v] = output
        if given.get(output, -1) > writer[v]:
            names[v] = f"{name}/late{len(late)}"
            late.append((names[v], output))
    values: list[ValueRow] = []
    for v, value in enumerate(graph.values):
        if v in names:
            continue
        names[v] = f"{name}/{len(names)}"
        if types is not None:
            types[names[v]] = value.type
        if value.role is Role.CONSTANT and value.data is not None and value.type is not None:
            values.append(
                ValueRow(names[v], list(value.type.shape), value.type.dtype, "constant", data=encode_array(value.data))
            )
        elif value.type is not None and "::" in graph.nodes[writer[v]].op:
            values.append(ValueRow(names[v], list(value.type.shape), value.type.dtype))
    names[ABSENT] = ""
    nodes = [_row(node, f"{name}/{n}", names, phase) for n, node in enumerate(graph.nodes)]
    nodes += [NodeRow(f"{name}/{k}", "Identity", [a], [b], None, phase) for k, (a, b) in enumerate(late, len(nodes))]  # type: ignore[arg-type]
    if nodes:
        nodes[-1].name = name
    return values, nodes


def mark_origin(rows: Sequence[NodeRow], framework: str, origin: Origin) -> None:
    """Annotate the rows of one op with their origin: the last row in full, the others by reference."""
    for row in rows[:-1]:
        row.annotations = {**(row.annotations or {}), framework: {"part_of": origin.id}}
    row = rows[-1]
    row.annotations = {**(row.annotations or {}), framework: msgspec.to_builtins(origin)}


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
        effect=effect,  # type: ignore[arg-type]
        recompute=node.recompute,  # type: ignore[arg-type]
        gradient_reads=reads,
    )
