"""Reverse pass: visit the active nodes from the targets back, and accumulate cotangents of their inputs.

Each active node is differentiated once, after every reader of its outputs: by the rule of its op, by a declared
gradient, or as an opaque node. The results are contributions to the gradients of its inputs.
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
    is_quantized,
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
from graph.autodiff.missing_gradients import MissingGradient, missing_gradients
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

#: append_gradients(builder, graph, spec) -> (value, gradient) pairs; applied to the bodies of a node
BodyDifferentiator = Callable[[Builder, Graph, GradientSpec], list[tuple[int, int]]]


class ReversePass:
    """State of one differentiation; started by `run`."""

    def __init__(
        self,
        builder: Builder,
        graph: Graph,
        spec: GradientSpec,
        ready: GradientHook,
        differentiate_body: BodyDifferentiator,
        callbacks: Sequence[GradientCallback] = (),
    ):
        self.builder, self.graph, self.spec = builder, graph, spec
        self.ready, self.differentiate_body = ready, differentiate_body
        self.constants: dict[Any, Val] = {}
        self.zeros: set[int] = set()  # values known to be zero
        self.templates = TemplateCache(builder, self.zeros)
        self.wanted = frozenset(spec.wanted)
        producer = producers(graph)
        self.seeds = CotangentSeeds(builder, graph, producer, self.constants, self.zeros)
        self.bounded = bounded_values(graph)
        self.sizes_only = frozenset(v for v, value in enumerate(graph.values) if value.type is None)
        path = find_active_path(graph, spec)
        self.needs, self.path = path.needs, path.nodes
        expected = [0] * len(graph.values)
        for n in self.path:
            for v in gradient_slots(graph.nodes[n]):
                if self.needs[v]:
                    expected[v] += 1
        for target, _ in spec.targets:
            expected[target] += 1
        self.sums = CotangentAccumulator(builder, expected, producer, spec.policy)
        self.finished: dict[int, Cotangent] = {}  # wanted value -> its gradient as `ready` returned it
        self.findings = Findings()
        self.recorder = ProvenanceRecorder(builder, graph, callbacks)

    def run(self) -> SourceGradients:
        """(wanted value, its gradient) pairs. Raises NoGradient and BadGraph with up to ten findings."""
        missing = self._without_rule()
        for target, head in self.spec.targets:
            if self.needs[target]:
                self._add(target, self.seeds.head(target, head), None)
                self._settle(target)
        for n in cancellable(self.path):
            self._differentiate(n, missing)
            if len(self.findings) >= 10:
                break
        if self.spec.history is not None:
            check_versions(self.spec.history, self.builder, len(self.graph.nodes), self.findings)
            check_gradient_versions(self.spec.history, self.graph, self.sums.complete, self.findings)
        if len(self.findings):
            raise NoGradient(self.findings.kept, len(self.findings) - len(self.findings.kept))
        for v in self.seeds.unreached(self.spec, self.finished):
            self.finished[v] = self.ready(v, self.seeds.zeros_of(v))
        self.recorder.mark(self.finished, self.sums.complete, self.spec.wanted)
        return self.seeds.ordered_gradients(self.spec, self.finished)

    def missing(self) -> list[MissingGradient]:
        """Wanted values that have no gradient after `run`, with the op at which each path ends."""
        return missing_gradients(self.graph, self.spec, self.sums.complete)

    def _without_rule(self) -> dict[int, tuple[str, str, str]]:
        """Active nodes without a gradient rule, by id: (code, reason, remedy)."""
        missing = {}
        for n in self.path:
            node = self.graph.nodes[n]
            rule = rule_of(node.op, self.spec.rules, self.differentiate_body)
            refused = (node.op in REFUSED_GRADIENTS and rule is None) or rule is GradientStatus.REFUSED
            if not refused and self._is_covered(node, rule):
                continue
            code = "gradient_refused" if refused else "no_gradient"
            if refused:
                reason = f"not differentiable: {REFUSED_GRADIENTS.get(node.op, 'declared as refused')}"
                remedy = "list its output under `no_gradient`, or the node under `skip`"
            else:
                reason = "values without a type" if isinstance(rule, GradientRule) else "no gradient rule"
                remedy = (
                    "list the values its gradient reads in `gradient_reads`, declare it under `gradient_rules`, "
                    "or list its output under `no_gradient`"
                )
            missing[n] = (code, reason, remedy)
        return missing

    def _is_covered(self, node: Node, rule: AnyGradientRule | None) -> bool:
        if node.op == ZERO_GRADIENT or node.gradient_reads is not None or isinstance(rule, DeclaredGradient):
            return True
        if node.bodies and _has_body_rule(node.op):
            return True
        return isinstance(rule, GradientRule) and not self._has_untyped_operand(node)

    def _differentiate(self, n: int, missing: dict[int, tuple[str, str, str]]) -> None:
        """Add the contributions of one node to the gradients of its inputs."""
        node = self.builder.nodes[n]
        incoming = [None if v == ABSENT else self._incoming(v) for v in node.outputs]
        slots = gradient_slots(node)
        needed = [v for v in slots if v != ABSENT and self.needs[v]]
        nonzero = [gradient for gradient in incoming if gradient is not None and not self._is_zero(gradient)]
        if nonzero and n in missing:
            self._refuse_all(missing)
        elif nonzero:
            for v, gradient in zip(slots, self._gradients(n, node, slots, incoming), strict=False):
                if gradient is not None and v != ABSENT and self.needs[v]:
                    self._contribute(n, node, v, gradient)
        elif node.op == ZERO_GRADIENT or any(gradient is not None for gradient in incoming):
            for v in needed:
                self.sums.add_zero(v)
        missing.pop(n, None)
        self.recorder.added()
        for v in needed:
            self._settle(v)

    def _refuse_all(self, missing: dict[int, tuple[str, str, str]]) -> None:
        """Raise NoGradient for all nodes without a rule: the incoming gradient of one of them is not zero."""
        for n in sorted(missing):
            self._refuse(n, *missing[n])
        raise NoGradient(self.findings.kept, len(self.findings) - len(self.findings.kept))

    def _incoming(self, v: int) -> int | None:
        """The dense gradient of an output; a row-sparse one is scattered by a node."""
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
        """Per slot the gradient from the rule, declaration or opaque node; a refusal becomes a finding."""
        needs = tuple([bool(v != ABSENT and self.needs[v]) for v in slots])
        rule = rule_of(node.op, self.spec.rules, self.differentiate_body)
        bounded = [i for i, v in enumerate(node.inputs) if v in self.bounded]
        if bounded and not is_rowwise(node, bounded):
            self._refuse(
                n,
                "bounded_rows",
                "an input with an upper bound on its rows only",
                "give the loop a constant trip count, or the value a static length",
                "an op that treats every row alike",
            )
            return ()
        try:
            if isinstance(rule, DeclaredGradient):
                return declared_gradients(self.builder, node, rule, slots, incoming, needs, self.seeds.zeros_of)
            if node.bodies and _has_body_rule(node.op):
                return self._through_bodies(n, incoming, slots, needs)
            if isinstance(rule, GradientRule) and not self._has_untyped_operand(node):
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
            self._refuse(n, error.code, error.found, error.remedy, "contributions of one kind and device")
        self.recorder.contribution(v, gradient)

    def _add(self, v: int, gradient: Cotangent, device: str | None) -> None:
        if not isinstance(gradient, IndexedSlices) and self._is_zero(gradient):
            self.sums.add_zero(v, gradient)
        else:
            self.sums.add(v, gradient, device)

    def _through_bodies(
        self, n: int, incoming: Sequence[int | None], slots: Sequence[int], needs: tuple[bool, ...]
    ) -> Sequence[Cotangent | None]:
        """Gradients of the slots of a node with bodies; each body is differentiated as a graph."""
        needed = frozenset(v for v, wanted in zip(slots, needs, strict=True) if wanted)
        given = [None if gradient == SYMBOLIC_ZERO else gradient for gradient in incoming]
        rules = self.spec.rules

        def with_rules(builder: Builder, graph: Graph, spec: GradientSpec) -> list[tuple[int, int]]:
            return self.differentiate_body(builder, graph, replace(spec, rules=rules) if rules else spec)

        return body_gradients(
            BodyGradientContext(self.builder, n, given, needed, self.constants, with_rules, self.bounded), slots
        )

    def _by_rule(
        self, n: int, node: Node, rule: GradientRule, incoming: Sequence[int | None], needs: tuple[bool, ...]
    ) -> Sequence[Cotangent | None]:
        """Gradients of the node's inputs, from a cached template of its signature or else from its rule."""
        given = [None if gradient is None or gradient == SYMBOLIC_ZERO else gradient for gradient in incoming]
        key = None
        plain = not self.spec.row_sparse and self.bounded.isdisjoint(node.inputs)
        if plain and rule is GRADIENT_RULES.get(node.op):
            slots = [*node.inputs, *node.outputs, *[ABSENT if gradient is None else gradient for gradient in given]]
            key = self.templates.key(node, slots, given, needs)
        if key is None:
            return self._apply_rule(n, node, rule, given, needs)
        gradients = self.templates.replay(key, node, slots)
        if gradients is None:
            before = len(self.builder.nodes), len(self.builder.values)
            gradients = self._apply_rule(n, node, rule, given, needs)
            if self.builder.nodes[n] is node:
                self.templates.record(key, node, slots, before, gradients)
        return gradients

    def _apply_rule(
        self, n: int, node: Node, rule: GradientRule, incoming: Sequence[int | None], needs: tuple[bool, ...]
    ) -> list[Cotangent | None]:
        """Gradients of the node's inputs from its rule, checked against the types of the inputs."""
        builder, values = self.builder, self.builder.values
        emit = Emit(
            builder,
            f"grad/{node.name}",
            Phase.BACKWARD,
            self.constants,
            self.zeros,
            annotations=provenance(node, node.name),
        )
        forward = self._forward_node(emit, n, node, needs)
        given = [None if gradient is None else emit.val(gradient) for gradient in incoming]
        if rule.zeros and None in given:
            given = [
                emit.zeros(type) if dz is None and type is not None and type.dtype in FLOAT_DTYPES else dz
                for dz, type in zip(given, self._all_types(node), strict=True)
            ]
        first = len(builder.nodes)
        gradients = rule.rule(emit, forward, *given)
        if node.op in self.spec.rules:
            self._check_reads(node, incoming, first)
        if len(gradients) != len(node.inputs):
            raise CannotDifferentiate(
                f"its gradient rule returns {len(gradients)} gradients for {len(node.inputs)} inputs",
                "return one gradient, or None, for each input",
                "gradient_rule_count",
            )
        cotangents: list[Cotangent | None] = []
        for x, dx, needed in zip(forward.inputs, gradients, needs, strict=True):
            if not isinstance(dx, Val):
                cotangents.append(dx)
                continue
            if x is not None and needed and dx.type is not x.type and not _is_gradient_type(dx.type, x.type):
                raise CannotDifferentiate(
                    f"a gradient of {dx.type} for {quoted(values[x.id].name)} of {x.type}",
                    "make the shapes of the inputs agree, or correct the gradient rule",
                )
            cotangents.append(dx.id)
        return cotangents

    def _forward_node(self, emit: Emit, n: int, node: Node, needs: tuple[bool, ...]) -> ForwardNode:
        """The node as its gradient rule sees it."""
        rows = self.spec.row_sparse
        return ForwardNode(
            node.op,
            node.attributes,
            tuple([None if v == ABSENT else emit.val(v) for v in node.inputs]),
            tuple([None if v == ABSENT else emit.val(v) for v in node.outputs]),
            needs,
            lambda i: emit.val(self.builder.ensure_output(n, i)),
            tuple([v in rows for v in node.inputs]) if rows else (),
            () if self.bounded.isdisjoint(node.inputs) else tuple([v in self.bounded for v in node.inputs]),
        )

    def _check_reads(self, node: Node, incoming: Sequence[int | None], first: int) -> None:
        """Raise CannotDifferentiate when a user's rule reads a value of neither its node nor itself."""
        known = {*node.inputs, *node.outputs, *incoming}
        for emitted in self.builder.nodes[first:]:
            for v in emitted.reads:
                if v not in known and self.builder.values[v].role is not Role.CONSTANT:
                    raise CannotDifferentiate(
                        f"its gradient rule reads {quoted(self.builder.values[v].name)}",
                        "read only inputs, outputs, incoming gradients and values that the rule computes",
                        "foreign_gradient_read",
                    )
            known.update(emitted.writes)

    def _all_types(self, node: Node) -> tuple[TensorType | None, ...]:
        """Types of all outputs, absent ones included."""
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
        """Count one more slot of `v` as done; finish its gradient after the last one."""
        try:
            gradient = self.sums.settle(v, 1)
        except CannotDifferentiate as error:
            name = quoted(self.graph.values[v].name)
            self.findings.add(
                error.code, f"values.{name}", error.found, "contributions of one kind and device", error.remedy
            )
            return
        if gradient is None:
            return
        self.recorder.summed(v, gradient)
        if v in self.wanted:
            if gradient == SYMBOLIC_ZERO:
                gradient = self.sums.complete[v] = self.seeds.zeros_of(v)
            self.recorder.finalised(v, gradient)
            self.finished[v] = gradient if isinstance(gradient, IndexedSlices) else self.ready(v, gradient)

    def _has_untyped_operand(self, node: Node) -> bool:
        return bool(self.sizes_only) and not self.sizes_only.isdisjoint((*node.inputs, *node.outputs))

    def _refuse(self, n: int, code: str, reason: str, remedy: str, expected: str = "") -> None:
        node = self.graph.nodes[n]
        self.findings.add(
            code,
            f"nodes[{n}]",
            f"op {node.op} of {quoted(node.name)}: {reason}",
            expected or "a gradient rule for typed values, or `gradient_reads`",
            remedy,
        )


def _is_gradient_type(dx: TensorType, x: TensorType) -> bool:
    return dx == x or (is_quantized(x) and dx.shape == x.shape)


def _has_body_rule(op: str) -> bool:
    return op in BODY_RULES
