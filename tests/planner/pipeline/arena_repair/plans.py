"""Formulations and plans for the tests of arena repair."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from bench.generators import layered, transformer
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.problem.plan import Plan
from planner.request.plan_request import parse_request

DOCUMENT = json.dumps(layered(100, seed=10)).encode()
ASKED = {"budget": "70%", "planner": "greedy", "iterations": 80, "execute": "no"}


def question() -> Formulation:
    """Formulation whose baseline is within the budget."""
    return formulate(load(json.dumps(transformer(60)).encode()), parse_request({"budget": "100%", "iterations": 9}))


def formulated(**fields: object) -> Formulation:
    """Formulation of DOCUMENT."""
    return formulate(load(DOCUMENT), parse_request(fields))


def as_given(question: Formulation) -> Plan:
    return question.evaluated(np.arange(question.lowered.problem.tasks), "as_given")


def searched_plan(asked: Formulation, planner: str = "greedy") -> Plan:
    """The plan of a search that counts bytes of the arena, so that only addresses exceed the budget."""
    searched = asked.in_arena_bytes()
    return asked.plan_of(searched.search(planner, searched.monitor()).candidate)


def stacked(asked: Formulation, plan: Plan) -> tuple[Plan, int]:
    """(plan with one instance, live for some steps, above the budget by a quarter of it, that instance)."""
    good = asked.placed(plan, "fast")
    assert good.offsets is not None and asked.goal.budget_bytes is not None
    length = good.lifetimes.stop - good.lifetimes.start
    moved = int(np.flatnonzero((length > 2) & (length < 9) & (good.lifetimes.writer_step >= 0))[0])
    offsets, top = good.offsets.copy(), asked.goal.budget_bytes * 5 // 4
    offsets[moved] = top - asked.lowered.problem.size[good.lifetimes.buffer[moved]]
    return replace(good, offsets=offsets, arena_bytes=top), moved


def solved(**asked: str) -> pipeline.Outcome:
    return pipeline.solve(DOCUMENT, parse_request(ASKED | asked))


def repairs(outcome: pipeline.Outcome) -> list[str]:
    return [warning for warning in outcome.report["warnings"] if warning.startswith("arena repair:")]
