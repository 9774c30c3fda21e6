"""Optional sections of a report, each computed when its request field is set."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.buffer_sharing import sharing
from graph.cancellation import unless_cancelled
from graph.formats.native.writer import document
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import advice, checkpoint_advice, techniques
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation, with_lower_bound
from planner.formulation.training_graph import gradient_targets, load_model, training_graph
from planner.pipeline.progress import SolveStages
from planner.request.plan_request import Request
from planner.verify.checker import check

NO_TIME_FOR_ADVICE = "stopped before the advice section was computed"


@dataclass(frozen=True, eq=False, slots=True)
class SectionInputs:
    """Inputs of the sections: the model, and its graphs before and after planning."""

    model: bytes | Graph
    forward: Graph
    source: Graph
    rewritten: Graph
    formulation: Formulation
    request: Request
    limits: Limits | None
    events: Sequence[GradientEvent]


def optional_sections(solved: SectionInputs, cancel: threading.Event) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(sections by name, warnings about sections left out because `cancel` is set)."""
    request = solved.request
    sections = graph_sections(solved.formulation, solved.rewritten, request, cancel)
    if request.advise:
        sections |= unless_cancelled(cancel, lambda _: _techniques(solved, cancel), dict[str, Any]())
    if request.gradient_events:
        sections["gradients"] = gradient_report(solved.source, solved.events, gradient_targets(request))
    return sections, (NO_TIME_FOR_ADVICE,) if request.advise and "advice" not in sections else ()


def graph_sections(
    formulation: Formulation, rewritten: Graph, request: Request, cancel: threading.Event
) -> dict[str, Any]:
    """Sections about one planned graph: buffer sharing and checkpoint advice."""
    sections: dict[str, Any] = {}
    if request.share_buffers:
        sections["sharing"] = sharing.sharing_report(rewritten)
    if request.advise_checkpoints:
        problem = formulation.lowered.problem
        given = np.flatnonzero(problem.checkpoint)
        comparison = checkpoint_advice.compare_checkpoints(
            problem, formulation.goal, formulation.monitor(cancel=cancel), given
        )
        sections["checkpoint_advice"] = checkpoint_advice.checkpoint_section(formulation, comparison)
    return sections


def graph_documents(request: Request, source: Graph, rewritten: Graph) -> dict[str, Any]:
    """Documents of the planned and of the rewritten graph, if the request returns them."""
    graphs = {"source": source, "graph": rewritten}
    return {name: document(graph) for name, graph in graphs.items() if name in request.returns}


def _techniques(solved: SectionInputs, cancel: threading.Event) -> dict[str, Any]:
    """Section `advice`: other techniques that lower the peak, each with its own plan."""
    solve = partial(_planned, solved.model, solved.limits, cancel)
    context = techniques.TechniqueContext(
        solved.model, solved.forward, solved.source, solved.request, solved.limits, solve, cancel
    )
    return {"advice": advice.advice_section(solved.formulation, context)}


def _planned(
    model: bytes | Graph, limits: Limits | None, cancel: threading.Event, request: Request
) -> techniques.TechniquePlan:
    """Plan the model under another request and check the plan, without layout or rewrite."""
    source, _ = training_graph(model, load_model(model, request, limits), request)
    formulation = with_lower_bound(formulate(source, request), quick=True)
    plan = SolveStages(None, cancel).search(formulation, request.planner)
    check(formulation.lowered.problem, formulation.goal, plan, names=formulation.names())
    return techniques.TechniquePlan(formulation, plan)
