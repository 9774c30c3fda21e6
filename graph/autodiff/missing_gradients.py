"""Wanted values without a gradient, and the op at which the path of each to the targets ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graph.autodiff.active_path import gradient_slots, non_differentiable_ops
from graph.autodiff.gradients.spec import GradientSpec, carries_gradient
from graph.errors import listed, quoted
from graph.ir import Graph, consumers
from graph.ir.reachability import nodes_computing


@dataclass(frozen=True, slots=True)
class MissingGradient:
    """A wanted value without a gradient. `node` is where its path to a target ends; None: no target depends on it."""

    value: int
    node: int | None


def missing_gradients(graph: Graph, spec: GradientSpec, complete: Collection[int]) -> list[MissingGradient]:
    """Wanted values, in order, that are not among the values with a complete gradient.

    O(nodes + reads) for each, and only up to the ops that stop it.
    """
    missing = [v for v in dict.fromkeys(spec.wanted) if v not in complete and v not in spec.stops]
    if not missing:
        return []
    readers, stopping = consumers(graph), non_differentiable_ops(spec.rules)
    targets = [target for target, _ in spec.targets]
    required = nodes_computing(graph.nodes, targets)
    used = {*targets, *(v for n in required for v in graph.nodes[n].reads)}  # values that a target depends on

    def passed_on(n: int, source: int) -> list[int]:
        """Outputs of a node through which `source` could have a gradient; none where the path ends."""
        node = graph.nodes[n]
        if node.op in stopping or n in spec.skipped or source not in gradient_slots(node):
            return []
        onward = [v for v in node.writes if v in used and carries_gradient(graph.values[v])]
        return [] if any(v in complete for v in onward) else onward

    def ends_at(source: int) -> int | None:
        """The first node, in execution order, that a target depends on and that passes no gradient on."""
        seen, ends, queue = {source}, [], [source]
        while queue:
            v = queue.pop()
            for n in (n for n in readers[v] if not used.isdisjoint(graph.nodes[n].writes)):
                onward = passed_on(n, v)
                if not onward:
                    ends.append(n)
                queue += [output for output in onward if output not in seen and output not in spec.stops]
                seen.update(onward)
        return min(ends, default=None)

    return [MissingGradient(v, ends_at(v)) for v in missing]


def missing_gradient_notes(graph: Graph, missing: Sequence[MissingGradient]) -> list[str]:
    """One sentence for each op at which paths end, with the names of the values."""
    by_node: dict[str, list[str]] = defaultdict(list)
    for each in missing:
        node = None if each.node is None else graph.nodes[each.node]
        end = "the loss does not depend on it" if node is None else f"its path to the loss ends at {node.op}"
        place = "" if node is None else f" ({node.name})"
        by_node[end + place].append(graph.values[each.value].name)
    return [f"{_named(names)} without a gradient: {end}" for end, names in by_node.items()]


def _named(names: Sequence[str]) -> str:
    plural = "s" if len(names) > 1 else ""
    return f"{len(names)} parameter{plural} ({listed([quoted(name) for name in names])})"
