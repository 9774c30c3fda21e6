"""Structural equality: two graphs have the same data flow, independent of the names of values and nodes.

x ──▶ fc ──▶ y ──▶ fc ──▶ y          two versions of y are two values: a graph that reads the second version
x ──▶ fc ──▶ a ──▶ fc ──▶ b          instead of the first is not equal

Every value gets a number for its computation; equal numbers mean equal content. Source: Cocke, Schwartz,
"Programming Languages and Their Compilers", 1970 (value numbering).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graph.analysis.effects import is_repeatable
from graph.errors import quoted
from graph.formats.document.tensor_content import write_attributes
from graph.ir import ABSENT, Body, Graph, Node, Role, producers


def equal_up_to_renaming(a: Graph, b: Graph, *, repeats: bool = False, inputs_by_name: bool = True) -> bool:
    """True when both graphs compute the same outputs in the same way; see `difference`."""
    return difference(a, b, repeats=repeats, inputs_by_name=inputs_by_name) is None


def difference(a: Graph, b: Graph, *, repeats: bool = False, inputs_by_name: bool = True) -> str | None:
    """One difference in data flow between two graphs, as a sentence; None for equal data flow.

    Compared: ops, attributes, operands, the order of side effects and of outputs. Not compared: names, phases,
    annotations, the order of independent nodes. Inputs and parameters are equal when they have the same name, or with
    `inputs_by_name` false when they have the same uses. With `repeats` a node without side effects may run more often
    in one graph than in the other, as after recomputation. O(nodes + reads).
    """
    numbers = _Numbers()
    numbered = [numbers.of_graph(graph, _leaves(graph, inputs_by_name)) for graph in (a, b)]
    first, second = numbered
    for here, there, graph in ((first, second, a), (second, first, b)):
        missing = here.runs - there.runs
        if repeats:
            missing = Counter({number: 1 for number in here.runs if number not in there.runs})
        if missing:
            number = min(missing, key=here.node_of.__getitem__)
            node = graph.nodes[here.node_of[number]]
            return f"{node.op} {quoted(node.name)} of graph {quoted(graph.name)} has no counterpart in the other"
    for i, (left, right) in enumerate(zip(first.outputs, second.outputs, strict=False)):
        if left != right:
            names = quoted(a.values[a.outputs[i]].name), quoted(b.values[b.outputs[i]].name)
            return f"output {i} is {names[0]} in one graph and {names[1]} in the other, computed differently"
    if len(first.outputs) != len(second.outputs):
        return f"{len(first.outputs)} outputs in one graph, {len(second.outputs)} in the other"
    return None


def value_numbers(graph: Graph) -> list[int]:
    """Per value its value number: equal for equal computations of equal inputs."""
    return _Numbers().of_graph(graph, _leaves(graph, True)).values


@dataclass(slots=True)
class _Numbered:
    """Value numbers of one graph."""

    values: list[int]
    outputs: list[int]
    runs: Counter[int] = field(default_factory=Counter)  # number of a node -> how often it runs
    node_of: dict[int, int] = field(default_factory=dict)  # number -> first such node


class _Numbers:
    """Assigns numbers to computations; shared by the graphs to compare."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def of_graph(self, graph: Graph, leaves: Mapping[int, Hashable]) -> _Numbered:
        """Value numbers of a graph; `leaves` are the keys of values without a producer."""
        values = [self.of(("leaf", leaves[v])) if v in leaves else ABSENT for v in range(len(graph.values))]
        result = _Numbered(values, [])
        effects: Counter[Hashable] = Counter()
        for n, node in enumerate(graph.nodes):
            number = self.of(self._key(graph, node, values, effects))
            result.runs[number] += 1
            result.node_of.setdefault(number, n)
            for i, v in enumerate(node.outputs):
                if v != ABSENT:
                    values[v] = self.of(("output", number, i))
        result.outputs = [values[v] for v in graph.outputs]
        return result

    def _key(self, graph: Graph, node: Node, values: Sequence[int], effects: Counter[Hashable]) -> Hashable:
        """Key of the computation of a node; with a side effect it includes a count per op."""
        reads = tuple(ABSENT if v == ABSENT else values[v] for v in node.inputs)
        bodies = tuple((name, self._body(body, values)) for name, body in sorted(node.bodies.items()))
        key: Hashable = (node.op, text_of_attributes(node.attributes), reads, bodies, node.stream, node.in_place)
        if is_repeatable(graph, node):
            return key
        effects[node.op] += 1
        return key, effects[node.op]

    def _body(self, body: Body, values: Sequence[int]) -> Hashable:
        graph = body.graph
        leaves: dict[int, Hashable] = {v: ("place", i) for i, v in enumerate(graph.inputs)}
        leaves |= {inner: ("captured", values[outer]) for inner, outer in body.captures}
        leaves |= {v: leaf for v, leaf in _leaves(graph, True).items() if v not in leaves}
        inside = self.of_graph(graph, leaves)
        return tuple(inside.outputs), tuple(sorted(inside.runs.items()))


def text_of_attributes(attributes: Mapping[str, Any]) -> str:
    """Canonical text of attributes: equal for equal content."""
    return json.dumps(write_attributes(attributes), sort_keys=True) if attributes else ""


def _leaves(graph: Graph, by_name: bool) -> dict[int, Hashable]:
    """Keys of the values without a producer: name, content, or position of their first use."""
    producer = producers(graph)
    leaves: dict[int, Hashable] = {}
    unnamed = []
    for v, value in enumerate(graph.values):
        if producer[v] >= 0:
            continue
        if value.role is Role.CONSTANT and value.data is not None:
            leaves[v] = ("constant", value.data.dtype.name, value.data.shape, value.data.tobytes())
        elif by_name:
            leaves[v] = value.name
        else:
            unnamed.append(v)
    place = {v: i for i, v in enumerate(_by_first_use(graph, producer))}
    leaves.update((v, ("use", place.get(v, -1), graph.values[v].role)) for v in unnamed)
    return leaves


def _by_first_use(graph: Graph, producer: Sequence[int]) -> Iterable[int]:
    """Values without a producer, in the order of a backward walk from the outputs; then the others as read."""
    ordered: dict[int, None] = {}
    seen = [False] * len(graph.nodes)
    pending = list(reversed(graph.outputs))
    while pending:
        v = pending.pop()
        n = producer[v]
        if n < 0:
            ordered.setdefault(v)
        elif not seen[n]:
            seen[n] = True
            pending += reversed(graph.nodes[n].reads)
    for node in graph.nodes:
        ordered.update((v, None) for v in node.reads if producer[v] < 0)
    return ordered
