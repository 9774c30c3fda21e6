"""Construction of a training step from a forward graph: loss, training mode, gradients, optimizer update.

forward ──▶ loss ──▶ training mode ──▶ forward + backward ──▶ ... + update
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from graph.autodiff.differentiate import check_callbacks, reverse_pass, with_gradient_outputs
from graph.autodiff.gradients.accumulation import IndexedSlices
from graph.autodiff.gradients.events import GradientCallback
from graph.autodiff.missing_gradients import missing_gradient_notes
from graph.autodiff.objective import Objective
from graph.autodiff.resolve_names import GradientOptions, resolve_gradient_spec
from graph.builder.builder import Builder
from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY, Graph
from graph.training.loss import CrossEntropy, with_added_loss, with_named_loss
from graph.training.optimizer_recipe import parse_recipe
from graph.training.train_mode import in_training_mode
from graph.training.update_builder import UpdateBuilder

_OPTIONS = tuple(field.name for field in fields(GradientOptions))
_FIELDS = ("of", "with_respect_to", "head_gradients", "no_gradient", "unreachable", "update", *_OPTIONS)


def training_step(
    graph: Graph,
    loss: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    *,
    of: Sequence[str] | Mapping[str, Any] | None = None,
    with_respect_to: Sequence[str] | None = None,
    head_gradients: Mapping[str, Any] | Sequence[Any] = EMPTY,
    no_gradient: Sequence[str] = (),
    unreachable: str = "null",
    update: str | None = None,
    callbacks: Sequence[GradientCallback] = (),
    rewrite: Callable[[Graph], Graph] | None = None,
    on_objective: Callable[[Objective], object] | None = None,
    **more: Any,
) -> tuple[Graph, list[str]]:
    """(training step of a forward graph, notes on the changes made).

    Targets: `loss`, a value or `cross_entropy:OUTPUT[:AXIS]`, else all of `of` with their head gradients, else a
    cross-entropy added to a classifier.
    `with_respect_to`: names of wanted values; default: the parameters. `rewrite` is applied to the forward graph after
    the loss is added and training mode is set; `on_objective` receives the function that is then differentiated.
    `more`: fields of `GradientOptions`. Without an optimizer the gradients are outputs; with one, parameters and state
    are updated in place. Raises BadGraph and NoGradient with up to ten findings.
    """
    check_callbacks(callbacks)
    check_fields({"of": of, **more})
    options = parse_recipe(recipe, update)
    graph, targets, notes = _with_targets(graph, loss, of)
    graph, mode_notes = in_training_mode(graph)
    notes += mode_notes
    if rewrite is not None:
        graph = rewrite(graph)
    if options.loss_scale != 1:
        head_gradients = _scaled_heads(targets, head_gradients, options.loss_scale)
    spec = resolve_gradient_spec(
        graph, targets, with_respect_to, head_gradients, no_gradient, unreachable, GradientOptions(**more)
    )
    if on_objective is not None:
        on_objective(Objective(graph, spec, options.accumulate > 1))
    builder = Builder.from_graph(graph)
    update_builder = UpdateBuilder(builder, graph, options)
    differentiation = reverse_pass(builder, graph, spec, update_builder.ready, callbacks)
    gradients = differentiation.run()
    notes += missing_gradient_notes(graph, differentiation.missing())
    if not gradients and not spec.targets:
        return graph, notes
    if not gradients:
        _refuse_unreachable(graph, list(targets), spec.wanted)
    _check_rows(graph, [v for v, gradient in gradients if isinstance(gradient, IndexedSlices)], options.optimizer)
    pairs = [(v, gradient) for v, gradient in gradients if not isinstance(gradient, IndexedSlices)]
    update_builder.finish(pairs)
    return with_gradient_outputs(builder, graph, gradients, update_builder.updated), notes


def _with_targets(
    graph: Graph, loss: str | None, of: Sequence[str] | Mapping[str, Any] | None
) -> tuple[Graph, list[str] | Mapping[str, Any], list[str]]:
    """(graph with the loss among its outputs, targets, notes on an added loss)."""
    requested = None if loss is None else CrossEntropy.of(graph, loss)
    if loss is not None and requested is None:
        graph = with_named_loss(graph, loss)
        targets = {loss: None, **of} if isinstance(of, Mapping) else list(dict.fromkeys([loss, *(of or ())]))
        return graph, targets, []
    if of is not None and requested is None:
        return graph, of if isinstance(of, Mapping) else list(of), []
    graph, name, notes = with_added_loss(graph, requested)
    return graph, [name], notes


def _scaled_heads(
    targets: list[str] | Mapping[str, Any], given: Mapping[str, Any] | Sequence[Any], scale: float
) -> dict[str, Any]:
    """Head gradients times `scale`, which are ones where none is given. Raises BadGraph for one named by a value."""
    heads = dict.fromkeys(targets) | (dict(targets) if isinstance(targets, Mapping) else {})
    heads |= dict(given) if isinstance(given, Mapping) else dict(zip(targets, given, strict=False))
    for name, head in heads.items():
        if isinstance(head, str):
            raise BadGraph.one(
                "bad_recipe",
                "recipe.loss_scale",
                f"a scale and the head gradient {quoted(head)} of {quoted(name)}",
                "a scaled head gradient, or a loss_scale",
                "scale the value that is named, or remove loss_scale",
            )
    return {name: _scaled(head, scale) for name, head in heads.items()}


def _scaled(head: Any, scale: float) -> Any:
    """A head gradient (a number, nested lists, an object with `value`, or None for ones) times `scale`."""
    if isinstance(head, Mapping):
        return {**head, "value": _scaled(head.get("value"), scale)}
    return scale if head is None else (scale * np.asarray(head, np.float64)).tolist()


def check_fields(given: Mapping[str, Any]) -> None:
    """Raise BadGraph for unknown fields of `differentiate`, and for targets that are neither list nor object."""
    findings = Findings()
    for name in given:
        if name not in _FIELDS:
            findings.add(
                "unknown_field",
                f"differentiate.{name}",
                quoted(str(name)),
                "one of " + ", ".join(_FIELDS),
                "remove it or correct its name",
            )
    of = given.get("of")
    if of is not None and not isinstance(of, list | tuple | Mapping):
        findings.add("bad_request", "differentiate.of", repr(of)[:80], "a list of names", "send a list")
    findings.settle()


def _check_rows(graph: Graph, rows: Sequence[int], optimizer: str) -> None:
    """Raise BadGraph for row-sparse gradients with an optimizer, which needs dense ones."""
    if rows and optimizer != "none":
        raise BadGraph.one(
            "bad_request",
            "differentiate.row_sparse",
            f"a row-sparse gradient of {quoted(graph.values[rows[0]].name)} for {optimizer}",
            "row-sparse gradients without an optimizer",
            "remove row_sparse, or the optimizer",
        )


def _refuse_unreachable(graph: Graph, targets: Sequence[str], wanted: Sequence[int]) -> None:
    if not wanted:
        found, remedy = "no floating parameter", "give weights the role parameter, or name values in with_respect_to"
    else:
        names = ", ".join(quoted(graph.values[v].name) for v in wanted[:3])
        found, remedy = f"no path from {names} to the loss", "name a loss that depends on the parameters"
    raise BadGraph.one(
        "unreachable", f"differentiate.of.{targets[0]}", found, "a loss that depends on a parameter", remedy
    )
