"""Differentiation: the walk from targets back to what is wanted. No op is named here; rules are in `gradients/`.

    x ──▶ fc1 ──▶ h ──▶ relu1 ──▶ loss        forward
              grad/fc1 ◀── grad/relu1 ◀── 1    backward, appended in reverse order

A node is differentiated when it depends on something wanted and a target depends on it. Each value's
gradient is the sum of one contribution per slot that reads it; head gradients are contributions too.
O(nodes + reads) time, without recursion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graph.builder import Builder
from graph.contributions import Contributions, Ready, provenance
from graph.emit import Emit, Val
from graph.errors import BadGraph, CannotDifferentiate, Findings, NoGradient, quoted
from graph.gradients import RULES, UNDIFFERENTIABLE
from graph.gradients.opaque import opaque_gradients
from graph.gradients.table import Forward
from graph.ir import ABSENT, EMPTY, FLOATS, Graph, Node, Phase, Role, TensorType, producers
from graph.question import Question, carries_gradient, resolve


def differentiate(
    graph: Graph,
    targets: Sequence[str],
    wanted: Sequence[str] | None = None,
    *,
    head_gradients: Mapping[str, str | None] = EMPTY,
    no_gradient: Collection[str] = (),
    unreachable: str = "null",
) -> Graph:
    """`graph` followed by its backward part: `gradients` pairs each wanted value with its gradient, also an output.

    `wanted` are names, every floating parameter by default; a head gradient is the name of a value of
    the target's type, ones by default. Raises BadGraph and NoGradient with up to ten findings.
    """
    question = resolve(graph, targets, wanted, head_gradients, no_gradient, unreachable)
    builder = Builder.onto(graph)
    pairs = append_gradients(builder, graph, question)
    builder.gradients.extend(pairs)
    return builder.build(dict.fromkeys((*graph.outputs, *(gradient for _, gradient in pairs))))


def append_gradients(
    builder: Builder, graph: Graph, question: Question, ready: Ready | None = None
) -> list[tuple[int, int]]:
    """(wanted value, its gradient) pairs after adding the backward part of `graph` to `builder`, a copy of it.

    `ready` is called when the gradient of a wanted value is complete, and no later node of the walk
    reads that value; it may add nodes, and returns what stands for the gradient from then on.
    """
    return _Walk(builder, graph, question, ready or (lambda v, gradient: gradient)).pairs()


class _Walk:
    """One differentiation under way."""

    def __init__(self, builder: Builder, graph: Graph, question: Question, ready: Ready):
        self.builder, self.graph, self.question, self.ready = builder, graph, question, ready
        self.constants: dict[Any, Val] = {}
        self.wanted = frozenset(question.wanted)
        self.producer = producers(graph)
        self.sizes_only = frozenset(v for v, value in enumerate(graph.values) if value.type is None)
        self.needs, self.path = _path(graph, question)
        expected = [0] * len(graph.values)
        for n in self.path:
            for v in _slots(graph.nodes[n]):
                if self.needs[v]:
                    expected[v] += 1
        for target, _ in question.targets:
            expected[target] += 1
        self.sums = Contributions(builder, expected, self.producer)
        self.finished: dict[int, int] = {}  # wanted value -> what stands for its gradient

    def pairs(self) -> list[tuple[int, int]]:
        self._check_path()
        for target, head in self.question.targets:
            if self.needs[target]:
                self.sums.add(target, self._ones(target) if head is None else head)
                self._settle(target, 1)
        findings = Findings()
        for n in self.path:
            self._differentiate(n, findings)
            if len(findings) >= 10:
                break
        if len(findings):
            raise NoGradient(findings.kept, len(findings) - len(findings.kept))
        self._deal_with_unreachable()
        return [(v, self.finished[v]) for v in self.question.wanted if v in self.finished]

    def _differentiate(self, n: int, findings: Findings) -> None:
        """Add the gradient of one node to what its inputs have."""
        node = self.builder.nodes[n]
        incoming = [None if v == ABSENT else self.sums.complete.get(v) for v in node.outputs]
        slots = _slots(node)
        if any(gradient is not None for gradient in incoming):
            needs = tuple(bool(v != ABSENT and self.needs[v]) for v in slots)
            try:
                if node.op in RULES and not self._untyped(node):
                    gradients = self._by_rule(n, node, incoming, needs)
                else:
                    gradients = opaque_gradients(self.builder, node, slots, incoming, needs)
            except CannotDifferentiate as error:
                self._refuse(n, f"{error.found}", "a use the gradient rule covers", error.remedy, findings)
                gradients = []
            for v, gradient in zip(slots, gradients, strict=False):
                if gradient is not None and v != ABSENT and self.needs[v]:
                    self.sums.add(v, gradient)
        for v in slots:
            if v != ABSENT and self.needs[v]:
                self._settle(v, 1)

    def _by_rule(self, n: int, node: Node, incoming: Sequence[int | None], needs: tuple[bool, ...]) -> list[int | None]:
        """Gradients of the node's inputs as its rule gives them, checked against the inputs' types."""
        rule = RULES[node.op]
        emit = Emit(
            self.builder, f"grad/{node.name}", Phase.BACKWARD, self.constants,
            annotations=provenance(node, node.name),
        )  # fmt: skip
        inputs = tuple(None if v == ABSENT else emit.val(v) for v in node.inputs)
        outputs = tuple(None if v == ABSENT else emit.val(v) for v in node.outputs)
        given = [None if gradient is None else emit.val(gradient) for gradient in incoming]
        if rule.zeros:
            types = self._all_types(node)
            given = [
                emit.zeros(type) if dz is None and type is not None and type.dtype in FLOATS else dz
                for dz, type in zip(given, types, strict=True)
            ]
        forward = Forward(
            node.op, node.attributes, inputs, outputs, needs, lambda i: emit.val(self.builder.want_output(n, i))
        )
        gradients = rule.rule(emit, forward, *given)
        for x, dx, needed in zip(inputs, gradients, needs, strict=False):
            if x is not None and dx is not None and needed and dx.type is not x.type and dx.type != x.type:
                raise TypeError(f"the gradient rule of {node.op} gives {dx.type} for an input of {x.type}")
        return [None if dx is None else dx.id for dx in gradients]

    def _all_types(self, node: Node) -> tuple[TensorType | None, ...]:
        """Types of all outputs, those nobody wants included."""
        from graph.ops import infer
        from graph.ops.table import Call

        types = tuple(None if v == ABSENT else self.builder.values[v].type for v in node.outputs)
        if ABSENT not in node.outputs:
            return types
        values = [None if v == ABSENT else self.builder.values[v] for v in node.inputs]
        return infer(
            Call(
                node.op, node.attributes, tuple(v.type if v else None for v in values), types,
                (True,) * len(node.outputs), tuple(v.data if v else None for v in values),
                self.builder.opset.get("", 21),
            )
        )  # fmt: skip

    def _settle(self, v: int, slots: int) -> None:
        gradient = self.sums.settle(v, slots)
        if gradient is not None and v in self.wanted:
            self.finished[v] = self.ready(v, gradient)

    def _ones(self, target: int) -> int:
        """The default head gradient: a constant for one element or an unknown type, else made by a node."""
        value = self.builder.values[target]
        name = f"grad/{value.name}/head"
        if value.type is None:
            return self.builder.value(name, None, Role.CONSTANT, bytes=value.bytes, fixed_bytes=value.fixed_bytes)
        producer = self.producer[target]
        node = self.builder.nodes[producer] if producer >= 0 else None
        emit = Emit(
            self.builder, name, Phase.BACKWARD, self.constants, annotations=provenance(node, value.name)
        )  # fmt: skip
        return (emit.constant(1, value.type.dtype) if value.type.shape == () else emit.ones(value.type)).id

    def _untyped(self, node: Node) -> bool:
        return bool(self.sizes_only) and not self.sizes_only.isdisjoint((*node.inputs, *node.outputs))

    def _check_path(self) -> None:
        """Every node on the path has a rule or says what its gradient reads; else NoGradient, ten at once."""
        findings = Findings()
        for n in reversed(self.path):
            node = self.graph.nodes[n]
            if node.gradient_reads is not None or (node.op in RULES and not self._untyped(node)):
                continue
            what = "values without a type" if node.op in RULES else "no gradient rule"
            self._refuse(
                n, what, "a gradient rule for typed values, or `gradient_reads`",
                "say which values its gradient reads by `gradient_reads`, or list its output under `no_gradient`",
                findings,
            )  # fmt: skip
        if len(findings):
            raise NoGradient(findings.kept, len(findings) - len(findings.kept))

    def _refuse(self, n: int, what: str, expected: str, remedy: str, findings: Findings) -> None:
        node = self.graph.nodes[n]
        findings.add("no_gradient", f"nodes[{n}]", f"op {node.op} of {quoted(node.name)}: {what}", expected, remedy)

    def _deal_with_unreachable(self) -> None:
        """Wanted values the targets do not depend on: left out, refused or given zeros."""
        missing = [v for v in self.question.wanted if v not in self.finished]
        if not missing or self.question.unreachable == "null":
            return
        if self.question.unreachable == "error":
            findings = Findings()
            for v in missing:
                findings.add(
                    "unreachable", f"differentiate.with_respect_to.{self.graph.values[v].name}",
                    f"{quoted(self.graph.values[v].name)}, on which no target depends", "a value a target depends on",
                    'leave it out, or say "unreachable": "null" or "zeros"',
                )  # fmt: skip
            findings.settle()
        for v in missing:
            value = self.builder.values[v]
            if value.type is None:
                raise BadGraph.one(
                    "unreachable", f"differentiate.with_respect_to.{value.name}", f"{quoted(value.name)}, untyped",
                    "a typed value where zeros are asked for", "declare its shape and dtype",
                )  # fmt: skip
            emit = Emit(
                self.builder, f"grad/{value.name}", Phase.BACKWARD, self.constants,
                annotations=provenance(None, value.name),
            )  # fmt: skip
            self.finished[v] = self.ready(v, emit.zeros(value.type).id)


def _slots(node: Node) -> tuple[int, ...]:
    """Value ids the gradient goes to, one a slot: inputs in order, then what bodies capture."""
    if not node.bodies:
        return node.inputs
    return (*node.inputs, *(outer for body in node.bodies.values() for _, outer in body.captures))


def _path(graph: Graph, question: Question) -> tuple[bytearray, list[int]]:
    """(per value: 1 where its gradient is needed, the nodes to differentiate from last to first)."""
    needs = bytearray(len(graph.values) + 1)  # the last entry answers for ABSENT
    for v in question.wanted:
        needs[v] = v not in question.stops
    for node in graph.nodes:
        if node.op not in UNDIFFERENTIABLE:
            for v in _slots(node):
                if needs[v]:
                    for output in node.writes:
                        needs[output] |= carries_gradient(graph.values[output]) and output not in question.stops
                    break
    reached = bytearray(len(graph.values) + 1)
    for target, _ in question.targets:
        reached[target] = needs[target]
    path = []
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        for v in node.outputs:
            if reached[v]:
                break
        else:
            continue
        if node.op in UNDIFFERENTIABLE:
            continue
        sources = [v for v in _slots(node) if needs[v]]
        if sources:
            path.append(n)
            for v in sources:
                reached[v] = 1
    # Wanted values no target reaches must not be waited for.
    return bytearray(a & b for a, b in zip(needs, reached, strict=True)), path
