"""From a forward graph to one training step: the loss, training mode, gradients, and the update a recipe asks for.

forward ──▶ loss ──▶ training mode ──▶ forward + backward ──▶ ... + update
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graph.autodiff import append_gradients
from graph.builder import Builder
from graph.errors import BadGraph, Findings, quoted
from graph.ir import EMPTY, Graph
from graph.losses import added_loss, named_loss
from graph.question import resolve
from graph.recipe import Update, parse_recipe
from graph.training_mode import in_training_mode


def training_step(
    graph: Graph,
    loss: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    *,
    of: Sequence[str] | None = None,
    with_respect_to: Sequence[str] | None = None,
    head_gradients: Mapping[str, str | None] = EMPTY,
    no_gradient: Collection[str] = (),
    unreachable: str = "null",
    update: str | None = None,
    **unknown: Any,
) -> tuple[Graph, list[str]]:
    """One training step of a forward graph, and in words what was done to get there.

    Targets are `loss`, or all of `of` with their head gradients; with neither a classifier's output gets a
    cross-entropy. Parameters are differentiated by unless `with_respect_to` says otherwise. Without an
    optimizer gradients are outputs; with one they end in updates of parameters and state in place.
    Raises BadGraph and NoGradient with up to ten findings.
    """
    _check_options(of, with_respect_to, head_gradients, no_gradient, unknown)
    plan = parse_recipe(recipe, update)
    notes: list[str] = []
    if loss is not None:
        graph = named_loss(graph, loss)
        targets = list(dict.fromkeys([loss, *(of or ())]))
    elif of:
        targets = list(of)
    else:
        graph, name, notes = added_loss(graph)
        targets = [name]
    graph, switched = in_training_mode(graph)
    notes += switched
    question = resolve(graph, targets, with_respect_to, head_gradients, no_gradient, unreachable)
    builder = Builder.onto(graph)
    steps = Update(builder, graph, plan)
    pairs = append_gradients(builder, graph, question, steps.ready)
    if not pairs:
        _nothing_reached(graph, targets, question.wanted)
    steps.finish(pairs)
    builder.gradients.extend(pairs)
    handed_out = [gradient for v, gradient in pairs if v not in steps.updated]
    return builder.build(dict.fromkeys((*graph.outputs, *handed_out))), notes


def _check_options(
    of: Any, with_respect_to: Any, head_gradients: Any, no_gradient: Any, unknown: Mapping[str, Any]
) -> None:
    """Raise BadGraph for fields nobody knows and lists that are none."""
    findings = Findings()
    known = "of, with_respect_to, head_gradients, no_gradient, unreachable, update"
    for name in unknown:
        findings.add(
            "unknown_field", f"differentiate.{name}", quoted(name), f"one of {known}", "leave it out or correct it"
        )
    for name, value in (("of", of), ("with_respect_to", with_respect_to), ("no_gradient", no_gradient)):
        names = value is None or (
            isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(v, str) for v in value)
        )
        if not names:
            findings.add("bad_request", f"differentiate.{name}", repr(value)[:80], "a list of names", "send a list")
    if not isinstance(head_gradients, Mapping):
        findings.add(
            "bad_request", "differentiate.head_gradients", repr(head_gradients)[:80], "an object from target to value",
            "send an object",
        )  # fmt: skip
    findings.settle()


def _nothing_reached(graph: Graph, targets: Sequence[str], wanted: Sequence[int]) -> None:
    if not wanted:
        found, remedy = "no floating parameter", "give weights the role parameter, or name values in with_respect_to"
    else:
        names = ", ".join(quoted(graph.values[v].name) for v in wanted[:3])
        found, remedy = f"no path from {names} to the loss", "name a loss that depends on the parameters"
    raise BadGraph.one(
        "unreachable", f"differentiate.of.{targets[0]}", found, "a loss that depends on a parameter", remedy
    )
