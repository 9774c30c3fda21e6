"""Writer of MXNet symbols: the forward pass, with the plan as `force_mirroring` attributes.

With MXNET_BACKWARD_DO_MIRROR=1, MXNet recomputes nodes marked True (recomputed by the plan) and keeps nodes marked
False. MXNet schedules the recomputations itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from graph.errors import quoted
from graph.formats.mxnet.ops import DTYPE_NUMBERS
from graph.formats.mxnet.shapes import role_by_name, role_by_position
from graph.formats.mxnet.symbol import (
    MIRRORING,
    VARIABLE,
    NodeRecord,
    Symbol,
    attribute_text,
    output_counts,
    value_names,
)
from graph.formats.mxnet.write_ops import OP_CONVERTERS
from graph.formats.shared.groups import not_representable, note_of, op_groups
from graph.formats.shared.op_writer import with_framework_ops
from graph.formats.shared.written_names import WrittenOp, WrittenProgram, written_program
from graph.ir import Graph, Value

VERSION = ["int", 10900]


def dump(graph: Graph) -> bytes:
    """Bytes of the symbol file. Raises BadGraph for nodes and values without an MXNet equivalent."""
    graph = with_framework_ops(graph, "mxnet", OP_CONVERTERS)
    groups = op_groups(graph, "mxnet")
    note = note_of(graph, "mxnet")
    program = written_program(graph, groups, "mxnet")
    writer = _SymbolWriter(graph, program)
    for op in program.ops:
        writer.node(op)
    for v in program.given:  # inputs that no op reads
        if v in graph.inputs:
            writer.entry(program.names[v])
    heads = [writer.entry(name) for name in program.outputs]
    if note:  # values of a graph from another format get the names that MXNet derives
        writer.check_names(heads)
    rows = [0, *itertools.accumulate(writer.outputs)]
    symbol = {
        "nodes": writer.nodes,
        "arg_nodes": [n for n, node in enumerate(writer.nodes) if node["op"] == VARIABLE],
        "node_row_ptr": rows,
        "heads": heads,
        "attrs": note.get("attrs") or {"mxnet_version": VERSION},
    }
    return msgspec.json.format(msgspec.json.encode(symbol), indent=2)


class _SymbolWriter:
    """Collects the nodes of the file in order; a variable precedes its first reader."""

    def __init__(self, graph: Graph, program: WrittenProgram):
        self.readers: dict[str, list[tuple[str, int]]] = {}
        for op in program.ops:
            for place, name in enumerate(op.inputs):
                self.readers.setdefault(name, []).append((op.group.origin.op, place))
        self.values = {program.names[v]: graph.values[v] for v in program.given}
        self.nodes: list[dict[str, Any]] = []
        self.outputs: list[int] = []
        self.written: dict[str, list[int]] = {}

    def entry(self, name: str) -> list[int]:
        """Entry of a value in the file; a variable is added on first use. Raises BadGraph."""
        if name not in self.written:
            value = self.values.get(name)
            if value is None:
                raise not_representable(
                    f"values.{name}", f"{quoted(name)}, which no op in the file computes", "a value of the file"
                )
            self._add({"op": VARIABLE, "name": name, **self._hints(name, value), "inputs": []}, [name])
        return self.written[name]

    def node(self, op: WrittenOp) -> None:
        group, origin = op.group, op.group.origin
        attributes = {k: v for k, v in origin.attributes.items() if k != "subgraphs"}
        if group.recompute is not None:
            attributes = {k: v for k, v in attributes.items() if k not in MIRRORING}
            attributes["force_mirroring"] = str(group.recompute == "prefer")
        inputs = [self.entry(name) for name in op.inputs]
        node: dict[str, Any] = {"op": origin.op, "name": _node_name(op)}
        if attributes:
            node["attrs"] = {key: attribute_text(value) for key, value in attributes.items()}
        node["inputs"] = inputs
        if "subgraphs" in origin.attributes:
            node["subgraphs"] = origin.attributes["subgraphs"]
        self._add(node, op.outputs)

    def _add(self, node: dict[str, Any], outputs: list[str]) -> None:
        for k, name in enumerate(outputs):
            if name:
                self.written[name] = [len(self.nodes), k, 0]
        self.nodes.append(node)
        self.outputs.append(max(1, len(outputs)))

    def check_names(self, heads: list[list[int]]) -> None:
        """Raise BadGraph for a value that has another name than MXNet gives the output of its node."""
        records = [NodeRecord(node["op"], node["name"], node["inputs"], node.get("attrs")) for node in self.nodes]
        symbol = Symbol(records, heads)
        names = value_names(symbol, output_counts(symbol))
        for name, (n, k, _) in self.written.items():
            if names.get((n, k), name) != name:
                raise not_representable(
                    f"values.{name}",
                    f"{quoted(name)}, output {k} of {self.nodes[n]['op']} {quoted(self.nodes[n]['name'])}",
                    f"{quoted(names[n, k])}, the name that MXNet derives from that of the node",
                )

    def _role_of(self, name: str) -> str:
        """Role that a reader would infer from the name and the input positions of the variable."""
        found = role_by_name(name)
        for op, place in self.readers.get(name, []):
            if found == "input":
                found = role_by_position(op, place)
        return found

    def _hints(self, name: str, value: Value) -> dict[str, Any]:
        """Attributes of a variable: the file's own, else shape and element type as hints."""
        note = value.annotations.get("mxnet")
        attributes: dict[str, Any] = (
            dict(note["attributes"]) if isinstance(note, Mapping) and "attributes" in note else {}
        )
        if value.type is None or value.data is not None or value.type.dtype not in DTYPE_NUMBERS:
            raise not_representable(
                f"values.{name}",
                f"{value.role} {quoted(name)} with content or without a type MXNet has",
                "variables with shapes",
            )
        attributes["__shape__"] = str(value.type.shape)
        if value.type.dtype != "float32":
            attributes["__dtype__"] = str(DTYPE_NUMBERS[value.type.dtype])
        if self._role_of(name) != value.role:
            attributes["__role__"] = value.role.value
        return {"attrs": attributes}


def _node_name(op: WrittenOp) -> str:
    """Name of the node in the graph; that of the file where the reader chose another one for it."""
    return op.group.origin.name if op.group.name == op.group.origin.id else op.group.name
