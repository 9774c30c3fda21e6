"""Graphs to document records; `rows.py` and `columns.py` are the inverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from graph.formats.document.schema import (
    COLUMNS,
    ROWS,
    BodyRow,
    Columns,
    CostRow,
    Document,
    Extras,
    NodeExtras,
    NodeRow,
    ValueExtras,
    ValueRow,
)
from graph.formats.document.tensor_content import encode_array, write_attributes
from graph.ir import ABSENT, UNKNOWN_COST, Body, Cost, Graph, Node, Role, Value
from graph.ssa.naming import naming_of, own_annotations

#: Phase words by number. Literals, because `omit_defaults` compares a field with its default by identity.
PHASE_WORDS: tuple[Any, ...] = ("forward", "backward", "update")

_ACTIVATION = Role.ACTIVATION


class DocumentNames:
    """Names of values and nodes in a document: their own, by index (`anonymous`), or mutable (`shared`)."""

    def __init__(self, graph: Graph, anonymous: bool, shared: bool = False):
        self.graph, self.anonymous = graph, anonymous
        self.naming = naming_of(graph) if shared else None
        self.values = [f"v{v}" if anonymous else value.name for v, value in enumerate(graph.values)]
        if self.naming is not None:
            self.values = list(self.naming.names)
        self.values.append("")  # at index ABSENT = -1
        self.nodes = [f"n{n}" if anonymous else node.name for n, node in enumerate(graph.nodes)]
        self.streams: dict[str, str] = {}  # anonymous streams are numbered by first use

    def of(self, ids: tuple[int, ...]) -> list[str]:
        return list(map(self.values.__getitem__, ids))

    def stream(self, stream: str) -> str:
        if not self.anonymous:
            return stream
        return self.streams.setdefault(stream, f"s{len(self.streams)}")

    def rows(self) -> list[ValueRow]:
        """Rows of the values; a mutable name is declared once, for all its versions."""
        values, naming = self.graph.values, self.naming
        if naming is None:
            return [value_row(self, v, value) for v, value in enumerate(values)]
        return [
            value_row(self, v, replace(value, annotations=own_annotations(value)) if value.annotations else value)
            for v, value in enumerate(values)
            if naming.replaced[v] == ABSENT
        ]

    def own(self, node: Node, v: int) -> str:
        """Name of an input or output of the node; inputs[i] or outputs[i] where the name is both."""
        name = self.values[v]
        if (
            v == ABSENT
            or self.naming is None
            or not any(self.values[u] == name for u in (*node.inputs, *node.outputs) if u != v)
        ):
            return name
        slots, what = (node.outputs, "outputs") if v in node.outputs else (node.inputs, "inputs")
        return f"{what}[{slots.index(v)}]"

    def opaque(self, annotations: Mapping[str, Any]) -> dict[str, Any] | None:
        return write_attributes(annotations) if annotations and not self.anonymous else None


def rows_of(graph: Graph, anonymous: bool = False, shared: bool = False) -> Document:
    """The graph as rows. `anonymous` omits names and annotations: graphs that are the same up to names are equal.

    `shared` restores mutable names; see `graph.formats.native.mutable_names`.
    """
    names = DocumentNames(graph, anonymous, shared)
    return rows_around(graph, names, names.rows(), [node_row(names, n, node) for n, node in enumerate(graph.nodes)])


def rows_around(graph: Graph, names: DocumentNames, values: Any, nodes: Any) -> Document:
    """The graph as rows, of which those of the values and of the nodes are given: records, or JSON."""
    return Document(
        ROWS,
        values,
        nodes,
        names.of(graph.outputs),
        "" if names.anonymous else graph.name,
        dict(graph.opset),
        "given" if graph.order_is_given else "free",
        "single" if names.naming is None else "mutable",
        inputs=None if _inputs_in_order(graph) else names.of(graph.inputs),
        gradients={names.values[p]: names.values[g] for p, g in graph.gradients},
        annotations=names.opaque(graph.annotations),
        gradient_rules=write_attributes(graph.gradient_rules) if graph.gradient_rules else {},
    )


def _inputs_in_order(graph: Graph) -> bool:
    return graph.inputs == tuple(v for v, value in enumerate(graph.values) if value.role is Role.INPUT)


def value_row(names: DocumentNames, v: int, value: Value) -> ValueRow:
    """The row of a value."""
    type = value.type
    return ValueRow(
        names.values[v],
        None if type is None else list(type.shape),
        None if type is None else type.dtype,
        "activation" if value.role is _ACTIVATION else value.role.value,
        value.bytes,
        value.fixed_bytes,
        None if value.data is None else encode_array(value.data),
        names.opaque(value.annotations) if value.annotations else None,
        value.stop_gradient,
    )


def node_row(names: DocumentNames, n: int, node: Node) -> NodeRow:
    """The row of a node."""
    inputs, outputs = names.of(node.inputs), names.of(node.outputs)
    return NodeRow(
        names.nodes[n],
        node.op,
        inputs,
        outputs,
        write_attributes(node.attributes) if node.attributes else None,
        PHASE_WORDS[node.phase],
        [names.nodes[m] for m in node.after] if node.after else [],
        cost_row(node.cost),
        None if node.effect is None else node.effect.value,
        None if node.stream is None else names.stream(node.stream),
        {outputs[o]: inputs[i] for o, i in node.views} if node.views else {},
        {outputs[o]: inputs[i] for o, i in node.in_place} if node.in_place else {},
        node.recompute,  # type: ignore[arg-type]  # validated: one of the words
        node.heavy,
        None if node.gradient_reads is None else [names.own(node, v) for v in node.gradient_reads],
        {key: _body(names, body) for key, body in node.bodies.items()} if node.bodies else {},
        names.opaque(node.annotations),
        _takeover(node, inputs, outputs) if node.takeover else {},
    )


def is_plain(node: Node) -> bool:
    """Whether all fields of a node but its name, op, ids, phase, cost and `heavy` have their defaults."""
    if node.attributes or node.after or node.views or node.in_place or node.bodies or node.annotations or node.takeover:
        return False
    return node.effect is None and node.stream is None and node.recompute is None and node.gradient_reads is None


def _takeover(node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for output, source in node.takeover:
        found.setdefault(outputs[output], []).append(inputs[source])
    return found


def cost_row(cost: Cost) -> CostRow | None:
    """The row of a cost; None if nothing is declared."""
    if cost == UNKNOWN_COST:
        return None
    return CostRow(cost.seconds, cost.flops, cost.traffic_bytes, cost.workspace_bytes)


def _body(names: DocumentNames, body: Body) -> BodyRow:
    graph = body.graph
    inside = DocumentNames(graph, names.anonymous, names.naming is not None)
    inside.streams = names.streams
    return BodyRow(
        inside.of(graph.inputs),
        [node_row(inside, n, node) for n, node in enumerate(graph.nodes)],
        inside.of(graph.outputs),
        inside.rows(),
        {inside.values[inner]: names.values[outer] for inner, outer in body.captures},
        "" if names.anonymous else graph.name,
        inside.opaque(graph.annotations),
    )


def columns_of(graph: Graph) -> Columns:
    """The graph as columns; a column with only defaults is omitted."""
    names = DocumentNames(graph, False)
    strings: dict[str, int] = {}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    values, nodes = graph.values, graph.nodes
    input_pointer, inputs = _flat([node.inputs for node in nodes])
    output_pointer, outputs = _flat([node.outputs for node in nodes])
    columns = Columns(
        COLUMNS,
        [],
        [string(value.name) for value in values],
        [string(node.name) for node in nodes],
        [string(node.op) for node in nodes],
        input_pointer=input_pointer,
        input_index=inputs,
        output_pointer=output_pointer,
        output_index=outputs,
        output_values=list(graph.outputs),
        **_value_columns(values),
        **_node_columns(nodes),
        input_values=None if _inputs_in_order(graph) else list(graph.inputs),
        gradients=list(graph.gradients),
        extras=_extras(names),
        name=graph.name,
        opset=dict(graph.opset),
        order="given" if graph.order_is_given else "free",
        annotations=names.opaque(graph.annotations),
        gradient_rules=write_attributes(graph.gradient_rules) if graph.gradient_rules else {},
    )
    columns.strings = list(strings)
    return columns


def _value_columns(values: Sequence[Value]) -> dict[str, Any]:
    shapes = [() if value.type is None else value.type.shape for value in values]
    pointer, lengths = _flat(shapes)
    return {
        "value_role": _unless_all([value.role.value for value in values], "activation"),
        "value_dtype": _unless_all([None if value.type is None else value.type.dtype for value in values], None),
        "value_shape_pointer": pointer if any(shapes) else None,
        "value_shape": lengths,
        "value_bytes": _unless_all([-1 if value.bytes is None else value.bytes for value in values], -1),
        "value_fixed_bytes": _unless_all([value.fixed_bytes for value in values], False),
    }


def _node_columns(nodes: Sequence[Node]) -> dict[str, Any]:
    pointer, after = _flat([node.after for node in nodes])
    aliases = [(n, o, i, in_place) for n, node in enumerate(nodes) for o, i, in_place in _aliases(node)]
    costs = ("seconds", "flops", "traffic_bytes", "workspace_bytes")
    return {
        "node_phase": _unless_all([PHASE_WORDS[node.phase] for node in nodes], "forward"),
        **{f"node_{cost}": _unless_all([getattr(node.cost, cost) for node in nodes], None) for cost in costs},
        "node_effect": _unless_all([None if node.effect is None else node.effect.value for node in nodes], None),
        "node_recompute": _unless_all([node.recompute for node in nodes], None),
        "after_pointer": pointer if after else None,
        "after_index": after,
        "alias_output": [nodes[n].outputs[o] for n, o, _, _ in aliases],
        "alias_input": [nodes[n].inputs[i] for n, _, i, _ in aliases],
        "alias_in_place": [in_place for _, _, _, in_place in aliases],
    }


def _aliases(node: Node) -> list[tuple[int, int, bool]]:
    return [(o, i, False) for o, i in node.views] + [(o, i, True) for o, i in node.in_place]


def _extras(names: DocumentNames) -> Extras:
    """Rare fields of the values and nodes that have any."""
    graph = names.graph
    values = {
        str(v): ValueExtras(
            None if value.data is None else encode_array(value.data),
            names.opaque(value.annotations),
            value.stop_gradient,
        )
        for v, value in enumerate(graph.values)
        if value.data is not None or value.annotations or value.stop_gradient
    }
    nodes = {}
    for n, node in enumerate(graph.nodes):
        if (
            node.attributes
            or node.stream is not None
            or node.heavy is not None
            or node.gradient_reads is not None
            or node.bodies
            or node.annotations
            or node.takeover
        ):
            row = node_row(names, n, node)
            nodes[str(n)] = NodeExtras(
                row.attributes, row.stream, row.heavy, row.gradient_reads, row.bodies, row.annotations, row.takeover
            )
    return Extras(values, nodes)


def _flat(rows: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """CSR form (pointer, index) of rows of ints."""
    pointer: list[int] = [0]
    index: list[int] = []
    for row in rows:
        index.extend(row)
        pointer.append(len(index))
    return pointer, index


def _unless_all(column: list[Any], default: Any) -> list[Any] | None:
    """The column, or None when every entry is the default."""
    return None if all(entry == default for entry in column) else column
