"""Status propagation: infers one property of every value (device, layout, element type, shard) from a rule per node.

x (?) ──▶ relu ──▶ a (?) ──▶ copy to cpu ──▶ b (?)        rule: a copy is from gpu to cpu, other ops keep the device
x gpu ◀── relu ◀── a gpu ◀── copy to cpu ──▶ b cpu        one forward pass, one backward pass
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.ir import ABSENT, Graph, Node
from graph.ssa.lookup import find_values
from graph.ssa.naming import versions_of_graph
from graph.transforms.device_placement import base_op

Statuses = Sequence[str | None]
#: (node, known statuses of its inputs, of its outputs) -> required statuses of both, None where unknown
StatusRule = Callable[[Node, Statuses, Statuses], tuple[Statuses, Statuses]]


def infer_status(graph: Graph, rule: StatusRule, known: Mapping[str, Any] | None = None) -> list[str | None]:
    """Per value its status by `rule`, from hints `known` by name; None for values that no node reads or writes.

    One forward and one backward pass. Raises BadGraph for a hint with an unknown name or without a status, for two
    statuses of one value, and for values without a status after both passes.
    """
    return _Propagation(graph, rule, known or {}).statuses()


def same_status(fixed: Mapping[str, tuple[str | None, str | None]]) -> StatusRule:
    """Rule: all operands of a node have one status, except for ops with `fixed` ones: op -> (inputs, outputs)."""

    def rule(node: Node, inputs: Statuses, outputs: Statuses) -> tuple[Statuses, Statuses]:
        sides = fixed.get(node.op) or fixed.get(base_op(node))
        if sides is not None:
            return [sides[0]] * len(inputs), [sides[1]] * len(outputs)
        one = next((status for status in (*inputs, *outputs) if status is not None), None)
        return [one] * len(inputs), [one] * len(outputs)

    return rule


class _Propagation:
    """The statuses known so far, and both passes."""

    def __init__(self, graph: Graph, rule: StatusRule, known: Mapping[str, Any]):
        self.graph, self.rule = graph, rule
        self.table = versions_of_graph(graph)
        self.status: list[str | None] = [None] * len(graph.values)
        findings = Findings()
        for v, status in zip(_hinted(graph, known, findings), known.values(), strict=False):
            if not isinstance(status, str) or not status:
                findings.add(
                    "null_status",
                    "known",
                    f"{status!r} for {quoted(self._name(v))}",
                    "a status",
                    "remove the value, or give its status",
                )
            elif self.status[v] not in (None, status):
                findings.add(
                    "status_conflict",
                    "known",
                    f"{self.status[v]} and {status} for {quoted(self._name(v))}",
                    "one status",
                    "give one status per value",
                )
            else:
                self.status[v] = status
        findings.settle()

    def statuses(self) -> list[str | None]:
        nodes = list(enumerate(self.graph.nodes))
        for n, node in [*nodes, *reversed(nodes)]:
            self._visit(n, node)
        findings = Findings()
        for v in dict.fromkeys(v for node in self.graph.nodes for v in (*node.reads, *node.writes)):
            if self.status[v] is None:
                findings.add(
                    "unknown_status",
                    "known",
                    f"no status of {quoted(self._name(v))}",
                    "a status for every value after one forward and one backward pass",
                    "add a hint for it",
                )
        findings.settle()
        return self.status

    def _visit(self, n: int, node: Node) -> None:
        sides = [[self._at(v) for v in slots] for slots in (node.inputs, node.outputs)]
        required = self.rule(node, *sides)
        for field, slots, statuses in zip(("inputs", "outputs"), (node.inputs, node.outputs), required, strict=True):
            for i, (v, status) in enumerate(zip(slots, statuses, strict=True)):
                if v == ABSENT or status is None:
                    continue
                if self.status[v] not in (None, status):
                    raise BadGraph.one(
                        "status_conflict",
                        f"nodes[{n}].{field}[{i}]",
                        f"{quoted(self._name(v))}, which is {self.status[v]} and which {quoted(node.name)} ({node.op}) "
                        f"requires as {status}",
                        "one status for each value",
                        "correct the hints, or insert an op that converts one status to the other",
                    )
                self.status[v] = status

    def _at(self, v: int) -> str | None:
        return None if v == ABSENT else self.status[v]

    def _name(self, v: int) -> str:
        name, number = self.table.version(v)
        return f"{name}@{number}"


def _hinted(graph: Graph, known: Mapping[str, Any], findings: Findings) -> list[int]:
    values = find_values(graph, list(known), "known", findings)
    findings.settle()
    return values
