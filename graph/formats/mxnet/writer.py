"""Writer of MXNet symbols: the forward pass, with the plan as `force_mirroring` attributes.

With MXNET_BACKWARD_DO_MIRROR=1, MXNet recomputes nodes marked True (recomputed by the plan) and keeps nodes marked
False. MXNet schedules the recomputations itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from graph.errors import quoted
from graph.formats.mxnet.ops import DTYPE_NUMBERS
from graph.formats.mxnet.shapes import role_by_name, role_by_position
from graph.formats.mxnet.symbol import MIRRORING, VARIABLE, attribute_text
from graph.formats.mxnet.write_ops import OP_CONVERTERS
from graph.formats.shared.groups import OpGroup, not_representable, note_of, op_groups
from graph.formats.shared.op_writer import with_framework_ops
from graph.ir import Graph, Role, Value

VERSION = ["int", 10900]


def dump(graph: Graph) -> bytes:
    """Bytes of the symbol file. Raises BadGraph for nodes and values without an MXNet equivalent."""
    graph = with_framework_ops(graph, "mxnet", OP_CONVERTERS)
    groups = op_groups(graph, "mxnet")
    note = note_of(graph, "mxnet")
    writer = _SymbolWriter(graph, groups)
    for group in groups:
        writer.node(group)
    losses = set(note.get("losses", ()))
    heads = [writer.entry(graph.values[v].name) for v in graph.outputs if _is_head(graph, v, losses, writer)]
    rows = [0, *itertools.accumulate(writer.outputs)]
    symbol = {
        "nodes": writer.nodes,
        "arg_nodes": [n for n, node in enumerate(writer.nodes) if node["op"] == VARIABLE],
        "node_row_ptr": rows,
        "heads": heads,
        "attrs": note.get("attrs") or {"mxnet_version": VERSION},
    }
    return msgspec.json.format(msgspec.json.encode(symbol), indent=2)


def _is_head(graph: Graph, v: int, losses: set[str], writer: _SymbolWriter) -> bool:
    value = graph.values[v]
    return value.name not in losses and value.name in writer.written


class _SymbolWriter:
    """Collects the nodes of the file in order; a variable precedes its first reader."""

    def __init__(self, graph: Graph, groups: Sequence[OpGroup]):
        self.readers: dict[str, list[tuple[str, int]]] = {}
        for group in groups:
            for place, name in enumerate(group.origin.inputs):
                self.readers.setdefault(name, []).append((group.origin.op, place))
        self.values = {value.name: value for value in graph.values}
        self.nodes: list[dict[str, Any]] = []
        self.outputs: list[int] = []
        self.written: dict[str, list[int]] = {}

    def entry(self, name: str) -> list[int]:
        """Entry of a value in the file; a variable is added on first use. Raises BadGraph."""
        if name not in self.written:
            value = self.values.get(name)
            if value is None or value.role is Role.ACTIVATION:
                raise not_representable(
                    f"values.{name}", f"{quoted(name)}, which no op in the file computes", "a value of the file"
                )
            self._add({"op": VARIABLE, "name": name, **self._hints(value), "inputs": []}, [name])
        return self.written[name]

    def node(self, group: OpGroup) -> None:
        origin = group.origin
        attributes = {k: v for k, v in origin.attributes.items() if k != "subgraphs"}
        if group.recompute is not None:
            attributes = {k: v for k, v in attributes.items() if k not in MIRRORING}
            attributes["force_mirroring"] = str(group.recompute == "prefer")
        inputs = [self.entry(name) for name in origin.inputs]
        node: dict[str, Any] = {"op": origin.op, "name": origin.name}
        if attributes:
            node["attrs"] = {key: attribute_text(value) for key, value in attributes.items()}
        node["inputs"] = inputs
        if "subgraphs" in origin.attributes:
            node["subgraphs"] = origin.attributes["subgraphs"]
        self._add(node, origin.outputs)

    def _add(self, node: dict[str, Any], outputs: list[str]) -> None:
        for k, name in enumerate(outputs):
            if name:
                self.written[name] = [len(self.nodes), k, 0]
        self.nodes.append(node)
        self.outputs.append(max(1, len(outputs)))

    def _role_of(self, value: Value) -> str:
        """Role that a reader would infer from the name and the input positions of the variable."""
        found = role_by_name(value.name)
        for op, place in self.readers.get(value.name, []):
            if found == "input":
                found = role_by_position(op, place)
        return found

    def _hints(self, value: Value) -> dict[str, Any]:
        """Attributes of a variable: the file's own, else shape and element type as hints."""
        note = value.annotations.get("mxnet")
        attributes: dict[str, Any] = (
            dict(note["attributes"]) if isinstance(note, Mapping) and "attributes" in note else {}
        )
        if value.type is None or value.data is not None or value.type.dtype not in DTYPE_NUMBERS:
            raise not_representable(
                f"values.{value.name}",
                f"{value.role} {quoted(value.name)} with content or without a type MXNet has",
                "variables with shapes",
            )
        attributes["__shape__"] = str(value.type.shape)
        if value.type.dtype != "float32":
            attributes["__dtype__"] = str(DTYPE_NUMBERS[value.type.dtype])
        if self._role_of(value) != value.role:
            attributes["__role__"] = value.role.value
        return {"attrs": attributes}
