"""Reader of row documents: resolves names to ids and builds a `Draft`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain, filterfalse
from typing import Any

from graph.cancellation import cancellable
from graph.errors import Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.formats.document.schema import BodyRow, CostRow, Document, NodeRow, ValueRow
from graph.formats.document.tensor_content import check_attribute_sizes, check_attributes, read_attributes
from graph.formats.native.draft import BodyBuilder, Draft, declared_type, finish, finish_body
from graph.ir import ABSENT, EMPTY, UNKNOWN_COST, Body, Cost, Effect, Graph, Node, Phase, Role, TensorType
from graph.limits import Limits, ShapeOverrides
from graph.ssa.to_ssa import SharedDeclarations, convert_to_ssa

ROLES = {role.value: role for role in Role}
PHASES = {phase.name.lower(): phase for phase in Phase}
EFFECTS: dict[str | None, Effect | None] = {None: None, **{effect.value: effect for effect in Effect}}
_SLOT = re.compile(r"(inputs|outputs)\[(\d{1,9})\]\Z")


def graph_of(document: Document, limits: Limits, shapes: ShapeOverrides, size: int) -> Graph:
    """Graph of a row document of `size` bytes. Raises BadGraph."""
    findings = Findings()
    reader = DocumentReader(limits, findings, size > limits.attribute_bytes // 8)
    if document.naming == "mutable":
        document, reader.shared = convert_to_ssa(document, findings, limits.depth)
    draft = Draft(
        name=document.name,
        opset={"": 21, **(document.opset or {})} if document.opset else {"": 21},
        order_is_given=document.order == "given",
        annotations=reader.opaque(document.annotations, "annotations"),
        gradient_rules=reader.opaque(document.gradient_rules or None, "gradient_rules"),
    )
    reader.opset = draft.opset
    ids = reader.fill(draft, document.values, document.nodes)
    draft.outputs = reader.named(document.outputs, ids, "outputs")
    if document.inputs is not None:
        draft.inputs = reader.named(document.inputs, ids, "inputs")
    for parameter, gradient in document.gradients.items():
        pair = reader.named((parameter, gradient), ids, "gradients")
        draft.gradients.append((pair[0], pair[1]))
    return finish(draft, shapes, limits, findings)


class DocumentReader:
    """Converts rows to drafts under one set of limits, collecting findings."""

    def __init__(self, limits: Limits, findings: Findings, is_large: bool, depth: int = 0):
        self.limits, self.findings, self.is_large, self.depth = limits, findings, is_large, depth
        self.opset: Mapping[str, int] = {"": 21}
        self.shared: SharedDeclarations = {}  # declarations shared by several versions of a name

    def fill(self, draft: Draft, values: list[ValueRow], nodes: list[NodeRow]) -> dict[str, int]:
        """Add values and nodes to the draft; returns the ids of the values by name."""
        self.count(draft, len(nodes), "nodes", self.limits.nodes)
        self.count(draft, len(values), "values", self.limits.values)
        self.findings.settle()  # stop before work proportional to a graph over the limits
        ids = self._values(draft, values)
        self._add_undeclared(draft, nodes, ids)
        self.count(draft, len(draft.names), "values", self.limits.values)
        self.lengths(draft.path + "values", draft.names)
        self.lengths(draft.path + "nodes", [row.name for row in nodes])
        self.lengths(draft.path + "nodes", [row.op for row in nodes])
        _Nodes(self, draft, ids, nodes).read()
        draft.weakly_typed = {ids[name] for name in self.shared.get(draft.path, ()) if name in ids}
        return ids

    def _values(self, draft: Draft, rows: list[ValueRow]) -> dict[str, int]:
        types: dict[tuple[Any, ...], TensorType] = {}  # one record for each distinct type
        draft.names = [row.name for row in rows]
        draft.roles = [ROLES[row.role] for row in rows]
        draft.bytes = [row.bytes for row in rows]
        draft.fixed = [row.fixed_bytes for row in rows]
        draft.types, draft.value_annotations = [None] * len(rows), [EMPTY] * len(rows)
        for v, row in enumerate(rows):
            if row.shape is not None or row.dtype is not None:
                draft.types[v] = self._type(draft, v, row, types)
            if row.data is not None:
                draft.data[v] = row.data
            if row.annotations is not None:
                draft.value_annotations[v] = self.opaque(row.annotations, f"values[{v}].annotations")
            if row.stop_gradient:
                draft.stop_gradient.add(v)
        return dict(zip(draft.names, range(len(rows)), strict=True))

    def _type(self, draft: Draft, v: int, row: ValueRow, types: dict[tuple[Any, ...], TensorType]) -> TensorType | None:
        """The type that a row declares, from `types` if it is there; a partial type is noted in the draft."""
        key = (row.dtype, *row.shape) if row.shape is not None else (row.dtype, None)
        type = types.get(key)
        if type is None:
            declared = declared_type(row.dtype, row.shape, f"{draft.path}values[{v}]", self.findings)
            if isinstance(declared, TensorType):
                type = types[key] = declared
            elif declared is not None:
                draft.partial[v] = declared
        return type

    def _add_undeclared(self, draft: Draft, nodes: list[NodeRow], ids: dict[str, int]) -> None:
        """Add outputs that are not declared among the values; their types are inferred."""
        first = len(draft.names)
        ids[""] = ABSENT
        names = chain.from_iterable([row.outputs for row in nodes])
        draft.names += dict.fromkeys(filterfalse(ids.__contains__, names))
        added = len(draft.names) - first
        ids.update(zip(draft.names[first:], range(first, first + added), strict=True))
        draft.types.extend([None] * added)
        draft.roles.extend([Role.ACTIVATION] * added)
        draft.bytes.extend([None] * added)
        draft.fixed.extend([False] * added)
        draft.value_annotations.extend([EMPTY] * added)

    def named(self, names: Iterable[str], ids: Mapping[str, int], path: str) -> list[int]:
        """Ids of names; an unknown name is a finding and gets id 0."""
        resolved = []
        for i, name in enumerate(names):
            v = ids.get(name, ABSENT)
            if v == ABSENT:
                self.undefined(name, ids, f"{path}[{i}]")
            resolved.append(max(v, 0))
        return resolved

    def undefined(self, name: str, ids: Mapping[str, int], path: str) -> None:
        self.findings.add(
            "undefined_value",
            path,
            f"{quoted(name)}, which nothing defines",
            "the name of a value or of an output",
            did_you_mean(name, ids, "declare it under values, or add the node that writes it"),
        )

    def opaque(self, given: Mapping[str, Any] | None, path: str) -> Mapping[str, Any]:
        if not given:
            return EMPTY
        check_attributes(given, path, self.limits, self.findings)
        if self.is_large:
            check_attribute_sizes(given, path, self.limits, self.findings)
        return given

    def attributes(self, given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        if self.is_large:
            check_attribute_sizes(given, path, self.limits, self.findings)
        return read_attributes(given, path, self.limits, self.findings)

    def lengths(self, path: str, names: list[str]) -> None:
        limit = self.limits.name_length
        if names and max(map(len, names)) > limit:
            for i, name in enumerate(names):
                if len(name) > limit:
                    self.findings.add(
                        "name_too_long", f"{path}[{i}]", quoted(name), f"at most {limit} characters", "shorten it"
                    )

    def count(self, draft: Draft, count: int, what: str, limit: int) -> None:
        if count > limit:
            code = "too_many_nodes" if what == "nodes" else "too_many_values"
            self.findings.add(
                code,
                f"{draft.path}{what}",
                f"{count} {what}",
                f"at most {limit}",
                "send a smaller model, or raise the limit",
            )


class _Nodes:
    """Nodes of one graph: converts each row to a record with ids for names."""

    def __init__(self, reader: DocumentReader, draft: Draft, ids: dict[str, int], rows: list[NodeRow]):
        self.reader, self.draft, self.ids, self.rows = reader, draft, ids, rows
        self.node_ids: dict[str, int] | None = None

    def read(self) -> None:
        id_of, append, forward = self.ids.__getitem__, self.draft.nodes.append, Phase.FORWARD
        costs: dict[tuple[float | None, ...], Cost] = {}  # one record for each distinct cost
        ops: dict[str, str] = {}  # one string for each distinct op
        for n, row in enumerate(cancellable(self.rows)):
            try:
                inputs = tuple(map(id_of, row.inputs))
            except KeyError:
                inputs = self._known_inputs(n, row)
            outputs = tuple(map(id_of, row.outputs))
            attributes: Mapping[str, Any] = EMPTY
            if row.attributes:
                attributes = self.reader.attributes(row.attributes, f"{self.draft.path}nodes[{n}].attributes")
            phase = forward if row.phase == "forward" else PHASES[row.phase]
            cost = UNKNOWN_COST if row.cost is None else cost_of(row.cost, costs)
            op = ops.setdefault(row.op, row.op)
            if _has_rare_fields(row):
                append(self._rare(n, row, Node(row.name, op, inputs, outputs, attributes, phase, (), cost)))
            else:
                append(Node(row.name, op, inputs, outputs, attributes, phase, (), cost, heavy=row.heavy))

    def _known_inputs(self, n: int, row: NodeRow) -> tuple[int, ...]:
        """Ids of the inputs, ABSENT for undefined names, each of which is a finding."""
        for i, name in enumerate(row.inputs):
            if name not in self.ids:
                self.reader.undefined(name, self.ids, f"{self.draft.path}nodes[{n}].inputs[{i}]")
        return tuple(self.ids.get(name, ABSENT) for name in row.inputs)

    def _rare(self, n: int, row: NodeRow, node: Node) -> Node:
        path = f"{self.draft.path}nodes[{n}]"
        if row.stream is not None:
            self.reader.lengths(f"{path}.stream", [row.stream])
        if row.bodies:
            self.draft.bodies[n] = bodies_of(self.reader, row.bodies, self.ids, path)
        return Node(
            node.name,
            node.op,
            node.inputs,
            node.outputs,
            node.attributes,
            node.phase,
            self._after(row, path) if row.after else (),
            node.cost,
            EFFECTS[row.effect],
            row.stream,
            self._pairs(row, row.alias_of, f"{path}.alias_of"),
            self._pairs(row, row.in_place, f"{path}.in_place"),
            row.recompute,
            row.heavy,
            self._gradient_reads(row, path),
            EMPTY,
            self.reader.opaque(row.annotations, f"{path}.annotations"),
            takeover_of(self.reader.findings, row.takeover, (row.inputs, row.outputs), f"{path}.takeover"),
        )

    def _gradient_reads(self, row: NodeRow, path: str) -> tuple[int, ...] | None:
        if row.gradient_reads is None:
            return None
        own = (row.inputs, row.outputs)
        return gradient_reads_of(self.reader.findings, self.ids, row.gradient_reads, own, path)

    def _after(self, row: NodeRow, path: str) -> tuple[int, ...]:
        if self.node_ids is None:
            self.node_ids = {other.name: n for n, other in enumerate(self.rows)}
        for i, name in enumerate(row.after):
            if name not in self.node_ids:
                self.reader.findings.add(
                    "unknown_node",
                    f"{path}.after[{i}]",
                    quoted(name),
                    "the name of a node",
                    did_you_mean(name, self.node_ids, "name the node that must run before this one"),
                )
        return tuple(dict.fromkeys(self.node_ids[name] for name in row.after if name in self.node_ids))

    def _pairs(self, row: NodeRow, pairs: Mapping[str, str], path: str) -> tuple[tuple[int, int], ...]:
        return _positions(self.reader.findings, pairs.items(), (row.inputs, row.outputs), path)


def _has_rare_fields(row: NodeRow) -> bool:
    if row.after or row.alias_of or row.in_place or row.takeover or row.bodies or row.annotations:
        return True
    is_plain = row.stream is None and row.effect is None and row.recompute is None
    return not is_plain or row.gradient_reads is not None


def takeover_of(
    findings: Findings, takeover: Mapping[str, list[str]], own: tuple[list[str], list[str]], path: str
) -> tuple[tuple[int, int], ...]:
    """(output, input) positions of a node's `takeover`; `own` are the names of its inputs and outputs."""
    pairs = [(output, source) for output, sources in takeover.items() for source in sources]
    return _positions(findings, pairs, own, path) if pairs else ()


def _positions(
    findings: Findings, pairs: Iterable[tuple[str, str]], own: tuple[list[str], list[str]], path: str
) -> tuple[tuple[int, int], ...]:
    """(output, input) positions of pairs of names; a name that is none of the node's is a finding."""
    inputs, outputs = own
    positions = []
    for output, source in pairs:
        for name, names, what in ((output, outputs, "an output"), (source, inputs, "an input")):
            if name not in names or not name:
                findings.add(
                    "bad_alias",
                    path,
                    quoted(name),
                    f"{what} of this node: {', '.join(map(quoted, names[:8]))}",
                    did_you_mean(name, names, "write {output: input} with names of this node"),
                )
        if output in outputs and source in inputs:
            positions.append((outputs.index(output), inputs.index(source)))
    return tuple(positions)


def gradient_reads_of(
    findings: Findings, ids: Mapping[str, int], names: list[str], own: tuple[list[str], list[str]], path: str
) -> tuple[int, ...]:
    """Ids of the values that a node's gradient reads; `own` are the names of its inputs and outputs."""
    inputs, outputs = own
    reads = []
    for i, name in enumerate(names):
        slot = _SLOT.match(name)
        slots = inputs if slot is not None and slot[1] == "inputs" else outputs
        if name in inputs or name in outputs:
            reads.append(ids.get(name, ABSENT))
        elif slot is not None and int(slot[2]) < len(slots) and slots[int(slot[2])]:
            reads.append(ids.get(slots[int(slot[2])], ABSENT))
        else:
            findings.add(
                "foreign_gradient_read",
                f"{path}.gradient_reads[{i}]",
                quoted(name),
                "an input or output of the node itself",
                did_you_mean(name, inputs + outputs, "name only values that this node reads or writes"),
            )
    return tuple(reads)


def cost_of(row: CostRow, known: dict[tuple[float | None, ...], Cost]) -> Cost:
    """The cost of a row: the record in `known`, to which one is added if there is none."""
    amounts = (row.seconds, row.flops, row.traffic_bytes, row.workspace_bytes)
    cost = known.get(amounts)
    if cost is None:
        cost = known[amounts] = Cost(*amounts)
    return cost


def bodies_of(reader: DocumentReader, rows: Mapping[str, BodyRow], ids: Mapping[str, int], path: str) -> BodyBuilder:
    """Function that reads the bodies of a node, to be called once the types outside are known."""
    inside = DocumentReader(reader.limits, reader.findings, reader.is_large, reader.depth + 1)
    inside.opset, inside.shared = reader.opset, reader.shared
    captures = {}
    for name, row in rows.items():
        captures[name] = reader.named(row.captures.values(), ids, f"{path}.bodies.{name}.captures")

    def read(outer: list[TensorType | None], formals: list[TensorType | None] | None) -> dict[str, Body]:
        return {
            name: read_body(inside, row, captures[name], (outer, formals or []), f"{path}.bodies.{name}.")
            for name, row in rows.items()
        }

    if inside.depth > reader.limits.depth:
        reader.findings.add(
            "too_deep", path, f"bodies nested {inside.depth} deep", f"at most {reader.limits.depth}", "flatten them"
        )
    return read


def read_body(
    reader: DocumentReader,
    row: BodyRow,
    outside: list[int],
    types: tuple[list[TensorType | None], list[TensorType | None]],
    path: str,
) -> Body:
    """Body with its captures bound to the ids `outside`; `types`: (types outside, types of the formal inputs)."""
    outer, formals = types
    draft = Draft(
        path=path, name=row.name, opset=reader.opset, annotations=reader.opaque(row.annotations, f"{path}annotations")
    )
    given = [*row.inputs, *row.captures]
    declared = {value.name for value in row.values}
    values = row.values + [ValueRow(name) for name in dict.fromkeys(given) if name not in declared]
    ids = reader.fill(draft, values, row.nodes)
    draft.inputs = [ids[name] for name in row.inputs]
    inner = [ids[name] for name in row.captures]
    for v in (*draft.inputs, *inner):
        if draft.roles[v] is Role.ACTIVATION:
            draft.roles[v] = Role.INPUT
    draft.captured = dict(zip(inner, outside, strict=True))
    for v, type in zip(draft.inputs, formals, strict=False):
        if draft.types[v] is None and v not in draft.partial:
            draft.types[v] = type
    draft.outputs = reader.named(row.outputs, ids, f"{path}outputs")
    return Body(finish_body(draft, outer, reader.limits, reader.findings), tuple(draft.captured.items()))
