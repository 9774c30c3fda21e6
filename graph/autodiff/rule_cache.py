"""Cache of rule output: nodes with the same signature get their gradient from a template instead of the rule.

    grad/fc1: MatMul(dz, w1)            template of MatMul for these types:  MatMul(incoming 0, input 1)
    grad/fc2: MatMul(dz', w2)           instantiated with other ids and another name prefix

A rule depends on op, types, attributes, contents of constants and on which operands are the same value; nodes that
agree in all of these get the same backward nodes. O(nodes of the gradient) per use.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.autodiff.gradients.accumulation import Cotangent, provenance
from graph.builder.builder import Builder
from graph.ir import ABSENT, Node, Phase, Role, TensorType, Value

_LARGEST_CONTENT = 256  # bytes of a constant in a key; nodes that read a larger one are not cached

#: Operand of a template: ABSENT, a slot of the node (from 0), or a constant `v` as -2 - v.
Operand = int


@dataclass(frozen=True, slots=True)
class _TemplateNode:
    """One node of a template; the values it writes are numbered on from the slots."""

    suffix: str  # of its name, after the prefix grad/NODE
    op: str
    reads: tuple[Operand, ...]
    writes: tuple[tuple[str, TensorType | None] | None, ...]  # (suffix of the name, type), None where absent
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GradientTemplate:
    """The nodes that a rule emits, and the gradient of each input."""

    nodes: tuple[_TemplateNode, ...]
    gradients: tuple[Operand | None, ...]
    zeros: tuple[Operand, ...]  # values known to be zero


class TemplateCache:
    """Templates by node signature."""

    def __init__(self, builder: Builder, zeros: set[int]):
        self.builder, self.zeros = builder, zeros
        self._known: dict[Hashable, GradientTemplate | None] = {}

    def key(
        self, node: Node, slots: Sequence[int], incoming: Sequence[int | None], needs: tuple[bool, ...]
    ) -> Hashable:
        """Signature of the node; None for a node that is not cached (large constants, nested attributes)."""
        values = self.builder.values
        types: list[Hashable] = []
        for v in slots:
            if v == ABSENT:
                types.append(None)
                continue
            value = values[v]
            data = value.data
            if data is None:
                types.append(value.type)
            elif data.nbytes > _LARGEST_CONTENT:
                return None
            else:
                types.append((value.type, data.tobytes()))
        attributes = _frozen(node.attributes)
        if attributes is None:
            return None
        repeats = None if len(set(slots)) == len(slots) else tuple([slots.index(v) for v in slots])
        missing = tuple([gradient is None for gradient in incoming])
        return (node.op, attributes, tuple(types), len(node.inputs), missing, needs, repeats)

    def replay(self, key: Hashable, node: Node, slots: Sequence[int]) -> list[Cotangent | None] | None:
        """Gradients of the inputs after instantiating the template of `key`; None without a template."""
        template = self._known.get(key)
        return None if template is None else self._instantiate(template, node, slots)

    def record(
        self,
        key: Hashable,
        node: Node,
        slots: Sequence[int],
        before: tuple[int, int],
        gradients: Sequence[Cotangent | None],
    ) -> None:
        """Store a template of the nodes since `before` = (nodes, values), unless a name collided."""
        if key not in self._known and self._has_default_names(node, before):
            self._known[key] = self._template(node, slots, before, gradients)

    def _has_default_names(self, node: Node, before: tuple[int, int]) -> bool:
        """True when no name was changed by a collision: grad/NAME, grad/NAME/1, ... and their outputs."""
        added, values = self.builder.nodes[before[0] :], self.builder.values
        for k, each in enumerate(added):
            if each.name != f"grad/{node.name}" + (f"/{k}" if k else ""):
                return False
            single = len(each.outputs) == 1
            for i, v in enumerate(each.outputs):
                plain = (each.name,) if single else (f"{each.name}:{i}", f"grad/{node.name}:{i}")
                if v != ABSENT and values[v].name not in plain:
                    return False
        return True

    def _template(
        self, node: Node, slots: Sequence[int], before: tuple[int, int], gradients: Sequence[Cotangent | None]
    ) -> GradientTemplate | None:
        builder, prefix = self.builder, f"grad/{node.name}"
        added = builder.nodes[before[0] :]
        written = {v for each in added for v in each.writes}
        place: dict[int, Operand] = {ABSENT: ABSENT}
        for i, v in reversed(list(enumerate(slots))):
            place[v] = ABSENT if v == ABSENT else i
        nodes = []
        first = len(slots)  # number of the next value that the template writes
        for each in added:
            if not self._is_plain(each, node, prefix):
                return None
            reads = [self._operand(v, place) for v in each.inputs]
            for v in each.writes:
                place[v] = first
                first += 1
            if None in reads or not all(self._is_plain_value(v, prefix) for v in each.writes):
                return None
            values = [None if v == ABSENT else builder.values[v] for v in each.outputs]
            nodes.append(
                _TemplateNode(
                    each.name[len(prefix) :],
                    each.op,
                    tuple(p for p in reads if p is not None),
                    tuple(None if value is None else (value.name[len(prefix) :], value.type) for value in values),
                    each.attributes,
                )
            )
        results = [self._operand(gradient, place) if isinstance(gradient, int) else None for gradient in gradients]
        if any(result is None for result, gradient in zip(results, gradients, strict=True) if gradient is not None):
            return None
        return GradientTemplate(tuple(nodes), tuple(results), tuple(place[v] for v in written if v in self.zeros))

    def _operand(self, v: int, place: Mapping[int, Operand]) -> Operand | None:
        """The operand of a template that stands for a value; None for a value that is neither known nor constant."""
        return place.get(v, -2 - v if self._is_constant(v) else None)

    def _is_plain_value(self, v: int, prefix: str) -> bool:
        """True for a value with a name from `prefix` and a type only."""
        value = self.builder.values[v]
        return value.name.startswith(prefix) and value == Value(value.name, value.type)

    def _is_plain(self, one: Node, node: Node, prefix: str) -> bool:
        """True for a node with op, operands, attributes and annotations only."""
        return one.name.startswith(prefix) and one == Node(
            one.name, one.op, one.inputs, one.outputs, one.attributes, Phase.BACKWARD, annotations=one.annotations
        )

    def _is_constant(self, v: int) -> bool:
        value = self.builder.values[v]
        return value.role is Role.CONSTANT and value.data is not None

    def _instantiate(
        self, template: GradientTemplate, node: Node, slots: Sequence[int]
    ) -> list[Cotangent | None] | None:
        """Add the nodes of the template for `node`; None when one of the names is taken."""
        builder, prefix = self.builder, f"grad/{node.name}"
        ids = list(slots)
        names, taken = builder._node_names, builder._value_ids
        for entry in template.nodes:
            if prefix + entry.suffix in names or any(w is not None and prefix + w[0] in taken for w in entry.writes):
                return None
        annotations = provenance(node, node.name)
        values = builder.values
        for entry in template.nodes:
            outputs = []
            for written in entry.writes:
                if written is None:
                    outputs.append(ABSENT)
                    continue
                name = prefix + written[0]
                v = taken[name] = len(values)
                values.append(Value(name, written[1]))
                ids.append(v)
                outputs.append(v)
            name = prefix + entry.suffix
            names.add(name)
            builder.nodes.append(
                Node(
                    name,
                    entry.op,
                    tuple([p if p == ABSENT else ids[p] if p >= 0 else -2 - p for p in entry.reads]),
                    tuple(outputs),
                    entry.attributes,
                    Phase.BACKWARD,
                    annotations=annotations,
                )
            )
        for place in template.zeros:
            self.zeros.add(ids[place])
        return [None if p is None else ids[p] if p >= 0 else -2 - p for p in template.gradients]


def _frozen(attributes: Mapping[str, Any]) -> Hashable:
    """The attributes as a hashable key; None when one of them is not plain data."""
    if not attributes:
        return ()
    entries = []
    for name in sorted(attributes):
        value = attributes[name]
        if isinstance(value, list | tuple):
            if not all(isinstance(item, int | float | str) for item in value):
                return None
            value = (type(value).__name__, *value)
        elif not isinstance(value, int | float | str | bytes):
            return None
        entries.append((name, type(value).__name__, value))
    return tuple(entries)
