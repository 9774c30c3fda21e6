"""A mirroring case sent down the data path: document, gradients, columns, decisions, rewritten graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graph.analysis.cost import device_named
from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.registry import GRADIENT_RULES, ForwardNode, gradient
from graph.builder.emit import Emit
from graph.formats.readers import load
from graph.ir import Graph, Node, TensorType
from planner.algorithms.heuristics.mirror import MirrorDecisions, decide, plan
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import LoweredGraph
from planner.lowering.realize import node_sequence, realize
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Plan
from planner.request.target_runtime import runtime_named
from tests.seeds.documents import Case, document, gradient_steps


@dataclass
class Mirrored:
    """One case and everything the path makes of it. Ops go by their first output or, when alone of it, their type."""

    case: Case

    @cached_property
    def source(self) -> Graph:
        """The training graph."""
        wanted = self.case["wanted_gradients"]
        targets = {target: head for target, head in wanted["targets"].items() if head is not None}
        alone = load(json.dumps(document(self.case)).encode())
        by = wanted.get("wrt", "all variables")
        names = [alone.values[v].name for v in alone.inputs] if by == "all variables" else by
        heads = {head: list(type_of(alone, target).shape) for target, head in targets.items()}
        forward = load(json.dumps(document(self.case, heads)).encode())
        with declared_rules(self.case):
            return differentiate(forward, list(wanted["targets"]), names, head_gradients=targets)

    @cached_property
    def lowered(self) -> LoweredGraph:
        return lower(self.source, device_named("a100-80gb"), runtime_named("arena"))

    @cached_property
    def decisions(self) -> MirrorDecisions:
        return decide(self.lowered.problem)

    @cached_property
    def plan(self) -> Plan:
        goal = Goal()
        problem = self.lowered.problem
        return evaluate(
            self.lowered.problem, goal, plan(problem, goal, Monitor(lambda order: self.baseline.score)), "mirror"
        )

    @cached_property
    def baseline(self) -> Plan:
        return evaluate(self.lowered.problem, Goal(), np.arange(self.lowered.problem.tasks), "as_given")

    @cached_property
    def rewritten(self) -> Graph:
        return realize(node_sequence(self.lowered, self.plan))

    def stage(self, op: str) -> int:
        return int(self.decisions.stage[self.task(op)])

    def task(self, op: str) -> int:
        """Task of the op with that output, or of the only op of that type."""
        for n, node in enumerate(self.source.nodes):
            if op in {self.source.values[v].name for v in node.writes}:
                return self.lowered.node_task[n]
        (name,) = [given["outputs"][0] for given in self.case["ops"] if given["type"] == op]
        return self.task(name)

    def buffer(self, value: str) -> int:
        return self.lowered.value_buffer[self.source.value_named(value)]

    def gradient_nodes(self, graph: Graph, op: str) -> list[Node]:
        """Nodes of `graph` that the gradient of the op with that output consists of."""
        prefix = f"grad/{self.source.nodes[self.lowered.task_node[self.task(op)]].name}"
        return [node for node in graph.nodes if node.name == prefix or node.name.startswith(f"{prefix}/")]

    def run_of(self, v: int) -> tuple[str, int]:
        """(value of the source, run that wrote it) for a value of the rewritten graph."""
        return self._origins.get(v, (self.rewritten.values[v].name, 0))

    def mirror_names(self, ids: Sequence[int]) -> list[str]:
        """Names as the original has them: a value of a second run is called `NAME_mirror`."""
        return [name + "_mirror" * run for name, run in map(self.run_of, ids)]

    @cached_property
    def _origins(self) -> dict[int, tuple[str, int]]:
        by_name = {node.name: node for node in self.source.nodes}
        origins = {}
        for node in self.rewritten.nodes:
            name, run = node.annotations["origin"]
            for new, old in zip(node.outputs, by_name[name].outputs, strict=True):
                origins[new] = (self.source.values[old].name, run)
        return origins


def type_of(graph: Graph, value: str) -> TensorType:
    type = graph.values[graph.value_named(value)].type
    assert type is not None, f"{value} has a type"
    return type


@contextmanager
def declared_rules(case: Case) -> Iterator[None]:
    """Gradient rules of several steps, as the case declares them in words, known while the block runs."""
    steps = {f"mxnet::{op}": reads for op, reads in gradient_steps(case).items()}
    for op, reads in steps.items():
        gradient(op)(_stepwise(op, reads))
    try:
        yield
    finally:
        for op in steps:
            del GRADIENT_RULES[op]


def _stepwise(op: str, steps: list[list[str]]) -> Any:
    """A rule that adds one opaque node a step; the last one writes the gradients of all inputs."""

    def rule(emit: Emit, node: ForwardNode, incoming: Any) -> tuple[Any, ...]:
        known = {"incoming": incoming, "data": node.inputs[0], "weight": node.inputs[1]}
        for i, reads in enumerate(steps, 1):
            types = [x.type for x in node.inputs if x] if i == len(steps) else [incoming.type]
            made = emit.builder.node(
                f"{op}Step{i}",
                [known[word].id for word in reads],
                name=f"{emit.prefix}/step{i}",
                outputs=len(types),
                types=types,
                phase=emit.phase,
                **emit.node_fields,
            )
            known[f"g{i}"] = emit.val(made[0])
        return tuple(emit.val(v) for v in made)

    return rule
