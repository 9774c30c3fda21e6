"""Gradients as returned by MXNet's `Gradient` pass: one entry per requested value, with named zeros and copies.

    x, idx ──▶ batch_take ──▶ y ──▶ stop_gradient ──▶ z       y_in0_backward(x), y_in1_backward(idx): zeros
                                                               before the barrier every gradient is zero

A requested value that reaches no target is an error. Before a gradient barrier the gradient is zeros, for integers
too. A value requested twice, or sharing its gradient with another value, gets a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph.autodiff.differentiate import append_all_gradients, with_gradient_outputs
from graph.autodiff.gradients.accumulation import IndexedSlices
from graph.autodiff.gradients.spec import carries_gradient
from graph.autodiff.resolve_names import GradientOptions, resolve_gradient_spec
from graph.builder.builder import Builder
from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY, Graph, Phase
from graph.ops.registry.onnx_fallback import numpy_dtype

NO_RULES: Mapping[str, Any] = EMPTY


@dataclass(frozen=True, slots=True)
class GradientEntry:
    """Gradient of one requested value."""

    wanted: str
    gradient: str  # name of the value in `graph`
    called: str  # name MXNet's op has: "gy", "gy_1_copy", "y_in0_backward"
    reads: tuple[str, ...] = ()  # data inputs of an op of zeros
    after: tuple[str, ...] = ()  # values whose op an op of zeros waits for


@dataclass(frozen=True, slots=True)
class GradientGraph:
    """Graph with gradients, and one entry per requested value in the order of the request."""

    graph: Graph
    entries: list[GradientEntry]


def gradient_graph(
    graph: Graph,
    targets: Sequence[str] | None,
    wanted: Sequence[str] | None,
    head_gradients: Sequence[str | None] | None,
    *,
    copies: bool = False,
    gradient_rules: Mapping[str, Any] = NO_RULES,
) -> GradientGraph:
    """Gradients of `targets` with respect to `wanted`; one head gradient per target, None for ones.

    With `copies`, all entries are distinct values. Raises BadGraph and NoGradient.
    """
    if targets is None or wanted is None or head_gradients is None:
        raise _missing_lists(targets=targets, wanted=wanted, head_gradients=head_gradients)
    ids = {value.name: v for v, value in enumerate(graph.values)}
    floating = [name for name in wanted if name not in ids or carries_gradient(graph.values[ids[name]])]
    spec = resolve_gradient_spec(
        graph,
        targets,
        floating,
        list(head_gradients),
        options=GradientOptions(gradient_rules=gradient_rules, shared="copies" if copies else "one"),
    )
    reaching = _reaching(graph, [v for v, _ in spec.targets])
    _check_reaching(wanted, ids, reaching)
    builder = Builder.from_graph(graph)
    found = append_all_gradients(builder, graph, spec)
    known = _dense_gradients(found)
    copies_named = {int(head): 0 for _, head in spec.targets if isinstance(head, int)}
    entries = []
    for name in wanted:
        v = ids[name]
        if v in known:
            gradient = known[v][0] if len(known[v]) == 1 else known[v].pop(0)
            entries.append(_named(builder, name, gradient, copies_named))
        else:
            entries.append(_zeros(builder, graph, v, reaching))
            found.append((v, ids_of(builder)[entries[-1].gradient]))
    return GradientGraph(with_gradient_outputs(builder, graph, found), entries)


def _dense_gradients(found: Sequence[tuple[int, int | IndexedSlices]]) -> dict[int, list[int]]:
    """Value -> its gradients; for sparse rows their values."""
    gradients: dict[int, list[int]] = {}
    for v, gradient in found:
        gradients.setdefault(v, []).append(gradient.values if isinstance(gradient, IndexedSlices) else gradient)
    return gradients


def _missing_lists(**lists: Sequence[Any] | None) -> BadGraph:
    findings = Findings()
    for name, given in lists.items():
        if given is None:
            findings.add("missing_field", name, "nothing", "a list", f"give `{name}`")
    return BadGraph(findings.kept)


def _check_reaching(wanted: Sequence[str], ids: Mapping[str, int], reaching: set[int]) -> None:
    """Raise BadGraph naming the wanted values on which no target depends."""
    findings = Findings()
    for position, name in enumerate(wanted, 1):
        if ids[name] not in reaching:
            findings.add(
                "unreachable",
                f"wanted[{position - 1}]",
                f"{quoted(name)}, number {position} of the wanted, from which no target is reached",
                "a value a target depends on",
                "leave it out",
            )
    findings.settle()


def ids_of(builder: Builder) -> dict[str, int]:
    return {value.name: v for v, value in enumerate(builder.values)}


def _reaching(graph: Graph, targets: Sequence[int]) -> set[int]:
    """Values on which a target depends, gradient barriers ignored; targets included."""
    found = set(targets)
    for node in reversed(graph.nodes):
        if not found.isdisjoint(node.writes):
            found.update(node.reads)
    return found


def _named(builder: Builder, wanted: str, gradient: int, copies: dict[int, int]) -> GradientEntry:
    """The entry of a gradient; copies of one are numbered from 1."""
    name = builder.values[gradient].name
    node = next((node for node in builder.nodes if gradient in node.writes), None)
    if node is None or node.op != "remat::Copy" or "copy" not in node.annotations:
        copies.setdefault(gradient, 0)
        return GradientEntry(wanted, name, name)
    (source,) = node.inputs
    copies[source] = copies.get(source, 0) + 1
    return GradientEntry(wanted, name, f"{builder.values[source].name}_{copies[source]}_copy")


def _zeros(builder: Builder, graph: Graph, v: int, reaching: set[int]) -> GradientEntry:
    """Zeros of the type of `v`, from an op named after the first reader of `v` on a path to a target."""
    value = graph.values[v]
    reader = next(node for node in graph.nodes if v in node.reads and not reaching.isdisjoint(node.writes))
    written = graph.values[reader.writes[0]].name
    many = len(reader.inputs) > 1
    called = f"{written}_in{reader.inputs.index(v)}_backward" if many else f"{written}_backward"
    assert value.type is not None
    shape = builder.constant(np.asarray(value.type.shape, np.int64), f"{called}/shape")
    (zeros,) = builder.node(
        "ConstantOfShape",
        [shape],
        name=called,
        phase=Phase.BACKWARD,
        after=(graph.nodes.index(reader),),
        attributes={"value": np.zeros(1, numpy_dtype(value.type.dtype))},
        annotations={"gradient_of": reader.name},
    )
    return GradientEntry(value.name, builder.values[zeros].name, called, (value.name,), (written,))
