"""Gradients in the form of Caffe2's `AddGradientOperators`: a list of ops over mutable names, and a map of gradients.

    Direct: in -> hidden1, in -> hidden2 ...      DirectGradient: hidden2_grad -> in_grad
                                                  DirectGradient: hidden1_grad -> _in_grad_autosplit_0
                                                  Sum: in_grad, _in_grad_autosplit_0 -> in_grad

The gradients are computed by `graph.autodiff`, for every value of the graph; this module assigns Caffe2's names and
writes sums as Caffe2 does: terms of one gradient get distinct names, the first term and the sum share the plain name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.autodiff.active_path import ZERO_GRADIENT
from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.events import ROW_SPARSE, GradientEvent
from graph.autodiff.gradients.spec import carries_gradient
from graph.autodiff.resolve_names import GradientOptions
from graph.errors import BadGraph, Findings
from graph.formats.caffe2.compat.rules import DOMAIN, caffe2_rules, check_signatures
from graph.ir import ABSENT, Body, Graph, Node
from graph.ssa.naming import base_name

SparseNames = dict[str, str]  # {"indices": name, "values": name}


@dataclass(frozen=True, slots=True)
class GradientOp:
    """One generated op, as in a Caffe2 net."""

    type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    device: str | None = None
    branches: dict[str, list[GradientOp]] = field(default_factory=dict)  # ops of nested nets, under outer names


@dataclass(frozen=True, slots=True)
class Caffe2Gradients:
    """Result of `AddGradientOperators`."""

    ops: list[GradientOp]
    by_name: dict[str, str | SparseNames]  # for several versions of a name, the one differentiated last
    graph: Graph  # the same gradients as a graph


def add_gradient_operators(
    graph: Graph, targets: list[str] | dict[str, str | None], gradient_rules: Mapping[str, Any] = {}, skip: int = 0
) -> Caffe2Gradients:
    """Gradients of all `targets` together with respect to every value; the ops of `graph` are named `caffe2::Type`.

    `targets` is a list of names, or a map to names of initial gradients, null for ones. The first `skip` ops are not
    differentiated. A name means its last version. Raises BadGraph.
    """
    if not isinstance(targets, list | dict):
        raise BadGraph.one(
            "bad_request",
            "targets",
            repr(targets)[:80],
            "a list of names, or a map to names of gradients",
            "send a list or a map",
        )
    findings = Findings()
    check_signatures(graph, findings)
    declared = caffe2_rules(dict(gradient_rules), findings)
    findings.settle()
    last = last_versions(graph)
    initial = {last.get(name, name): head for name, head in _initial_gradients(targets).items()}
    sources = [value.name for value in graph.values if carries_gradient(value)] if initial else []
    events: list[GradientEvent] = []
    result = differentiate(
        graph,
        initial,
        sources,
        options=GradientOptions(gradient_rules=declared, skip={"first": skip}, row_sparse="all", versions="strict"),
        callbacks=[events.append],
    )
    return _Caffe2Program(graph, result, initial, events).gradients()


def _initial_gradients(targets: list[str] | dict[str, str | None]) -> dict[str, str | None]:
    return targets if isinstance(targets, dict) else dict.fromkeys(targets)


def last_versions(graph: Graph) -> dict[str, str]:
    """Name -> its last version."""
    return {str(v.annotations.get("version_of", v.name)): v.name for v in graph.values}


class _Caffe2Program:
    """Caffe2 ops and names for the nodes and values that differentiation added to `graph`, giving `result`."""

    def __init__(self, graph: Graph, result: Graph, targets: Mapping[str, Any], events: Sequence[GradientEvent]):
        self.graph, self.result, self.targets = graph, result, targets
        self.blob = [str(value.annotations.get("version_of", value.name)) for value in graph.values]
        ids = {value.name: v for v, value in enumerate(result.values)}
        self.ids = ids
        self.value_of = {ids[g]: ids[v] for event in events for g, v in event.gradients.items()}  # gradient -> value
        self.name: dict[int, str] = {v: self.blob[v] for v in range(len(graph.values))}
        self.ops: list[GradientOp] = []
        self.writer: dict[int, tuple[GradientOp, int]] = {}  # gradient -> the op that writes it, output position
        self.rows: dict[int, tuple[int, int]] = {  # value -> (indices, values)
            ids[v]: (ids[pair["indices"]], ids[pair["values"]])
            for v, pair in result.annotations.get(ROW_SPARSE, {}).items()
        }
        self.gradient = dict(result.gradients)
        for v, gradient in reversed(result.gradients):  # the last addition of a chain
            self.value_of.setdefault(gradient, v)
        self.partial: dict[int, list[int]] = {}  # result of an addition within a chain -> its terms

    def gradients(self) -> Caffe2Gradients:
        for target, head in self.targets.items():
            v = self.ids[target]
            if head is None:
                self._seed(v)
        for node in self.result.nodes[len(self.graph.nodes) :]:
            self._translate(node)
        return Caffe2Gradients(self.ops, self._by_name(), self.result)

    def _seed(self, v: int) -> None:
        name = f"{self.blob[v]}_autogen_grad"
        op = GradientOp("ConstantFill", [self.blob[v]], [name], {"value": 1.0})
        self.ops.append(op)
        head = self.ids.get(f"grad/{self.graph.values[v].name}/head")
        if head is None:  # a scalar constant shared by several initial gradients
            head = next(g for g in self._terms_of(v) if self.result.values[g].data is not None)
        self.name[head], self.writer[head], self.value_of[head] = name, (op, 0), v

    def _terms_of(self, v: int) -> list[int]:
        """The gradient of `v`, and the inputs of the node that writes it."""
        gradient = self.gradient[v]
        node = next((node for node in self.result.nodes if gradient in node.writes), None)
        return [gradient, *(node.inputs if node is not None else ())]

    def _translate(self, node: Node) -> None:
        """Add the Caffe2 op of one backward node."""
        if node.op in ("Add", "Sum"):
            self._sum(node)
        elif node.op == "Concat":
            self._concat(node)
        elif node.op == "Expand":
            self._zeros(node)
        elif node.op == "remat::GatherGrad":
            v = self._densified(node)
            self._add(node, "SparseToDense", [node.inputs[1], node.inputs[0], v], [self._plain_name(v)])
        else:
            self._add(node, node.op.removeprefix(DOMAIN), node.inputs, [self._written(g) for g in node.writes])

    def _add(
        self, node: Node, type: str, reads: Sequence[int], writes: list[str], attributes: Mapping[str, Any] = {}
    ) -> None:
        captured = [outer for body in node.bodies.values() for _, outer in body.captures]
        inputs = [self.name[v] for v in reads if v != ABSENT]
        inputs += dict.fromkeys(name for v in captured if (name := self.name[v]) not in inputs)
        branches = {key: _nested_ops(body, self.name, writes) for key, body in node.bodies.items()}
        op = GradientOp(type, inputs, writes, dict(attributes), node.annotations.get("device"), branches)
        self.ops.append(op)
        for position, (v, name) in enumerate(zip(node.writes, writes, strict=False)):
            self.name[v], self.writer[v] = name, (op, position)

    def _written(self, gradient: int) -> str:
        """Name of a gradient written by an op."""
        own = self.result.values[gradient].name
        name = self._plain_name(self.value_of[gradient]) if gradient in self.value_of else own
        suffix = own.rpartition("/")[2]
        return f"{name}_{suffix}" if suffix in ("indices", "values") else name

    def _plain_name(self, v: int) -> str:
        """Name of the gradient of `v`, before several terms get names of their own."""
        return f"{self.blob[v]}_grad"

    def _zeros(self, node: Node) -> None:
        """Add zeros required by a ZeroGradient; ones are initial gradients, which are added first."""
        (gradient,) = node.writes
        if gradient in self.writer:
            return
        owner = next(v for v, value in enumerate(self.graph.values) if value.name == node.annotations["gradient_of"])
        op = GradientOp("ConstantFill", [self.blob[owner]], [self._plain_name(owner)], {"value": 0.0})
        self.ops.append(op)
        self.name[gradient], self.writer[gradient] = op.outputs[0], (op, 0)

    def _densified(self, node: Node) -> int:
        return next(v for v, pair in self.rows.items() if pair == (node.inputs[1], node.inputs[0]))

    def _sum(self, node: Node) -> None:
        """Add the Sum of a chain of additions, at the position of the last addition.

        The first term written by an op shares its name with the sum and is read first; the other terms are renamed.
        """
        (total,) = node.outputs
        terms = [term for g in node.inputs for term in self.partial.get(g, [g])]
        if total not in self.value_of:
            self.partial[total] = terms
            return
        v = self.value_of[total]
        own = [g for g in terms if self._is_term_of(v, g)]  # gradients that are passed through keep their names
        name = self.name[own[0]] if own else self._plain_name(v)
        for k, gradient in enumerate(own[1:]):
            self._rename(gradient, k)
        reads = [g for g in terms if self.name[g] == name] + [g for g in terms if self.name[g] != name]
        self._add(node, "Sum", reads, [name])

    def _rename(self, gradient: int, k: int) -> None:
        op, position = self.writer[gradient]
        old = op.outputs[position]
        self.name[gradient] = op.outputs[position] = f"_{old}_autosplit_{k}"
        _rename_nested(op, old, op.outputs[position])

    def _concat(self, node: Node) -> None:
        """Add the Concat of the indices or values of sparse rows; every term written by an op is renamed."""
        kind = "indices" if any(node.outputs[0] == indices for indices, _ in self.rows.values()) else "values"
        v = next(v for v, pair in self.rows.items() if node.outputs[0] in pair)
        for k, gradient in enumerate(g for g in node.inputs if self._is_term_of(v, g)):
            self._rename(gradient, k)
        name = f"{self._plain_name(v)}_{kind}_concat"
        self._add(node, "Concat", node.inputs, [name, f"{name}_split"], {"axis": 0})

    def _is_term_of(self, v: int, gradient: int) -> bool:
        return gradient in self.writer and self.value_of.get(gradient) == v

    def _by_name(self) -> dict[str, str | SparseNames]:
        """Per name the gradient found last while visiting ops in reverse order.

        A reader without gradient keeps the gradient found before, unless it also writes the name.
        """
        found: dict[str, int | None] = {self.blob[self.ids[target]]: self.ids[target] for target in self.targets}
        differentiated = {*self.gradient, *self.rows}
        for node in reversed(self.graph.nodes):
            if differentiated.isdisjoint(node.writes) and node.op != ZERO_GRADIENT:
                continue
            written = {self.blob[v] for v in node.writes}
            for v in node.reads:
                if v in differentiated or self.blob[v] not in found or self.blob[v] in written:
                    found[self.blob[v]] = v if v in differentiated else None
        return {name: self._named_gradient(v) for name, v in found.items() if v is not None and v in differentiated}

    def _named_gradient(self, v: int) -> str | SparseNames:
        if v in self.rows:
            indices, values = self.rows[v]
            return {"indices": self.name[indices], "values": self.name[values]}
        return self.name[self.gradient[v]]


def _nested_ops(body: Body, outside: Mapping[int, str], results: Sequence[str]) -> list[GradientOp]:
    """Ops of a nested net that writes `results`; `outside` are the names of the values it captures."""
    graph = body.graph
    names = {inner: outside[outer] for inner, outer in body.captures}
    copies: list[GradientOp] = []
    for v, result in zip(graph.outputs, results, strict=True):
        if v in names:  # passed through, or returned twice
            copies.append(GradientOp("Copy", [names[v]], [result]))
        else:
            names[v] = result
    for v, value in enumerate(graph.values):
        own = base_name(value)
        names.setdefault(v, f"{own.removeprefix('grad/')}_grad" if own.startswith("grad/") else own)
    ops = []
    for node in graph.nodes:
        writes = [names[v] for v in node.writes]
        captured = [outer for inner in node.bodies.values() for _, outer in inner.captures]
        reads = [names[v] for v in node.inputs if v != ABSENT]
        reads += dict.fromkeys(name for v in captured if (name := names[v]) not in reads)
        branches = {key: _nested_ops(inner, names, writes) for key, inner in node.bodies.items()}
        type = "Sum" if node.op == "Add" else node.op.removeprefix(DOMAIN)
        ops.append(GradientOp(type, reads, writes, {}, node.annotations.get("device"), branches))
    return ops + copies


def _rename_nested(op: GradientOp, old: str, new: str) -> None:
    """Rename a result in every op of the nested nets that writes it, or reads it afterwards."""
    for branch in op.branches.values():
        is_written = False
        for inner in branch:
            if is_written:
                inner.inputs[:] = [new if name == old else name for name in inner.inputs]
            if old in inner.outputs:
                is_written = True
                inner.outputs[:] = [new if name == old else name for name in inner.outputs]
                _rename_nested(inner, old, new)


__all__ = ["Caffe2Gradients", "GradientOp", "add_gradient_operators"]
