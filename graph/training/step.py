"""From a forward graph to one training step: the loss, training mode, gradients, and the update a recipe asks for.

forward ──▶ loss ──▶ training mode ──▶ forward + backward ──▶ ... + update
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from graph.autodiff.differentiate import append_all_gradients, check_callbacks, with_gradient_outputs
from graph.autodiff.gradients.accumulation import IndexedSlices
from graph.autodiff.gradients.events import GradientCallback
from graph.autodiff.resolve_names import GradientOptions, resolve_gradient_spec
from graph.builder.builder import Builder
from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY, Graph
from graph.training.loss import with_added_loss, with_named_loss
from graph.training.optimizer_recipe import UpdateBuilder, parse_recipe
from graph.training.train_mode import in_training_mode

_MORE = tuple(field.name for field in fields(GradientOptions))
_FIELDS = ("of", "with_respect_to", "head_gradients", "no_gradient", "unreachable", "update", *_MORE)


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
    **more: Any,
) -> tuple[Graph, list[str]]:
    """One training step of a forward graph, and in words what was done to get there.

    Targets are `loss`, or all of `of` with their head gradients; with neither a classifier's output gets a
    cross-entropy. Parameters are differentiated by unless `with_respect_to` says otherwise. `rewrite` changes the
    forward graph once its loss is there; `more` are the fields of `GradientOptions`. Without an optimizer gradients are
    outputs; with one they end in updates of parameters and state in place. Raises BadGraph and NoGradient with up
    to ten findings.
    """
    check_callbacks(callbacks)
    check_fields({"of": of, **more})
    plan = parse_recipe(recipe, update)
    notes: list[str] = []
    targets: list[str] | Mapping[str, Any]
    if loss is not None:
        graph = with_named_loss(graph, loss)
        targets = {loss: None, **of} if isinstance(of, Mapping) else list(dict.fromkeys([loss, *(of or ())]))
    elif of is not None:
        targets = of if isinstance(of, Mapping) else list(of)
    else:
        graph, name, notes = with_added_loss(graph)
        targets = [name]
    graph, switched = in_training_mode(graph)
    notes += switched
    if rewrite is not None:
        graph = rewrite(graph)
    question = resolve_gradient_spec(
        graph, targets, with_respect_to, head_gradients, no_gradient, unreachable, GradientOptions(**more)
    )
    builder = Builder.from_graph(graph)
    steps = UpdateBuilder(builder, graph, plan)
    found = append_all_gradients(builder, graph, question, steps.ready, callbacks)
    if not found and not question.targets:
        return graph, notes
    if not found:
        _nothing_reached(graph, list(targets), question.wanted)
    _check_rows(graph, [v for v, gradient in found if isinstance(gradient, IndexedSlices)], plan.optimizer)
    pairs = [(v, gradient) for v, gradient in found if not isinstance(gradient, IndexedSlices)]
    steps.finish(pairs)
    return with_gradient_outputs(builder, graph, found, steps.updated), notes


def check_fields(given: Mapping[str, Any]) -> None:
    """Raise BadGraph for fields of `differentiate` nobody knows and targets that are no list."""
    findings = Findings()
    for name in given:
        if name not in _FIELDS:
            findings.add(
                "unknown_field",
                f"differentiate.{name}",
                quoted(str(name)),
                "one of " + ", ".join(_FIELDS),
                "leave it out or correct it",
            )
    of = given.get("of")
    if of is not None and not isinstance(of, list | tuple | Mapping):
        findings.add("bad_request", "differentiate.of", repr(of)[:80], "a list of names", "send a list")
    findings.settle()


def _check_rows(graph: Graph, rows: Sequence[int], optimizer: str) -> None:
    """Updates take whole gradients. Raises BadGraph."""
    if rows and optimizer != "none":
        raise BadGraph.one(
            "bad_request",
            "differentiate.row_sparse",
            f"rows of {quoted(graph.values[rows[0]].name)} for {optimizer}",
            "gradients that are handed out",
            "leave row_sparse out, or the optimizer",
        )


def _nothing_reached(graph: Graph, targets: Sequence[str], wanted: Sequence[int]) -> None:
    if not wanted:
        found, remedy = "no floating parameter", "give weights the role parameter, or name values in with_respect_to"
    else:
        names = ", ".join(quoted(graph.values[v].name) for v in wanted[:3])
        found, remedy = f"no path from {names} to the loss", "name a loss that depends on the parameters"
    raise BadGraph.one(
        "unreachable", f"differentiate.of.{targets[0]}", found, "a loss that depends on a parameter", remedy
    )
