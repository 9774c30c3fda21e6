"""The lowered graph: a problem, and the maps between its numbers and the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graph.analysis.aliasing import storage_roots
from graph.ir import ABSENT, Graph, producers
from graph.loop_remat import BodyPair, SavePolicy, with_save_policies
from planner.problem import RESIDENT, Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.copies import CopyProblem

#: Categories of the peak; workspace and reserve are counted separately.
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS = range(4)
CATEGORIES = ("parameters", "gradients", "optimizer", "activations")


@dataclass(frozen=True, slots=True)
class BodyAlternatives:
    """Alternatives of one pair of bodies, in the order of `Problem.choices`: which values the pair saves."""

    pair: BodyPair
    savings: tuple[SavePolicy | None, ...]  # the first is None: the graph unchanged


@dataclass(frozen=True, eq=False, slots=True)
class LoweredGraph:
    """A problem, and the maps between its numbers and the graph."""

    problem: Problem
    graph: Graph
    roots: list[int]  # value -> value that owns its storage
    task_node: list[int]  # task -> node
    node_task: list[int]  # node -> task; -1 for a node that only makes views
    value_buffer: list[int]  # value -> buffer with its bytes
    buffer_value: list[int]  # buffer -> first value with that storage; ABSENT if the graph has none
    category: np.ndarray  # int8[m]: PARAMETERS, GRADIENTS, OPTIMIZER or ACTIVATIONS
    groups: tuple[BodyAlternatives, ...] = ()  # of `problem.choices`
    extra: Mapping[int, str] = field(default_factory=dict)  # buffer without a value in the graph -> its name
    known: dict[tuple[int, ...], LoweredGraph] = field(default_factory=dict)  # cache of `under`
    copies: CopyProblem | None = None  # `problem` with copies to the host; None: it has none
    plain: LoweredGraph | None = None  # without copies; None: this one
    copied: Callable[[LoweredGraph], LoweredGraph] | None = None  # adds the same copies to `plain` under choices

    @property
    def source(self) -> Graph:
        """The graph without the nodes of copies."""
        return self.graph if self.plain is None else self.plain.graph

    @property
    def source_tasks(self) -> int:
        """Number of tasks that are not copies."""
        return self.problem.tasks if self.copies is None else self.copies.original.tasks

    def producers(self) -> list[int]:
        """Per value the node that produces it, or -1; a fetch writes a value that another node produces."""
        result = producers(self.source)
        result += [-1] * (len(self.graph.values) - len(result))
        for n in reversed(range(len(self.source.nodes), len(self.graph.nodes))):
            v = self.graph.nodes[n].outputs[0]
            result[v] = n if v >= len(self.source.values) else result[v]
        return result

    @property
    def resident_bytes(self) -> int:
        return int(self.problem.size[self.problem.hold == RESIDENT].sum())

    def name_of_task(self, task: int) -> str:
        return self.graph.nodes[self.task_node[task]].name

    def name_of_buffer(self, buffer: int) -> str:
        v = self.buffer_value[buffer]
        return self.extra[buffer] if v == ABSENT else self.graph.values[v].name

    def under(self, choices: Sequence[int]) -> LoweredGraph:
        """The lowered graph under a vector of choices: same tasks and buffers, no choices left. Cached."""
        if not self.groups or not any(choices):
            return self
        vector = tuple(choices)
        if vector not in self.known:
            self.known[vector] = self._under(vector)
        return self.known[vector]

    def _under(self, choices: tuple[int, ...]) -> LoweredGraph:
        if self.plain is not None and self.copied is not None:
            return self.copied(self.plain.under(choices))
        savings = [group.savings[choice] for group, choice in zip(self.groups, choices, strict=True)]
        chosen = {g.pair: s for g, s in zip(self.groups, savings, strict=True) if s is not None}
        graph = with_save_policies(self.graph, chosen)
        buffer = {name: b for b, name in self.extra.items()}
        buffer.update((value.name, self.value_buffer[v]) for v, value in enumerate(self.graph.values))
        roots = storage_roots(graph)
        values = [buffer[value.name] for value in graph.values]
        first = [ABSENT] * len(self.buffer_value)
        for v in reversed(range(len(values))):
            if roots[v] == v:
                first[values[v]] = v
        return replace(
            self,
            problem=resolve_choices(self.problem, choices),
            graph=graph,
            roots=roots,
            value_buffer=values,
            buffer_value=first,
            groups=(),
            known={},
            extra={b: self.name_of_buffer(b) for b, v in enumerate(first) if v == ABSENT},
        )
