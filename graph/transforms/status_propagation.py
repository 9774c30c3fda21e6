"""What is so of every value, told by a rule about single nodes: devices, layouts, element types, shards.

x (?) ──▶ relu ──▶ a (?) ──▶ copy to cpu ──▶ b (?)        rule: a copy goes from gpu to cpu, any other op stays
x gpu ◀── relu ◀── a gpu ◀── copy to cpu ──▶ b cpu        one sweep forwards, one backwards
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
#: (node, status of its inputs, of its outputs as far as they are known) -> what both must be, None where it cannot tell
StatusRule = Callable[[Node, Statuses, Statuses], tuple[Statuses, Statuses]]


def infer_status(graph: Graph, rule: StatusRule, known: Mapping[str, Any] | None = None) -> list[str | None]:
    """Per value its status by `rule`, from hints `known` by name; None for values no node touches.

    One sweep forwards and one backwards. Raises BadGraph for a hint about no value or without a status, for
    two statuses of one value, and for values whose status both sweeps left open.
    """
    return _Sweeps(graph, rule, known or {}).statuses()


def same_status(fixed: Mapping[str, tuple[str | None, str | None]]) -> StatusRule:
    """The rule that all a node touches has one status, but for ops with `fixed` ones of (inputs, outputs)."""

    def rule(node: Node, inputs: Statuses, outputs: Statuses) -> tuple[Statuses, Statuses]:
        sides = fixed.get(node.op) or fixed.get(base_op(node))
        if sides is not None:
            return [sides[0]] * len(inputs), [sides[1]] * len(outputs)
        one = next((status for status in (*inputs, *outputs) if status is not None), None)
        return [one] * len(inputs), [one] * len(outputs)

    return rule


class _Sweeps:
    """What is known so far."""

    def __init__(self, graph: Graph, rule: StatusRule, known: Mapping[str, Any]):
        self.graph, self.rule = graph, rule
        self.table = versions_of_graph(graph)
        self.found: list[str | None] = [None] * len(graph.values)
        findings = Findings()
        for v, status in zip(_hinted(graph, known, findings), known.values(), strict=False):
            if not isinstance(status, str) or not status:
                findings.add(
                    "null_status",
                    "known",
                    f"{status!r} for {quoted(self._name(v))}",
                    "a status",
                    "leave the value out, or say what it is",
                )
            elif self.found[v] not in (None, status):
                findings.add(
                    "status_conflict",
                    "known",
                    f"{self.found[v]} and {status} for {quoted(self._name(v))}",
                    "one status",
                    "say it once",
                )
            else:
                self.found[v] = status
        findings.settle()

    def statuses(self) -> list[str | None]:
        nodes = list(enumerate(self.graph.nodes))
        for n, node in [*nodes, *reversed(nodes)]:
            self._visit(n, node)
        findings = Findings()
        for v in dict.fromkeys(v for node in self.graph.nodes for v in (*node.reads, *node.writes)):
            if self.found[v] is None:
                findings.add(
                    "unknown_status",
                    "known",
                    f"nothing that tells the status of {quoted(self._name(v))}",
                    "a status for every value after one sweep forwards and one backwards",
                    "give a hint for it",
                )
        findings.settle()
        return self.found

    def _visit(self, n: int, node: Node) -> None:
        sides = [[self._at(v) for v in slots] for slots in (node.inputs, node.outputs)]
        told = self.rule(node, *sides)
        for field, slots, statuses in zip(("inputs", "outputs"), (node.inputs, node.outputs), told, strict=True):
            for i, (v, status) in enumerate(zip(slots, statuses, strict=True)):
                if v == ABSENT or status is None:
                    continue
                if self.found[v] not in (None, status):
                    raise BadGraph.one(
                        "status_conflict",
                        f"nodes[{n}].{field}[{i}]",
                        f"{quoted(self._name(v))}, which is {self.found[v]} and which {quoted(node.name)} ({node.op}) "
                        f"takes as {status}",
                        "one status for each value",
                        "correct the hints, or put an op between that goes from one to the other",
                    )
                self.found[v] = status

    def _at(self, v: int) -> str | None:
        return None if v == ABSENT else self.found[v]

    def _name(self, v: int) -> str:
        name, number = self.table.version(v)
        return f"{name}@{number}"


def _hinted(graph: Graph, known: Mapping[str, Any], findings: Findings) -> list[int]:
    values = find_values(graph, list(known), "known", findings)
    findings.settle()
    return values
