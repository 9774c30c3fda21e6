"""Wanted values without a gradient, and the op at which the path of each to the targets ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graph.autodiff.active_path import gradient_slots, non_differentiable_ops
from graph.autodiff.gradients.spec import GradientSpec, carries_gradient
from graph.errors import quoted
from graph.ir import Graph, consumers

MAX_NAMES = 5  # listed in one note; the others are counted


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
    readers = consumers(graph)
    leads = _leads_to_target(graph, [target for target, _ in spec.targets])
    stopping = non_differentiable_ops(spec.rules)

    def ends_at(v: int) -> int | None:
        """The first node, in execution order, that a target depends on and that passes no gradient to `v`."""
        seen, ends, queue = {v}, [], [v]
        while queue:
            source = queue.pop()
            for n in readers[source]:
                node = graph.nodes[n]
                outputs = [output for output in node.writes if leads[output]]
                if not outputs:
                    continue
                onward = [output for output in outputs if carries_gradient(graph.values[output])]
                stops = node.op in stopping or n in spec.skipped or source not in gradient_slots(node)
                if stops or not onward or any(output in complete for output in onward):
                    ends.append(n)
                    continue
                onward = [output for output in onward if output not in seen and output not in spec.stops]
                seen.update(onward)
                queue += onward
        return min(ends, default=None)

    return [MissingGradient(v, ends_at(v)) for v in missing]


def _leads_to_target(graph: Graph, targets: Sequence[int]) -> bytearray:
    """Per value: 1 where a target depends on it, through any op."""
    leads = bytearray(len(graph.values) + 1)
    for target in targets:
        leads[target] = 1
    for node in reversed(graph.nodes):
        if any(leads[v] for v in node.writes):
            for v in node.reads:
                leads[v] = 1
    return leads


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
    listed = ", ".join(quoted(name) for name in names[:MAX_NAMES])
    rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)} parameter{'s' if len(names) > 1 else ''} ({listed}{rest})"
