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
from graph.ir import Graph
from planner.advice import advice, checkpoint_advice
from planner.advice.techniques import TechniqueContext
from planner.formulation.formulation import Formulation
from planner.formulation.training_graph import gradient_targets
from planner.lowering.realize import NodeSequence
from planner.request.plan_request import Request

#: Sections of a report that take long for a large graph.
SLOW_SECTIONS = ("explain", "source", "graph")
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


def graph_documents(request: Request, source: Graph, runs: NodeSequence) -> dict[str, Any]:
    """Documents of the planned and of the rewritten graph, if the request returns them."""
    graphs: dict[str, Callable[[], Graph]] = {"source": lambda: source, "graph": lambda: runs.rewritten}
    return {name: document(graph()) for name, graph in graphs.items() if name in request.returns}
