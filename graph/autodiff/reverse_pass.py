"""One differentiation under way: from the targets back, node by node, until what is wanted is complete.

Each node on the path is asked once, when every reader of its outputs has been: by the rule of its op, by
what is declared of it, or as an opaque node. What it gives goes to the contributions of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from graph.autodiff.active_path import ZERO_GRADIENT, find_active_path, gradient_slots, rule_of
from graph.autodiff.gradients.accumulation import (
    SYMBOLIC_ZERO,
    Cotangent,
    CotangentAccumulator,
    GradientHook,
    IndexedSlices,
    provenance,
)
from graph.autodiff.gradients.control_flow.bounded_rows import bounded_values, is_rowwise, trim_rows
from graph.autodiff.gradients.control_flow.registry import BODY_RULES, BodyGradientContext, body_gradients
from graph.autodiff.gradients.declared import AnyGradientRule, DeclaredGradient, declared_gradients
from graph.autodiff.gradients.events import GradientCallback
from graph.autodiff.gradients.opaque import opaque_gradients
from graph.autodiff.gradients.registry import (
    GRADIENT_RULES,
    REFUSED_GRADIENTS,
    ForwardNode,
    GradientRule,
    GradientStatus,
)
from graph.autodiff.gradients.spec import GradientSpec
from graph.autodiff.gradients.version_rules import check_gradient_versions, check_versions
from graph.autodiff.provenance import ProvenanceRecorder
from graph.autodiff.rule_cache import TemplateCache
from graph.autodiff.seeds_and_results import CotangentSeeds, SourceGradients
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.cancellation import cancellable
from graph.errors import CannotDifferentiate, Findings, NoGradient, quoted
from graph.ir import ABSENT, FLOAT_DTYPES, Graph, Node, Phase, Role, TensorType, Val, producers
from graph.ops.registry import infer
from graph.ops.registry.registry import Call

#: append_gradients(builder, graph, question), for the bodies of a node
BodyDifferentiator = Callable[[Builder, Graph, GradientSpec], list[tuple[int, int]]]


class ReversePass:
    """State of one differentiation; `answer` does it."""

    def __init__(
        self,
        builder: Builder,
        graph: Graph,
        question: GradientSpec,
        ready: GradientHook,
        inside: BodyDifferentiator,
        callbacks: Sequence[GradientCallback] = (),
    ):
        self.builder, self.graph, self.question, self.ready, self.inside = builder, graph, question, ready, inside
        self.constants: dict[Any, Val] = {}
        self.zeros: set[int] = set()  # values known to be zero
        self.templates = TemplateCache(builder, self.zeros)
        self.wanted = frozenset(question.wanted)
        producer = producers(graph)
        self.ends = CotangentSeeds(builder, graph, producer, self.constants, self.zeros)
        self.bounded = bounded_values(graph)
        self.sizes_only = frozenset(v for v, value in enumerate(graph.values) if value.type is None)
        path = find_active_path(graph, question)
        self.needs, self.path = path.needs, path.nodes
        expected = [0] * len(graph.values)
        for n in self.path:
            for v in gradient_slots(graph.nodes[n]):
                if self.needs[v]:
                    expected[v] += 1
        for target, _ in question.targets:
            expected[target] += 1
        self.sums = CotangentAccumulator(builder, expected, producer, question.policy)
        self.finished: dict[int, Cotangent] = {}  # wanted value -> what stands for its gradient
        self.findings = Findings()
        self.teller = ProvenanceRecorder(builder, graph, callbacks)

    def answer(self) -> SourceGradients:
        """Do it. Raises NoGradient and BadGraph with up to ten findings."""
        missing = self._without_rule()
        for target, head in self.question.targets:
            if self.needs[target]:
                self._add(target, self.ends.head(target, head), None)
                self._settle(target)
        for n in cancellable(self.path):
            self._differentiate(n, missing)
            if len(self.findings) >= 10:
                break
        if self.question.history is not None:
            check_versions(self.question.history, self.builder, len(self.graph.nodes), self.findings)
            check_gradient_versions(self.question.history, self.graph, self.sums.complete, self.findings)
        if len(self.findings):
            raise NoGradient(self.findings.kept, len(self.findings) - len(self.findings.kept))
        for v in self.ends.unreached(self.question, self.finished):
            self.finished[v] = self.ready(v, self.ends.zeros_of(v))
        self.teller.mark(self.finished, self.sums.complete, self.question.wanted)
        return self.ends.ordered_gradients(self.question, self.finished)

    def _without_rule(self) -> dict[int, tuple[str, str, str]]:
        """Nodes on the path that nobody says how to differentiate: (code, what is missing, remedy) by id."""
        found = {}
        for n in self.path:
            node = self.graph.nodes[n]
            rule = rule_of(node.op, self.question.rules, self.inside)
            refused = (node.op in REFUSED_GRADIENTS and rule is None) or rule is GradientStatus.REFUSED
            if not refused and self._is_covered(node, rule):
                continue
            code = "gradient_refused" if refused else "no_gradient"
            if refused:
                what = f"its gradient must not be asked for: {REFUSED_GRADIENTS.get(node.op, 'it is declared so')}"
                remedy = "list its output under `no_gradient`, or the node under `skip`"
            else:
                what = "values without a type" if isinstance(rule, GradientRule) else "no gradient rule"
                remedy = (
                    "say which values its gradient reads by `gradient_reads`, declare it under `gradient_rules`, "
                    "or list its output under `no_gradient`"
                )
            found[n] = (code, what, remedy)
        return found

    def _is_covered(self, node: Node, rule: AnyGradientRule | None) -> bool:
        if node.op == ZERO_GRADIENT or node.gradient_reads is not None or isinstance(rule, DeclaredGradient):
            return True
        if node.bodies and _has_body_rule(node.op):
            return True
        return isinstance(rule, GradientRule) and not self._untyped(node)

    def _differentiate(self, n: int, missing: dict[int, tuple[str, str, str]]) -> None:
        """Add the gradient of one node to what its inputs have."""
        node = self.builder.nodes[n]
        incoming = [None if v == ABSENT else self._incoming(v) for v in node.outputs]
        slots = gradient_slots(node)
        nonzero = [gradient for gradient in incoming if gradient is not None and not self._is_zero(gradient)]
        if nonzero and n in missing:
            self._refuse_all(missing)
        elif nonzero:
            for v, gradient in zip(slots, self._gradients(n, node, slots, incoming), strict=False):
                if gradient is not None and v != ABSENT and self.needs[v]:
                    self._contribute(n, node, v, gradient)
        elif node.op == ZERO_GRADIENT or any(gradient is not None for gradient in incoming):
            for v in slots:
                if v != ABSENT and self.needs[v]:
                    self.sums.add_zero(v)
        missing.pop(n, None)
        self.teller.added()
        for v in slots:
            if v != ABSENT and self.needs[v]:
                self._settle(v)

    def _refuse_all(self, missing: dict[int, tuple[str, str, str]]) -> None:
        """Raise NoGradient: what comes in at one of them is not zero, and would go on to the others."""
        for n in sorted(missing):
            self._refuse(n, *missing[n])
        raise NoGradient(self.findings.kept, len(self.findings) - len(self.findings.kept))

    def _incoming(self, v: int) -> int | None:
        """The gradient of an output, dense: one node adds rows up where a rule is to read them."""
        gradient = self.sums.complete.get(v)
        gradient = self.sums.dense(v, gradient) if isinstance(gradient, IndexedSlices) else gradient
        if v in self.bounded and gradient is not None and gradient != SYMBOLIC_ZERO:
            return trim_rows(self.builder, gradient, v)
        return gradient

    def _is_zero(self, gradient: int) -> bool:
        if gradient == SYMBOLIC_ZERO or gradient in self.zeros:
            return True
        data = self.builder.values[gradient].data
        return data is not None and not data.any()

    def _gradients(
        self, n: int, node: Node, slots: Sequence[int], incoming: Sequence[int | None]
    ) -> Sequence[Cotangent | None]:
        """Per slot the gradient, by whatever says how; a refusal is collected."""
        needs = tuple([bool(v != ABSENT and self.needs[v]) for v in slots])
        rule = rule_of(node.op, self.question.rules, self.inside)
        if not self.bounded.isdisjoint(node.inputs) and not is_rowwise(node):
            code = "bounded_rows"
            self._refuse(
                n,
                code,
                "an input of which only the most rows are known",
                "give the loop a constant count",
                "an op that treats every row alike",
            )
            return ()
        try:
            if isinstance(rule, DeclaredGradient):
                return declared_gradients(self.builder, node, rule, slots, incoming, needs, self.ends.zeros_of)
            if node.bodies and _has_body_rule(node.op):
                return self._through_bodies(n, incoming, slots, needs)
            if isinstance(rule, GradientRule) and not self._untyped(node):
                return self._by_rule(n, node, rule, incoming, needs)
            return opaque_gradients(self.builder, node, slots, incoming, needs)
        except CannotDifferentiate as error:
            self._refuse(n, error.code, error.found, error.remedy, "a use the gradient rule covers")
        except NoGradient as error:  # inside a body
            self.findings.add_all(error.inside(f"nodes[{n}]."))
        return ()

    def _contribute(self, n: int, node: Node, v: int, gradient: Cotangent) -> None:
        device = node.annotations.get("device") if node.annotations else None
        try:
            self._add(v, gradient, device)
        except CannotDifferentiate as error:
            self._refuse(n, error.code, error.found, error.remedy, "parts that go together")
        self.teller.contribution(v, gradient)

    def _add(self, v: int, gradient: Cotangent, device: str | None) -> None:
        if not isinstance(gradient, IndexedSlices) and self._is_zero(gradient):
            self.sums.add_zero(v, gradient)
        else:
            self.sums.add(v, gradient, device)

    def _through_bodies(
        self, n: int, incoming: Sequence[int | None], slots: Sequence[int], needs: tuple[bool, ...]
    ) -> Sequence[Cotangent | None]:
        """Gradients of what a node with bodies is given; the bodies are differentiated like graphs."""
        needed = frozenset(v for v, wanted in zip(slots, needs, strict=True) if wanted)
        given = [None if gradient == SYMBOLIC_ZERO else gradient for gradient in incoming]
        rules = self.question.rules

        def inside(builder: Builder, graph: Graph, question: GradientSpec) -> list[tuple[int, int]]:
            return self.inside(builder, graph, replace(question, rules=rules) if rules else question)

        return body_gradients(
            BodyGradientContext(self.builder, n, given, needed, self.constants, inside, self.bounded), slots
        )

    def _by_rule(
        self, n: int, node: Node, rule: GradientRule, incoming: Sequence[int | None], needs: tuple[bool, ...]
    ) -> Sequence[Cotangent | None]:
        """Gradients of the node's inputs as its rule gives them, or as it gave them for a node that looks alike."""
        given = [None if gradient is None or gradient == SYMBOLIC_ZERO else gradient for gradient in incoming]
        key = None
        if not self.question.row_sparse and rule is GRADIENT_RULES.get(node.op):
            slots = [*node.inputs, *node.outputs, *[ABSENT if gradient is None else gradient for gradient in given]]
            key = self.templates.key(node, slots, given, needs)
        if key is None:
            return self._asked(n, node, rule, given, needs)
        made = self.templates.replay(key, node, slots)
        if made is None:
            before = len(self.builder.nodes), len(self.builder.values)
            made = self._asked(n, node, rule, given, needs)
            if self.builder.nodes[n] is node:
                self.templates.record(key, node, slots, before, made)
        return made

    def _asked(
        self, n: int, node: Node, rule: GradientRule, incoming: Sequence[int | None], needs: tuple[bool, ...]
    ) -> list[Cotangent | None]:
        """Gradients of the node's inputs as its rule gives them, checked against the inputs' types."""
        builder, values = self.builder, self.builder.values
        emit = Emit(
            builder,
            f"grad/{node.name}",
            Phase.BACKWARD,
            self.constants,
            self.zeros,
            annotations=provenance(node, node.name),
        )
        inputs = tuple([None if v == ABSENT else emit.val(v) for v in node.inputs])
        outputs = tuple([None if v == ABSENT else emit.val(v) for v in node.outputs])
        given = [None if gradient is None else emit.val(gradient) for gradient in incoming]
        if rule.zeros and None in given:
            given = [
                emit.zeros(type) if dz is None and type is not None and type.dtype in FLOAT_DTYPES else dz
                for dz, type in zip(given, self._all_types(node), strict=True)
            ]
        rows = self.question.row_sparse
        forward = ForwardNode(
            node.op,
            node.attributes,
            inputs,
            outputs,
            needs,
            lambda i: emit.val(builder.ensure_output(n, i)),
            tuple([v in rows for v in node.inputs]) if rows else (),
        )
        first = len(builder.nodes)
        gradients = rule.rule(emit, forward, *given)
        if node.op in self.question.rules:
            self._check_reads(node, incoming, first)
        if len(gradients) != len(inputs):
            raise CannotDifferentiate(
                f"its gradient rule gives {len(gradients)} gradients for {len(inputs)} inputs",
                "correct the rule: one gradient, or None, for each input",
                "gradient_rule_count",
            )
        made: list[Cotangent | None] = []
        for x, dx, needed in zip(inputs, gradients, needs, strict=True):
            if not isinstance(dx, Val):
                made.append(dx)
                continue
            if x is not None and needed and dx.type is not x.type and dx.type != x.type:
                raise TypeError(f"the gradient rule of {node.op} gives {dx.type} for {values[x.id].name} of {x.type}")
            made.append(dx.id)
        return made

    def _check_reads(self, node: Node, incoming: Sequence[int | None], first: int) -> None:
        """Raise CannotDifferentiate when a caller's rule reads what is neither its node's nor made by the rule."""
        known = {*node.inputs, *node.outputs, *incoming}
        for made in self.builder.nodes[first:]:
            for v in made.reads:
                if v not in known and self.builder.values[v].role is not Role.CONSTANT:
                    raise CannotDifferentiate(
                        f"its gradient rule reads {quoted(self.builder.values[v].name)}",
                        "read inputs, outputs, incoming gradients and what the rule makes of them",
                        "foreign_gradient_read",
                    )
            known.update(made.writes)

    def _all_types(self, node: Node) -> tuple[TensorType | None, ...]:
        """Types of all outputs, those nobody wants included."""
        types = tuple(None if v == ABSENT else self.builder.values[v].type for v in node.outputs)
        if ABSENT not in node.outputs:
            return types
        values = [None if v == ABSENT else self.builder.values[v] for v in node.inputs]
        return infer(
            Call(
                node.op,
                node.attributes,
                tuple(v.type if v else None for v in values),
                types,
                (True,) * len(node.outputs),
                tuple(v.data if v else None for v in values),
                self.builder.opset.get("", 21),
            )
        )

    def _settle(self, v: int) -> None:
        """One slot more of `v` was dealt with."""
        try:
            gradient = self.sums.settle(v, 1)
        except CannotDifferentiate as error:
            name = quoted(self.graph.values[v].name)
            self.findings.add(error.code, f"values.{name}", error.found, "parts that go together", error.remedy)
            return
        if gradient is None:
            return
        self.teller.summed(v, gradient)
        if v in self.wanted:
            if gradient == SYMBOLIC_ZERO:
                gradient = self.sums.complete[v] = self.ends.zeros_of(v)
            self.teller.finalised(v, gradient)
            self.finished[v] = gradient if isinstance(gradient, IndexedSlices) else self.ready(v, gradient)

    def _untyped(self, node: Node) -> bool:
        return bool(self.sizes_only) and not self.sizes_only.isdisjoint((*node.inputs, *node.outputs))

    def _refuse(self, n: int, code: str, what: str, remedy: str, expected: str = "") -> None:
        node = self.graph.nodes[n]
        self.findings.add(
            code,
            f"nodes[{n}]",
            f"op {node.op} of {quoted(node.name)}: {what}",
            expected or "a gradient rule for typed values, or `gradient_reads`",
            remedy,
        )


def _has_body_rule(op: str) -> bool:
    return op in BODY_RULES
