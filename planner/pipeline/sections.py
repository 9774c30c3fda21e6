"""Optional sections of a report: each is made when the request has a field for it."""

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
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import advice, checkpoint_advice, techniques
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation, with_lower_bound
from planner.formulation.training_graph import gradient_targets, load_model, training_graph
from planner.pipeline.progress import SolveStages
from planner.request.plan_request import Request
from planner.verify.checker import check

NO_TIME_FOR_ADVICE = "stopped before there was advice on other means"


@dataclass(frozen=True, eq=False, slots=True)
class SectionInputs:
    """What sections are made from: the model and its graphs before and after planning."""

    model: bytes | Graph
    forward: Graph
    source: Graph
    rewritten: Graph
    question: Formulation
    request: Request
    limits: Limits | None
    events: Sequence[GradientEvent]


def optional_sections(solved: SectionInputs, cancel: threading.Event) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(sections by name, warnings about those that are left out because `cancel` is set)."""
    request = solved.request
    sections = graph_sections(solved.question, solved.rewritten, request, cancel)
    if request.advise:
        sections |= unless_cancelled(cancel, lambda _: _techniques(solved, cancel), dict[str, Any]())
    if request.gradient_events:
        sections["gradients"] = gradient_report(solved.source, solved.events, gradient_targets(request))
    return sections, (NO_TIME_FOR_ADVICE,) if request.advise and "advice" not in sections else ()


def graph_sections(
    question: Formulation, rewritten: Graph, request: Request, cancel: threading.Event
) -> dict[str, Any]:
    """Sections about one planned graph: buffer sharing, checkpoint advice."""
    sections: dict[str, Any] = {}
    if request.share_buffers:
        sections["sharing"] = sharing.sharing_report(rewritten)
    if request.advise_checkpoints:
        problem = question.lowered.problem
        given = np.flatnonzero(problem.checkpoint)
        found = checkpoint_advice.compare_checkpoints(problem, question.goal, question.monitor(cancel=cancel), given)
        sections["checkpoint_advice"] = checkpoint_advice.checkpoint_section(question, found)
    return sections


def _techniques(solved: SectionInputs, cancel: threading.Event) -> dict[str, Any]:
    """Other techniques that lower the peak, each with a plan of its own."""
    solve = partial(_planned, solved.model, solved.limits, cancel)
    asked = techniques.TechniqueContext(
        solved.model, solved.forward, solved.source, solved.request, solved.limits, solve, cancel
    )
    return {"advice": advice.advice_section(solved.question, asked)}


def _planned(
    model: bytes | Graph, limits: Limits | None, cancel: threading.Event, request: Request
) -> techniques.TechniquePlan:
    """The model planned under another request, checked; no addresses, no rewriting."""
    source, _ = training_graph(model, load_model(model, request, limits), request)
    question = with_lower_bound(formulate(source, request), quick=True)
    plan = SolveStages(None, cancel).search(question, request.planner)
    check(question.lowered.problem, question.goal, plan, names=question.names())
    return techniques.TechniquePlan(question, plan)
