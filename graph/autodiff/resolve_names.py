"""Resolution of the names in a gradient request to ids; faults are collected as findings.

of: ["loss"], with_respect_to: ["w"], head_gradients: {"loss": 0.5}
    ──▶  GradientSpec(targets=((7, ConstantHead(0.5)),), ...)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph.autodiff.gradients.accumulation import AccumulationPolicy
from graph.autodiff.gradients.declared import parse_rules
from graph.autodiff.gradients.spec import ConstantHead, GradientSpec, HeadGradient, carries_gradient
from graph.autodiff.gradients.version_rules import version_history
from graph.errors import Findings, quoted
from graph.ir import EMPTY, Graph, Node, Role, Value
from graph.ops.registry.onnx_fallback import numpy_dtype
from graph.transforms.lint import orphan_barriers

UNREACHABLE_POLICIES = ("null", "error", "zeros")
#: Field of `GradientOptions` -> its choices, in the order in which they are checked.
OPTION_CHOICES = {
    "mixed": ("error", "densify"),
    "devices": ("error", "copy"),
    "shared": ("one", "copies"),
    "versions": ("keep", "strict"),
}


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """Options of a differentiation, as fields of a request; explained in `docs/concepts/gradients.md`."""

    #: op -> declaration, or a rule function as in `graph.autodiff.gradients.registry`
    gradient_rules: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    skip: Any = ()  # nodes left out: names, {"first": n}, {"range": [a, b]}, or in the library a predicate
    row_sparse: Any = ()  # values that may have a row-sparse gradient, or "all"
    mixed: str = "error"  # row-sparse and dense contributions to one gradient: "error" or "densify"
    devices: str = "error"  # contributions computed on different devices: "error" or "copy"
    shared: str = "one"  # values that share one gradient: "one" output or "copies"
    versions: str = "keep"  # reads of a value whose name was overwritten: "keep" the old version, or "strict" (error)


def resolve_gradient_spec(
    graph: Graph,
    targets: Sequence[str] | Mapping[str, Any],
    wanted: Sequence[str] | None = None,
    head_gradients: Mapping[str, Any] | Sequence[Any] = EMPTY,
    no_gradient: Collection[str] = (),
    unreachable: str = "null",
    options: GradientOptions = GradientOptions(),
) -> GradientSpec:
    """The request resolved to ids. Raises BadGraph for unknown names, non-floating types and invalid options."""
    findings = Findings()
    resolver = _SpecResolver(graph, findings)
    heads: Any = head_gradients
    if isinstance(targets, Mapping):
        heads = {**targets, **(heads if isinstance(heads, Mapping) else {})}
        targets = list(targets)
    of = resolver.named(targets, "of")
    if wanted is None:
        by = [v for v, value in enumerate(graph.values) if value.role is Role.PARAMETER and _is_trained(value)]
    else:
        by = resolver.named(wanted, "with_respect_to")
    stops = {v for v, value in enumerate(graph.values) if value.stop_gradient}
    stops.update(resolver.named(no_gradient, "no_gradient"))
    resolver.one_of("unreachable", unreachable, UNREACHABLE_POLICIES)
    for name, choices in OPTION_CHOICES.items():
        resolver.one_of(name, getattr(options, name), choices)
    resolver.check_floating(of, "of")
    resolver.check_floating(by, "with_respect_to")
    rows = options.row_sparse
    spec = GradientSpec(
        tuple(zip(of, resolver.heads(of, heads), strict=True)),
        tuple(by),
        frozenset(stops),
        unreachable,
        {
            **parse_rules(graph.gradient_rules, "gradient_rules", findings),
            **parse_rules(options.gradient_rules, "differentiate.gradient_rules", findings),
        },
        resolver.skipped(options.skip),
        frozenset(range(len(graph.values)) if rows == "all" else resolver.named(rows, "row_sparse")),
        AccumulationPolicy(options.mixed, options.devices),
        options.shared == "copies",
        version_history(graph) if options.versions == "strict" else None,
    )
    orphan_barriers(graph, of, findings)
    findings.settle()
    return spec


class _SpecResolver:
    """Resolves names and options against one graph; collects findings."""

    def __init__(self, graph: Graph, findings: Findings):
        self.graph, self.findings = graph, findings
        self.ids = {value.name: v for v, value in enumerate(graph.values)}

    def bad(self, code: str, field: str, given: Any, expected: str, remedy: str) -> None:
        self.findings.add(code, f"differentiate.{field}", repr(given)[:80], expected, remedy)

    def one_of(self, field: str, word: Any, words: Sequence[str]) -> None:
        if word not in words or not isinstance(word, str):
            self.bad("bad_request", field, word, "one of " + ", ".join(words), "choose one of them")

    def check_floating(self, ids: Sequence[int], field: str) -> None:
        for v in ids:
            value = self.graph.values[v]
            if not carries_gradient(value):
                self.findings.add(
                    "not_floating",
                    f"differentiate.{field}",
                    f"{value.name} of {value.type}",
                    "a floating type",
                    "name a floating value",
                )

    def named(self, names: Any, field: str) -> list[int]:
        """Ids of a list of names; adds a finding for anything else."""
        if not isinstance(names, Collection) or isinstance(names, str | bytes | Mapping):
            self.bad("bad_request", field, names, "a list of names", "send a list")
            return []
        ids = []
        for i, name in enumerate(names):
            if not isinstance(name, str):
                self.bad("bad_request", f"{field}[{i}]", name, "a name", "name a value of the graph")
            elif (v := self.known(name, f"{field}[{i}]")) is not None:
                ids.append(v)
        return ids

    def known(self, name: str, path: str) -> int | None:
        if name not in self.ids:
            self.bad("undefined_value", path, name, "the name of a value", "name a value of the graph")
        return self.ids.get(name)

    def heads(self, of: Sequence[int], given: Any) -> list[HeadGradient]:
        """The head gradient of each target, from a mapping by name or a list with one entry per target."""
        if isinstance(given, list | tuple):
            if len(given) != len(of):
                self.bad(
                    "length_mismatch",
                    "head_gradients",
                    f"{len(given)} head gradients",
                    f"{len(of)}, one per target",
                    "send one entry per target; null stands for ones",
                )
                return [None] * len(of)
            return [
                self._head(v, head, f"head_gradients[{i}]") for i, (v, head) in enumerate(zip(of, given, strict=True))
            ]
        if not isinstance(given, Mapping):
            self.bad(
                "bad_request", "head_gradients", given, "an object from target to value, or a list", "send an object"
            )
            return [None] * len(of)
        by_target: dict[int, HeadGradient] = {}
        for name, head in given.items():
            path = f"head_gradients.{name!s:.80}"
            v = self.known(str(name), path)
            if v is not None and v not in of:
                self.bad(
                    "bad_request",
                    path,
                    head,
                    "the name of a target",
                    "add the value to the targets, or remove this entry",
                )
            elif v is not None:
                by_target[v] = self._head(v, head, path)
        return [by_target.get(v) for v in of]

    def _head(self, target: int, given: Any, path: str) -> HeadGradient:
        """Head gradient from a value's name, a number, or {"value": number or content, "shape": [...]}; None: ones."""
        if given is None:
            return None
        value = self.graph.values[target]
        if isinstance(given, str):
            v = self.known(given, path)
            if v is not None:
                head = self.graph.values[v]
                if (head.type, head.nbytes) != (value.type, value.nbytes):
                    self._mismatch(path, f"{quoted(given)} of {head.type}", value)
            return v
        fields = given if isinstance(given, Mapping) else {"value": given}
        content, shape = fields.get("value", 1), fields.get("shape")
        if unknown := set(fields) - {"value", "shape"}:
            self.bad("unknown_field", path, sorted(map(str, unknown)), "value and shape", "remove the other fields")
        return self._fill(content, shape, value, path)

    def _fill(self, content: Any, shape: Any, value: Value, path: str) -> ConstantHead | None:
        if value.type is None:
            self.bad("bad_request", path, content, "a typed target", "name a value, or declare the type of the target")
            return None
        try:
            array = np.asarray(content, np.float64)
            lengths = None if shape is None else tuple(operator.index(n) for n in shape)
            array = array if lengths is None or not array.ndim else array.reshape(lengths)
        except (TypeError, ValueError, OverflowError):
            self.bad(
                "bad_request",
                path,
                content,
                "a number or nested lists of numbers, and a list of lengths as shape",
                "correct the value or the shape",
            )
            return None
        with np.errstate(over="ignore"):
            narrow = array.astype(numpy_dtype(value.type.dtype))
        if not np.isfinite(narrow.astype(np.float64)).all():
            expected = f"numbers that are finite in {value.type.dtype}"
            self.bad("bad_request", path, content, expected, "replace infinities and NaN, or lower the scale")
            return None
        head_shape = array.shape if lengths is None else lengths
        long = [tuple(n for n in each if n != 1) for each in (head_shape, value.type.shape)]
        if (array.ndim or shape is not None) and long[0] != long[1]:
            self._mismatch(path, f"a head gradient of shape {list(head_shape)}", value)
            return None
        return ConstantHead(narrow.reshape(value.type.shape) if narrow.ndim else narrow)

    def _mismatch(self, path: str, found: str, value: Value) -> None:
        self.findings.add(
            "shape_mismatch",
            f"differentiate.{path}",
            found,
            f"{value.type}, the type of the target {quoted(value.name)}",
            "give a head gradient of the target's type",
        )

    def skipped(self, given: Any) -> frozenset[int]:
        """Nodes to skip, from names, a range or a predicate."""
        nodes = self.graph.nodes
        if callable(given):
            is_skipped: Callable[[Node], bool] = given
            return frozenset(n for n, node in enumerate(nodes) if is_skipped(node))
        if isinstance(given, Mapping):
            return self._span(given)
        if not isinstance(given, Collection) or isinstance(given, str | bytes):
            self.bad(
                "bad_request",
                "skip",
                given,
                'a list of nodes, {"first": n} or {"range": [begin, end]}',
                "send one of these",
            )
            return frozenset()
        ids = {node.name: n for n, node in enumerate(nodes)}
        for i, name in enumerate(given):
            if not isinstance(name, str) or name not in ids:
                self.bad("unknown_node", f"skip[{i}]", name, "the name of a node", "name a node of the graph")
        return frozenset(ids[name] for name in given if isinstance(name, str) and name in ids)

    def _span(self, given: Mapping[str, Any]) -> frozenset[int]:
        span = (
            [0, given["first"]] if set(given) == {"first"} else given.get("range") if set(given) == {"range"} else None
        )
        if (
            not isinstance(span, list | tuple)
            or len(span) != 2
            or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in span)
        ):
            self.bad(
                "bad_request", "skip", dict(given), '{"first": n} or {"range": [begin, end]}', "count nodes from 0"
            )
            return frozenset()
        return frozenset(range(min(span[0], len(self.graph.nodes)), min(span[1], len(self.graph.nodes))))


def _is_trained(value: Value) -> bool:
    return carries_gradient(value) and not value.stop_gradient
