"""Conversion of the ops of a step to nodes of a body: names resolve to their latest write, op types to remat ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from graph.builder.builder import Builder
from graph.errors import BadGraph, quoted
from graph.formats.shared.op_table import OpTable, Translation, Untranslated
from graph.ir import ABSENT, EMPTY, Graph, Node, TensorType
from graph.ir.renumber import remap_node
from graph.ops.registry import find_op
from graph.recurrent.net import StepOp

#: Resolver of names that no op of the step has written yet.
ResolveName = Callable[[str], int]

#: Annotation of a value: the step name it is a version of. Of a node: the step op it belongs to.
BLOB, STEP_OP = "blob", "step_op"


class StepBuilder:
    """Adds the ops of a step to a body; `prefix` precedes the names of their outputs.

    Ops that write a name in `again` are marked `prefer` for recomputation.
    """

    def __init__(
        self,
        body: Builder,
        table: OpTable | None,
        outside: ResolveName,
        *,
        again: Collection[str] = (),
        prefix: str = "",
        types: Mapping[str, TensorType] = EMPTY,
    ):
        self.body, self.table, self.outside, self.prefix, self.again = body, table, outside, prefix, frozenset(again)
        self.types = types  # declared types of names that unknown ops write
        self.current: dict[str, int] = {}  # name -> its latest value

    def read(self, name: str) -> int:
        """The latest value of a name."""
        if not name:
            return ABSENT
        if name not in self.current:
            self.bind(name, self.outside(name))
        return self.current[name]

    def bind(self, name: str, v: int) -> None:
        """Bind a name to a value until its next write."""
        self.current[name] = v
        value = self.body.values[v]
        if BLOB not in value.annotations:
            self.body.values[v] = replace(value, annotations=MappingProxyType({**value.annotations, BLOB: name}))

    def add(self, op: StepOp) -> None:
        """Add one op. Raises BadGraph for an unknown op, or if the op does not accept its inputs."""
        inputs = [self.read(name) for name in op.inputs]
        first = len(self.body.nodes)
        if self.table is None:
            made = self._plain(op, inputs)
        else:
            made = self._translated(self.table, op, inputs)
        mark = {"type": op.type, "outputs": list(op.outputs)}
        prefer = "prefer" if self.again.intersection(op.outputs) else None
        for n in range(first, len(self.body.nodes)):
            node = self.body.nodes[n]
            marked = MappingProxyType({**node.annotations, STEP_OP: mark})
            self.body.nodes[n] = replace(node, annotations=marked, recompute=prefer or node.recompute)
        for name, v in zip(op.outputs, made, strict=False):
            if name and v != ABSENT:
                self.bind(name, v)

    def _plain(self, op: StepOp, inputs: Sequence[int]) -> tuple[int, ...]:
        if find_op(op.type) is None:
            return self._unknown(op, op.type, inputs, "an op of ONNX or remat")
        return self._node(op, op.type, inputs)

    def _node(
        self, op: StepOp, type: str, inputs: Sequence[int], types: Sequence[TensorType | None] | None = None
    ) -> tuple[int, ...]:
        return self.body.node(
            type,
            inputs,
            name=f"{self.prefix}{op.type.rpartition('::')[2]}_{op.outputs[0]}",
            outputs=[self.prefix + name if name else None for name in op.outputs],
            types=types,
            attributes=op.attributes,
        )

    def _unknown(self, op: StepOp, type: str, inputs: Sequence[int], expected: str) -> tuple[int, ...]:
        """Add an op that is planned by the declared types of its outputs. Raises BadGraph where one is missing."""
        untyped = [name for name in op.outputs if name and name not in self.types]
        if untyped or not op.outputs:
            raise BadGraph.one(
                "unsupported_op",
                f"{self.body.name}",
                f"{quoted(type)}, which writes {quoted(untyped[0] if untyped else '')}",
                f"{expected}, or declared types of its outputs",
                "write the step in known ops, or declare the types and a gradient rule",
            )
        return self._node(op, type, inputs, [self.types.get(name) for name in op.outputs])

    def _translated(self, table: OpTable, op: StepOp, inputs: Sequence[int]) -> tuple[int, ...]:
        types = [None if v == ABSENT else self.body.values[v].type for v in inputs]
        name = op.outputs[0] if op.outputs else op.type
        found = table.translate(
            op.type, op.attributes, types, name=f"{self.prefix}{op.type}_{name}", outputs=len(op.outputs)
        )
        if isinstance(found, Untranslated):
            return self._unknown(op, f"{table.framework}::{op.type}", inputs, "an op that remat can translate")
        return inline_translation(self.body, found, inputs, [self.prefix + name if name else "" for name in op.outputs])


def inline_translation(
    builder: Builder, part: Translation, given: Sequence[int], names: Sequence[str]
) -> tuple[int, ...]:
    """Inline a translated op into the builder; values of its outputs, which get the names `names`."""
    place = {inner: v for inner, v in zip(part.inputs, given, strict=True) if inner is not None}
    named = {v: name for v, name in zip(part.outputs, names, strict=False) if v is not None and name}
    for v, value in enumerate(part.graph.values):
        if v not in place:
            place[v] = builder.value(
                named.get(v, value.name),
                value.type,
                value.role,
                data=value.data,
                bytes=value.bytes,
                fixed_bytes=value.fixed_bytes,
                annotations=value.annotations,
            )
    first = len(builder.nodes)
    for node in part.graph.nodes:
        builder.append(_moved(node, place, first))
    return tuple(ABSENT if v is None else place[v] for v in part.outputs)


def _moved(node: Node, place: dict[int, int], first: int) -> Node:
    return remap_node(node, place.__getitem__, after=tuple(first + n for n in node.after))


def written_by(body: Graph, node: Node) -> list[str]:
    """Step names written by the step op that a node of the body belongs to."""
    if STEP_OP in node.annotations:
        return [str(name) for name in node.annotations[STEP_OP]["outputs"]]
    return [body.values[v].name for v in node.writes]
