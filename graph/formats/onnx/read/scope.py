"""Symbol table of the walk: frames, scopes and slots.

A *frame* is one graph under construction (the model, or a body of If, Loop or Scan). A *scope* maps names to slots:
each frame has one, and each inlined function call or branch has its own inside the frame of its caller. A *slot* is
the value bound to a name. It is added to a graph when a node first reads it, so unused weights and folded shapes are
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto

from graph.builder.builder import Builder
from graph.formats.onnx.read.metadata import ValueNote
from graph.ir import ABSENT, EMPTY, Body, Graph, Node, Role, TensorType, Value
from graph.ops.control_flow.interface import LoopInterface, may_be_shorter, trip_count
from graph.ops.registry.constant_folding import is_small

_PLAIN = ValueNote()


@dataclass(slots=True, eq=False)
class Slot:
    """The value bound to a name."""

    name: str  # of the value it becomes
    type: TensorType | None
    frame: GraphFrame
    role: Role = Role.ACTIVATION
    data: np.ndarray | None = None  # known content
    upper: np.ndarray | None = None  # content where every data-dependent length is the largest; types follow from it
    is_held: bool = False  # an initialiser of the file
    is_baked: bool = False  # content derived from the file alone, not from requested shapes
    value: int = ABSENT  # id in the frame's graph after the first read
    note: ValueNote = _PLAIN
    elements: tuple[Slot, ...] | None = None  # of a sequence, which is no value of a graph

    @property
    def known(self) -> np.ndarray | None:
        """Content that shapes may depend on."""
        return self.data if self.role is not Role.PARAMETER else None

    @property
    def is_short(self) -> bool:
        """Whether the value may be shorter than its type, or depends on the length of such a value."""
        return self.value in self.frame.short


class GraphFrame:
    """One graph under construction and its captures from the outer graph."""

    def __init__(self, builder: Builder, outer: GraphFrame | None = None):
        self.builder, self.outer = builder, outer
        self.captures: list[tuple[int, int]] = []
        self.node_ids: dict[str, int] = {}  # name in the file -> node
        self.constants: dict[tuple[object, ...], Slot] = {}  # added by opset upgrades, by content
        self.short: set[int] = set()  # values that may be shorter than their types, and those computed from them
        self._captured: dict[Slot, int] = {}

    @property
    def depth(self) -> int:
        return 1 if self.outer is None else self.outer.depth + 1

    def id_of(self, slot: Slot) -> int:
        """Id of the slot's value in this frame's graph; declared or captured on the first read."""
        if slot.frame is self:
            if slot.value == ABSENT:
                slot.value = self.declare(slot)
            return slot.value
        captured = self._captured.get(slot)
        if captured is None:
            captured = self._captured[slot] = self._capture(slot)
        return captured

    def declare(self, slot: Slot) -> int:
        """Id of a new value for a slot that no node writes."""
        note = slot.note
        type = None if note.untyped else slot.type
        return self.builder.value(
            slot.name,
            type,
            slot.role,
            data=None if slot.role is Role.PARAMETER else slot.data,
            bytes=note.bytes,
            fixed_bytes=note.fixed_bytes,
            annotations=note.annotations,
            stop_gradient=note.stop_gradient,
        )

    def _capture(self, slot: Slot) -> int:
        """Id in this frame for a value of an outer graph: small constants are copied, other values captured."""
        assert self.outer is not None  # a scope only sees slots of enclosing frames
        known = slot.known
        if known is not None and slot.type is not None and is_small(slot.type):
            return self.builder.constant(known, slot.name)
        outside = self.outer.id_of(slot)
        inside = self.builder.value(slot.name, slot.type, Role.INPUT)
        self.builder.inputs.remove(inside)
        self.captures.append((inside, outside))
        if slot.is_short:
            self.short.add(inside)
        return inside

    def note_short(self, node: Node) -> None:
        """Record the outputs of the newest node that may be shorter than their types."""
        reads = {*node.inputs, *(outer for body in node.bodies.values() for _, outer in body.captures)}
        is_short = not self.short.isdisjoint(reads)
        self.short.update(node.writes if is_short else _short_outputs(self.builder.values, node))

    def body(self, outputs: list[int]) -> Body:
        """The finished nested graph; validated together with the outer graph."""
        b = self.builder
        graph = Graph(b.name, tuple(b.values), tuple(b.nodes), tuple(outputs), tuple(b.inputs), b.opset)
        return Body(graph, tuple(self.captures))


def _short_outputs(values: Sequence[Value], node: Node) -> list[int]:
    """Outputs of a node that may be shorter than their types by its own data, or by that of its bodies."""
    inner = (_short_outputs(body.graph.values, n) for body in node.bodies.values() for n in body.graph.nodes)
    if may_be_shorter(node) or any(inner):
        return list(node.writes)
    if node.op == "Loop" and not trip_count(values, node).exact:
        return [v for v in node.outputs[LoopInterface.of(node).states :] if v != ABSENT]
    return []


@dataclass(slots=True, eq=False)
class Scope:
    """Names visible to one list of nodes."""

    frame: GraphFrame
    opset: int  # of the standard, for the nodes in this list
    outer: Scope | None = None  # None: no outer names are visible (the model, a function)
    prefix: str = ""  # of names of values and nodes in this list
    is_model: bool = False  # the model's own list: names are those of the file
    given: Mapping[str, AttributeProto] = field(default_factory=lambda: EMPTY)  # attributes of the function call
    renamed: dict[str, str] = field(default_factory=dict)  # name here -> name of the value it becomes
    slots: dict[str, Slot | None] = field(default_factory=dict)  # None: an input the function call leaves out

    def find(self, name: str) -> Slot | None:
        """Slot of a name; None for an absent input. Raises KeyError for an undefined name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.slots:
                return scope.slots[name]
            scope = scope.outer
        raise KeyError(name)

    @property
    def in_function(self) -> bool:
        return not self.is_model if self.outer is None else self.outer.in_function

    def value_name(self, name: str) -> str:
        return self.renamed.get(name, self.prefix + name)

    def define(self, name: str, type: TensorType | None, **fields: object) -> Slot:
        slot = Slot(self.value_name(name), type, self.frame, **fields)  # type: ignore[arg-type]
        self.slots[name] = slot
        return slot

    def inner(self, frame: GraphFrame, prefix: str) -> Scope:
        """A scope for nodes nested in this one."""
        return Scope(frame, self.opset, self, prefix, given=self.given)
