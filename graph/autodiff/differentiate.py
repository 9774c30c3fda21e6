"""Reverse-mode differentiation: a graph followed by its backward pass. Rules of single ops are in `gradients/`.

    x ──▶ fc1 ──▶ h ──▶ relu1 ──▶ loss        forward
              grad/fc1 ◀── grad/relu1 ◀── 1    backward, appended in reverse order

A node is differentiated when it depends on a wanted value and a target depends on it. The gradient of a value is the
sum of one contribution per slot that reads it; head gradients are contributions too.
O(nodes + reads) time; recursion for nested graphs only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from graph.autodiff.gradients.accumulation import GradientHook, IndexedSlices
from graph.autodiff.gradients.events import ROW_SPARSE, GradientCallback
from graph.autodiff.gradients.spec import GradientSpec
from graph.autodiff.resolve_names import GradientOptions, resolve_gradient_spec
from graph.autodiff.reverse_pass import ReversePass
from graph.autodiff.rule_families import FAMILIES as FAMILIES
from graph.autodiff.seeds_and_results import SourceGradients
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import EMPTY, Graph


def differentiate(
    graph: Graph,
    targets: Sequence[str] | Mapping[str, Any],
    wanted: Sequence[str] | None = None,
    *,
    head_gradients: Mapping[str, Any] | Sequence[Any] = EMPTY,
    no_gradient: Collection[str] = (),
    unreachable: str = "null",
    options: GradientOptions = GradientOptions(),  # noqa: B008  it is frozen
    callbacks: Sequence[GradientCallback] = (),
) -> Graph:
    """`graph` followed by its backward pass; `gradients` of the result pairs each wanted value with its gradient.

    Every gradient is an output too. `wanted`: names; default: every floating parameter that does not stop gradients.
    A head gradient is the name of a value of the target's type, a number, or None for ones; targets and head
    gradients may be one mapping. A row-sparse gradient is two outputs, named by the annotation
    `row_sparse_gradients`. `callbacks` receive an event for each new node and each complete gradient.
    Raises BadGraph and NoGradient with up to ten findings.
    """
    check_callbacks(callbacks)
    spec = resolve_gradient_spec(graph, targets, wanted, head_gradients, no_gradient, unreachable, options)
    builder = Builder.from_graph(graph)
    return with_gradient_outputs(builder, graph, append_all_gradients(builder, graph, spec, callbacks=callbacks))


def append_gradients(
    builder: Builder,
    graph: Graph,
    spec: GradientSpec,
    ready: GradientHook | None = None,
    callbacks: Sequence[GradientCallback] = (),
) -> list[tuple[int, int]]:
    """(wanted value, its gradient) pairs; adds the backward pass of `graph` to `builder`, which holds a copy of it.

    `ready(value, gradient)` is called when the gradient of a wanted value is complete and no later backward node
    reads that value. It may add nodes and returns the value that replaces the gradient.
    """
    gradients = append_all_gradients(builder, graph, spec, ready, callbacks)
    return [(v, gradient) for v, gradient in gradients if not isinstance(gradient, IndexedSlices)]


def append_all_gradients(
    builder: Builder,
    graph: Graph,
    spec: GradientSpec,
    ready: GradientHook | None = None,
    callbacks: Sequence[GradientCallback] = (),
) -> SourceGradients:
    """Same as `append_gradients`, with row-sparse gradients included."""
    return reverse_pass(builder, graph, spec, ready, callbacks).run()


def reverse_pass(
    builder: Builder,
    graph: Graph,
    spec: GradientSpec,
    ready: GradientHook | None = None,
    callbacks: Sequence[GradientCallback] = (),
) -> ReversePass:
    """The differentiation of `append_all_gradients`, not run yet; afterwards it lists the missing gradients."""
    return ReversePass(builder, graph, spec, ready or (lambda v, gradient: gradient), append_gradients, callbacks)


def with_gradient_outputs(
    builder: Builder, graph: Graph, gradients: SourceGradients, excluded: Collection[int] = ()
) -> Graph:
    """The built graph with the gradients among its outputs, except those of the values in `excluded`."""
    names = builder.values
    outputs = list(graph.outputs)
    rows = {}
    for v, gradient in gradients:
        if isinstance(gradient, IndexedSlices):
            outputs += (gradient.indices, gradient.values)
            rows[names[v].name] = {"indices": names[gradient.indices].name, "values": names[gradient.values].name}
        else:
            outputs += [] if v in excluded else [gradient]
            builder.gradients.append((v, gradient))
    if rows:
        before = builder.annotations.get(ROW_SPARSE, EMPTY)
        builder.annotations = MappingProxyType({**builder.annotations, ROW_SPARSE: {**before, **rows}})
    return builder.build(dict.fromkeys(outputs))


def check_callbacks(callbacks: Any) -> None:
    """Raise BadGraph unless `callbacks` is a list of functions."""
    if not isinstance(callbacks, list | tuple) or not all(callable(callback) for callback in callbacks):
        raise BadGraph.one(
            "bad_request", "callbacks", repr(callbacks)[:80], "a list of functions of an event", "send a list"
        )
