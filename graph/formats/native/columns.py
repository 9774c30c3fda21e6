"""Reader of columnar documents: columns are validated as arrays, then converted by index, without names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.formats.document.schema import Columns, NodeExtras
from graph.formats.native.draft import Draft, declared_type, finish
from graph.formats.native.rows import EFFECTS, PHASES, ROLES, DocumentReader, bodies_of, gradient_reads_of, takeover_of
from graph.ir import ABSENT, EMPTY, UNKNOWN_COST, Cost, Graph, Node, Phase, Role, TensorType
from graph.limits import Limits, ShapeOverrides


def graph_of(columns: Columns, limits: Limits, shapes: ShapeOverrides, size: int) -> Graph:
    """Graph of a columnar document of `size` bytes. Raises BadGraph."""
    findings = Findings()
    _check_lengths(columns, findings)
    _check_indices(columns, findings)
    findings.settle()  # invalid pointers would cause follow-up faults
    reader = DocumentReader(limits, findings, size > limits.attribute_bytes // 8)
    draft = Draft(
        name=columns.name,
        opset={"": 21, **(columns.opset or {})},
        order_is_given=columns.order == "given",
        annotations=reader.opaque(columns.annotations, "annotations"),
        gradient_rules=reader.opaque(columns.gradient_rules or None, "gradient_rules"),
        outputs=columns.output_values,
        inputs=columns.input_values,
        gradients=columns.gradients,
    )
    reader.opset = draft.opset
    reader.count(draft, len(columns.node_name), "nodes", limits.nodes)
    reader.count(draft, len(columns.value_name), "values", limits.values)
    reader.lengths("strings", columns.strings)
    findings.settle()
    _values(columns, reader, draft)
    _nodes(columns, reader, draft)
    return finish(draft, shapes, limits, findings)


def _check_lengths(columns: Columns, findings: Findings) -> None:
    """Collect columns of unequal length, and pointers that do not ascend from 0 to the length of their index."""
    for what in ("value", "node"):
        _check_column_lengths(columns, what, findings)
    _check_pointers(columns, findings)
    lengths = [len(columns.alias_output), len(columns.alias_input), len(columns.alias_in_place)]
    if len(set(lengths)) > 1:
        findings.add(
            "wrong_length", "alias_output", f"{lengths} entries", "three equal lengths", "give all three for each"
        )


def _check_column_lengths(columns: Columns, what: str, findings: Findings) -> None:
    count = len(getattr(columns, f"{what}_name"))
    for field in columns.__struct_fields__:
        column = getattr(columns, field)
        if not field.startswith(f"{what}_") or field in ("value_shape", "value_shape_pointer") or column is None:
            continue
        if len(column) != count:
            findings.add(
                "wrong_length",
                field,
                f"{len(column)} entries",
                f"{count}, as many as `{what}_name`",
                "give one entry for each, or leave the column out",
            )


def _check_pointers(columns: Columns, findings: Findings) -> None:
    for field, rows, index in _POINTERS:
        pointer, entries = getattr(columns, field), getattr(columns, index)
        count = len(getattr(columns, rows))
        if pointer is None:
            if entries:
                findings.add("missing_field", field, "nothing", f"a pointer into `{index}`", f"add `{field}`")
            continue
        array = np.asarray(pointer, np.int64)
        if len(array) != count + 1:
            findings.add("wrong_length", field, f"{len(array)} entries", str(count + 1), "give n + 1 entries")
        elif array[0] != 0 or array[-1] != len(entries) or (np.diff(array) < 0).any():
            findings.add(
                "bad_pointer",
                field,
                f"{array[0]} to {array[-1]}",
                f"ascending from 0 to {len(entries)}, the length of `{index}`",
                "write the running sum of row lengths",
            )


#: (pointer column, column of its rows, index column)
_POINTERS = (
    ("input_pointer", "node_name", "input_index"),
    ("output_pointer", "node_name", "output_index"),
    ("after_pointer", "node_name", "after_index"),
    ("value_shape_pointer", "value_name", "value_shape"),
)


def _check_indices(columns: Columns, findings: Findings) -> None:
    """Collect indices out of range, empty op names and malformed keys of `extras`."""
    strings, values, nodes = len(columns.strings), len(columns.value_name), len(columns.node_name)
    indices: list[tuple[str, Sequence[int], int, str]] = [
        ("value_name", columns.value_name, strings, "strings"),
        ("node_name", columns.node_name, strings, "strings"),
        ("node_op", columns.node_op, strings, "strings"),
        ("input_index", columns.input_index, values, "values"),
        ("output_index", columns.output_index, values, "values"),
        ("after_index", columns.after_index, nodes, "nodes"),
        ("alias_output", columns.alias_output, values, "values"),
        ("alias_input", columns.alias_input, values, "values"),
        ("output_values", columns.output_values, values, "values"),
        ("input_values", columns.input_values or [], values, "values"),
        ("gradients", [v for pair in columns.gradients for v in pair], values, "values"),
    ]
    for field, column, count, what in indices:
        if column and max(column) >= count:
            i = next(i for i, index in enumerate(column) if index >= count)
            findings.add(
                "unknown_id",
                f"{field}[{i}]",
                str(column[i]),
                f"the index of one of the {count} {what}",
                "indices count from 0",
            )
    for i, index in enumerate(columns.node_op if "" in columns.strings else ()):
        if index < strings and not columns.strings[index]:
            findings.add("empty_name", f"node_op[{i}]", "an empty string", "the name of an op", "give it a name")
    _check_extras("values", columns.extras.values, values, findings)
    _check_extras("nodes", columns.extras.nodes, nodes, findings)


def _check_extras(field: str, extras: Iterable[str], count: int, findings: Findings) -> None:
    """Collect keys of `extras` that are not a decimal index below `count`."""
    for key in extras:
        is_index = key.isascii() and key.isdigit() and str(int(key[:12])) == key
        if not is_index or int(key) >= count:
            findings.add(
                "unknown_id",
                f"extras.{field}",
                quoted(key),
                f"the index of one of the {count} {field}",
                "write the index as a decimal number",
            )


def _values(columns: Columns, reader: DocumentReader, draft: Draft) -> None:
    count, strings = len(columns.value_name), columns.strings
    draft.names = [strings[s] for s in columns.value_name]
    roles = columns.value_role
    draft.roles = [Role.ACTIVATION] * count if roles is None else [ROLES[role] for role in roles]
    sizes = columns.value_bytes
    draft.bytes = [None] * count if sizes is None else [None if size < 0 else size for size in sizes]
    draft.fixed = columns.value_fixed_bytes or [False] * count
    draft.types = _types(columns, reader, draft, count)
    draft.value_annotations = [EMPTY] * count
    for key, extra in columns.extras.values.items():
        v = int(key)
        if extra.data is not None:
            draft.data[v] = extra.data
        draft.value_annotations[v] = reader.opaque(extra.annotations, f"extras.values.{v}.annotations")
        if extra.stop_gradient:
            draft.stop_gradient.add(v)


def _types(columns: Columns, reader: DocumentReader, draft: Draft, count: int) -> list[TensorType | None]:
    if columns.value_dtype is None:
        return [None] * count
    pointer = columns.value_shape_pointer or [0] * (count + 1)
    known: dict[tuple[Any, ...], TensorType] = {}
    types: list[TensorType | None] = []
    for v, dtype in enumerate(columns.value_dtype):
        if dtype is None:
            types.append(None)
            continue
        shape = columns.value_shape[pointer[v] : pointer[v + 1]]
        type = known.get((dtype, *shape))
        if type is None:
            declared = declared_type(dtype, shape, f"value_dtype[{v}]", reader.findings)
            if isinstance(declared, TensorType):
                type = known[(dtype, *shape)] = declared
            elif declared is not None:
                draft.partial[v] = declared
        types.append(type)
    return types


def _nodes(columns: Columns, reader: DocumentReader, draft: Draft) -> None:
    """Add the nodes to the draft; an omitted column is read as its default."""
    count, strings = len(columns.node_name), columns.strings
    names, ops = [strings[s] for s in columns.node_name], [strings[s] for s in columns.node_op]
    inputs, outputs = (
        _rows(columns.input_pointer, columns.input_index),
        _rows(columns.output_pointer, columns.output_index),
    )
    phases = [Phase.FORWARD] * count if columns.node_phase is None else [PHASES[word] for word in columns.node_phase]
    costs = _costs(columns, count)
    after = _rows(columns.after_pointer, columns.after_index) if columns.after_pointer else [()] * count
    effects = [EFFECTS[word] for word in columns.node_effect or [None] * count]
    recompute = columns.node_recompute or [None] * count
    views, in_place = _aliases(columns, inputs, outputs, reader.findings)
    ids = {name: v for v, name in enumerate(draft.names)} if columns.extras.nodes else {}
    plain = [
        Node(
            names[n],
            ops[n],
            inputs[n],
            outputs[n],
            EMPTY,
            phases[n],
            after[n],
            costs[n],
            effects[n],
            None,
            views.get(n, ()),
            in_place.get(n, ()),
            recompute[n],
        )
        for n in range(count)
    ]
    for key, extra in columns.extras.nodes.items():
        plain[int(key)] = _with_extras(reader, draft, ids, plain[int(key)], int(key), extra)
    draft.nodes = plain


def _with_extras(
    reader: DocumentReader, draft: Draft, ids: dict[str, int], node: Node, n: int, extra: NodeExtras
) -> Node:
    """The node with its fields from `extras`."""
    path = f"extras.nodes.{n}"
    reads: tuple[int, ...] | None = None
    inputs, outputs = (["" if v == ABSENT else draft.names[v] for v in side] for side in (node.inputs, node.outputs))
    if extra.gradient_reads is not None:
        reads = gradient_reads_of(reader.findings, ids, extra.gradient_reads, (inputs, outputs), path)
    if extra.bodies:
        draft.bodies[n] = bodies_of(reader, extra.bodies, ids, path)
    if extra.stream is not None:
        reader.lengths(f"{path}.stream", [extra.stream])
    return replace(
        node,
        attributes=reader.attributes(extra.attributes, f"{path}.attributes") if extra.attributes else EMPTY,
        stream=extra.stream,
        heavy=extra.heavy,
        gradient_reads=reads,
        annotations=reader.opaque(extra.annotations, f"{path}.annotations"),
        takeover=takeover_of(reader.findings, extra.takeover, (inputs, outputs), f"{path}.takeover"),
    )


def _rows(pointer: list[int], index: list[int]) -> list[tuple[int, ...]]:
    return [tuple(index[a:b]) for a, b in pairwise(pointer)]


def _costs(columns: Columns, count: int) -> list[Cost]:
    cost_columns = [columns.node_seconds, columns.node_flops, columns.node_traffic_bytes, columns.node_workspace_bytes]
    if all(column is None for column in cost_columns):
        return [UNKNOWN_COST] * count
    known: dict[tuple[Any, ...], Cost] = {(None, None, None, None): UNKNOWN_COST}
    costs = []
    for entry in zip(*(column if column is not None else [None] * count for column in cost_columns), strict=True):
        cost = known.get(entry)
        if cost is None:
            cost = known[entry] = Cost(*(None if amount is None or amount < 0 else amount for amount in entry))
        costs.append(cost)
    return costs


AliasPairs = dict[int, tuple[tuple[int, int], ...]]


def _aliases(
    columns: Columns, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], findings: Findings
) -> tuple[AliasPairs, AliasPairs]:
    """Per node the (output, input) positions of its views, and of its outputs written in place."""
    views: AliasPairs = {}
    in_place: AliasPairs = {}
    if not columns.alias_output:
        return views, in_place
    writer = {v: n for n, row in enumerate(outputs) for v in row}
    rows = zip(columns.alias_output, columns.alias_input, columns.alias_in_place, strict=True)
    for i, (output, source, is_in_place) in enumerate(rows):
        n = writer.get(output, -1)
        if n < 0 or source not in inputs[n]:
            findings.add(
                "bad_alias",
                f"alias_input[{i}]",
                f"value {source} as storage of value {output}",
                "an input of the node that writes the output",
                "name values that one node reads and writes",
            )
            continue
        pairs = in_place if is_in_place else views
        pairs[n] = (*pairs.get(n, ()), (outputs[n].index(output), inputs[n].index(source)))
    return views, in_place
