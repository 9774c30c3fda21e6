"""Gradients as Caffe2's `AddGradientOperators` gives them: a list of ops over mutable names, and a map.

    Direct: in -> hidden1, in -> hidden2 ...      DirectGradient: hidden2_grad -> in_grad
                                                  DirectGradient: hidden1_grad -> _in_grad_autosplit_0
                                                  Sum: in_grad, _in_grad_autosplit_0 -> in_grad

The gradients are those of the engine, asked for every value of the graph; only names and the way sums are
written are Caffe2's: parts of one gradient are renamed apart, the first keeps the name, and so does the sum.
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
from graph.ir import ABSENT, Graph, Node

SparseNames = dict[str, str]  # {"indices": name, "values": name}


@dataclass(frozen=True, slots=True)
class GradientOp:
    """One generated op, in Caffe2's words."""

    type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Caffe2Gradients:
    """What `AddGradientOperators` answers."""

    ops: list[GradientOp]
    by_name: dict[str, str | SparseNames]  # of several versions of a name, the one differentiated last
    graph: Graph  # the same as a graph


def add_gradient_operators(
    graph: Graph, targets: list[str] | dict[str, str | None], gradient_rules: Mapping[str, Any] = {}, skip: int = 0
) -> Caffe2Gradients:
    """Gradients of `targets`, all together, by every value there is; `graph` has ops named `caffe2::Type`.

    A list of targets, or a map with null, means ones. The first `skip` ops are left out. Names stand for their
    last version. Raises BadGraph.
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
    given = {last.get(name, name): head for name, head in _with_heads(targets).items()}
    wanted = [value.name for value in graph.values if carries_gradient(value)] if given else []
    events: list[GradientEvent] = []
    made = differentiate(
        graph,
        given,
        wanted,
        options=GradientOptions(gradient_rules=declared, skip={"first": skip}, row_sparse="all", versions="strict"),
        callbacks=[events.append],
    )
    return _Caffe2Names(graph, made, given, events).gradients()


def _with_heads(targets: list[str] | dict[str, str | None]) -> dict[str, str | None]:
    return targets if isinstance(targets, dict) else dict.fromkeys(targets)


def last_versions(graph: Graph) -> dict[str, str]:
    """The value each name stands for at the end."""
    return {str(v.annotations.get("version_of", v.name)): v.name for v in graph.values}


class _Caffe2Names:
    """Names of the engine's values as Caffe2 gives them."""

    def __init__(self, graph: Graph, made: Graph, targets: Mapping[str, Any], events: Sequence[GradientEvent]):
        self.graph, self.made, self.targets = graph, made, targets
        self.blob = [str(value.annotations.get("version_of", value.name)) for value in graph.values]
        ids = {value.name: v for v, value in enumerate(made.values)}
        self.ids = ids
        self.of = {ids[g]: ids[v] for event in events for g, v in event.gradients.items()}  # gradient -> value
        self.name: dict[int, str] = {v: self.blob[v] for v in range(len(graph.values))}
        self.ops: list[GradientOp] = []
        self.writer: dict[int, tuple[GradientOp, int]] = {}  # gradient -> the op and place that writes it
        self.rows: dict[int, tuple[int, int]] = {  # value -> (indices, values)
            ids[v]: (ids[pair["indices"]], ids[pair["values"]])
            for v, pair in made.annotations.get(ROW_SPARSE, {}).items()
        }
        self.gradient = dict(made.gradients)
        for v, gradient in reversed(made.gradients):  # the last addition of a chain
            self.of.setdefault(gradient, v)
        self.partial: dict[int, list[int]] = {}  # value of an addition in a chain -> what it adds up

    def gradients(self) -> Caffe2Gradients:
        for target, head in self.targets.items():
            v = self.ids[target]
            if head is None:
                self._seed(v)
        for node in self.made.nodes[len(self.graph.nodes) :]:
            self._translate(node)
        return Caffe2Gradients(self.ops, self._by_name(), self.made)

    def _seed(self, v: int) -> None:
        name = f"{self.blob[v]}_autogen_grad"
        op = GradientOp("ConstantFill", [self.blob[v]], [name], {"value": 1.0})
        self.ops.append(op)
        head = self.ids.get(f"grad/{self.graph.values[v].name}/head")
        if head is None:  # a scalar shared with others of its content
            head = next(g for g in self._parts_of(v) if self.made.values[g].data is not None)
        self.name[head], self.writer[head], self.of[head] = name, (op, 0), v

    def _parts_of(self, v: int) -> list[int]:
        """The gradient of `v`, and what it is the sum of."""
        gradient = self.gradient[v]
        node = next((node for node in self.made.nodes if gradient in node.writes), None)
        return [gradient, *(node.inputs if node is not None else ())]

    def _translate(self, node: Node) -> None:
        """The op of one backward node."""
        if node.op in ("Add", "Sum"):
            self._sum(node)
        elif node.op == "Concat":
            self._joined(node)
        elif node.op == "Expand":
            self._filled(node)
        elif node.op == "remat::GatherGrad":
            v = self._densified(node)
            self._add(node, "SparseToDense", [node.inputs[1], node.inputs[0], v], [f"{self.blob[v]}_grad"])
        else:
            self._add(node, node.op.removeprefix(DOMAIN), node.inputs, [self._written(g) for g in node.writes])

    def _add(
        self, node: Node, type: str, reads: Sequence[int], writes: list[str], attributes: Mapping[str, Any] = {}
    ) -> None:
        device = node.annotations.get("device")
        op = GradientOp(type, [self.name[v] for v in reads if v != ABSENT], writes, dict(attributes), device)
        self.ops.append(op)
        for place, (v, name) in enumerate(zip(node.writes, writes, strict=False)):
            self.name[v], self.writer[v] = name, (op, place)

    def _written(self, gradient: int) -> str:
        name = f"{self.blob[self.of[gradient]]}_grad" if gradient in self.of else f"{self.made.values[gradient].name}"
        suffix = self.made.values[gradient].name.rpartition("/")[2]
        return f"{name}_{suffix}" if suffix in ("indices", "values") else name

    def _filled(self, node: Node) -> None:
        """Zeros that a ZeroGradient asked for; ones are the seeds, which stand in front."""
        (gradient,) = node.writes
        if gradient in self.writer:
            return
        owner = next(v for v, value in enumerate(self.graph.values) if value.name == node.annotations["gradient_of"])
        op = GradientOp("ConstantFill", [self.blob[owner]], [f"{self.blob[owner]}_grad"], {"value": 0.0})
        self.ops.append(op)
        self.name[gradient], self.writer[gradient] = op.outputs[0], (op, 0)

    def _densified(self, node: Node) -> int:
        return next(v for v, pair in self.rows.items() if pair == (node.inputs[1], node.inputs[0]))

    def _sum(self, node: Node) -> None:
        """Parts renamed apart: the first that an op writes keeps its name and gives it to the sum, read first.

        A chain of additions is one Sum, where its last addition stands.
        """
        (total,) = node.outputs
        parts = [part for g in node.inputs for part in self.partial.get(g, [g])]
        if total not in self.of:
            self.partial[total] = parts
            return
        own = [g for g in parts if self._is_part_of(self.of[total], g)]  # the others are passed on, and keep theirs
        name = self.name[own[0]] if own else f"{self.blob[self.of[total]]}_grad"
        for k, gradient in enumerate(own[1:]):
            self._rename(gradient, k)
        reads = [g for g in parts if self.name[g] == name] + [g for g in parts if self.name[g] != name]
        self._add(node, "Sum", reads, [name])

    def _rename(self, gradient: int, k: int) -> None:
        op, place = self.writer[gradient]
        self.name[gradient] = op.outputs[place] = f"_{op.outputs[place]}_autosplit_{k}"

    def _joined(self, node: Node) -> None:
        """Indices or values of rows: every part that an op writes is renamed."""
        kind = "indices" if any(node.outputs[0] == indices for indices, _ in self.rows.values()) else "values"
        v = next(v for v, pair in self.rows.items() if node.outputs[0] in pair)
        for k, gradient in enumerate(g for g in node.inputs if self._is_part_of(v, g)):
            self._rename(gradient, k)
        name = f"{self.blob[v]}_grad_{kind}_concat"
        self._add(node, "Concat", node.inputs, [name, f"{name}_split"], {"axis": 0})

    def _is_part_of(self, v: int, gradient: int) -> bool:
        return gradient in self.writer and self.of.get(gradient) == v

    def _by_name(self) -> dict[str, str | SparseNames]:
        """Per name the gradient that was known last while ops were read backwards.

        A reader without gradient leaves what is known, unless it writes the name itself.
        """
        found: dict[str, int | None] = {self.blob[self.ids[target]]: self.ids[target] for target in self.targets}
        has = {*self.gradient, *self.rows}
        for node in reversed(self.graph.nodes):
            if has.isdisjoint(node.writes) and node.op != ZERO_GRADIENT:
                continue
            written = {self.blob[v] for v in node.writes}
            for v in node.reads:
                if v in has or self.blob[v] not in found or self.blob[v] in written:
                    found[self.blob[v]] = v if v in has else None
        return {name: self._shown(v) for name, v in found.items() if v is not None and v in has}

    def _shown(self, v: int) -> str | SparseNames:
        if v in self.rows:
            indices, values = self.rows[v]
            return {"indices": self.name[indices], "values": self.name[values]}
        return self.name[self.gradient[v]]


__all__ = ["Caffe2Gradients", "GradientOp", "add_gradient_operators"]
