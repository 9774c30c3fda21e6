"""Optional sections of a report, each computed when its request field is set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.buffer_sharing import sharing
from graph.cancellation import unless_cancelled
from graph.formats.native.writer import document
from planner.advice import advice, checkpoint_advice
from planner.advice.techniques import TechniqueContext
from planner.formulation.formulation import Formulation
from planner.formulation.training_graph import gradient_targets
from planner.lowering.realize import NodeSequence
from planner.request.plan_request import Request

#: Sections of a report that take long for a large graph: their seconds for each second that formulating it took.
SLOW_SECTIONS = {"explain": 0.5, "source": 2.2, "graph": 3.2}
NO_TIME_FOR_ADVICE = "stopped before the advice section was computed"


def optional_sections(
    formulation: Formulation, runs: NodeSequence, events: Sequence[GradientEvent], context: TechniqueContext
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(sections by name, warnings about sections left out because `context.cancel` is set)."""
    request, cancel = context.request, context.cancel
    sections = graph_sections(formulation, runs, request, cancel)
    if request.advise:
        sections |= unless_cancelled(
            cancel, lambda _: {"advice": advice.advice_section(formulation, context)}, dict[str, Any]()
        )
    if request.gradient_events:
        sections["gradients"] = gradient_report(context.source, events, gradient_targets(request))
    return sections, (NO_TIME_FOR_ADVICE,) if request.advise and "advice" not in sections else ()


def graph_sections(
    formulation: Formulation, runs: NodeSequence, request: Request, cancel: threading.Event
) -> dict[str, Any]:
    """Sections about one planned graph: buffer sharing and checkpoint advice."""
    sections: dict[str, Any] = {}
    if request.share_buffers:
        sections["sharing"] = sharing.sharing_report(runs.rewritten)
    if request.advise_checkpoints:
        problem = formulation.lowered.problem
        given = np.flatnonzero(problem.checkpoint)
        comparison = checkpoint_advice.compare_checkpoints(
            problem, formulation.goal, formulation.monitor(cancel=cancel), given
        )
        sections["checkpoint_advice"] = checkpoint_advice.checkpoint_section(formulation, comparison)
    return sections


def slow_sections_part(request: Request, is_source_ready: bool) -> float:
    """Seconds of the slow sections that the request returns, for each second that formulating the graph took."""
    made = [name for name in SLOW_SECTIONS if name in request.returns and not (name == "source" and is_source_ready)]
    return sum(SLOW_SECTIONS[name] for name in made)


def graph_documents(request: Request, source: Callable[[], dict[str, Any]], runs: NodeSequence) -> dict[str, Any]:
    """Documents of the planned and of the rewritten graph, if the request returns them; `source` makes the first."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {"source": source, "graph": lambda: document(runs.rewritten)}
    return {name: make() for name, make in makers.items() if name in request.returns}
