"""Arena repair: re-plan when the addresses of a plan exceed the budget although its peak does not."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from bench.generators import layered, transformer
from graph.formats.readers import load
from planner.formulation import arena_repair
from planner.formulation.arena_repair import repair_arena, with_extra_workspace
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.problem import Choices, Csr
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Candidate, Plan
from planner.request.plan_request import parse_request
from tests.planner.drawn import drawn

pytestmark = pytest.mark.usefixtures("bounds")

DOCUMENT = json.dumps(layered(100, seed=10)).encode()
ASKED = {"budget": "70%", "planner": "greedy", "iterations": 80, "execute": "no"}


def solved(**asked: str) -> pipeline.Outcome:
    return pipeline.solve(DOCUMENT, parse_request(ASKED | asked))


def repairs(outcome: pipeline.Outcome) -> list[str]:
    return [warning for warning in outcome.report["warnings"] if warning.startswith("arena repair:")]


def test_a_plan_whose_arena_exceeds_the_budget_is_replaced_by_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found, repeated = solved(), solved()
    monkeypatch.setattr(
        arena_repair, "repair_arena", lambda question, plan, layout, *_: (question.placed(plan, layout), ())
    )
    before = solved()
    plan, loose = found.report["plan"], before.report["plan"]
    assert loose["peak_bytes"] <= loose["budget_bytes"] < loose["arena_bytes"] / 1.01 and not repairs(before)
    assert plan["arena_bytes"] <= plan["budget_bytes"] and len(repairs(found)) == 1
    assert np.array_equal(found.plan.order, repeated.plan.order)


def test_a_runtime_with_its_own_allocator_needs_no_repair() -> None:
    found = solved(runtime="ort")
    plan = found.report["plan"]
    assert plan["peak_bytes"] <= plan["budget_bytes"] < plan["arena_bytes"] and not repairs(found)


def question() -> Formulation:
    """Formulation whose baseline is within the budget."""
    return formulate(load(json.dumps(transformer(60)).encode()), parse_request({"budget": "100%", "iterations": 9}))


def as_given(question: Formulation) -> Plan:
    return question.evaluated(np.arange(question.lowered.problem.tasks), "as_given")


def test_a_plan_that_fits_is_not_replanned() -> None:
    asked = question()

    def search(question: Formulation, seed: Candidate) -> Plan:
        raise AssertionError("nothing is to be searched")

    plan, said = repair_arena(asked, as_given(asked), "fast", search, threading.Event())
    assert plan.offsets is not None and np.array_equal(plan.order, as_given(asked).order) and said == ()


def test_tasks_running_during_the_excess_are_charged_and_without_a_fit_the_first_plan_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, place, searched = question(), Formulation.placed, []

    def stacked(self: Formulation, plan: Plan, layout: str, cancel: threading.Event) -> Plan:
        """Place one instance, live for some steps, 1,000 bytes above the highest address that fits."""
        good = place(self, plan, "fast")
        assert good.offsets is not None and good.arena_bytes is not None and asked.goal.budget_bytes is not None
        offsets, lives = good.offsets.copy(), good.lifetimes
        top = asked.goal.budget_bytes * 5 // 4
        offsets[moved] = top - asked.lowered.problem.size[lives.buffer[moved]]
        return replace(good, offsets=offsets, arena_bytes=top)

    def search(tight: Formulation, seed: Candidate) -> Plan:
        searched.append(tight.lowered.problem.workspace - asked.lowered.problem.workspace)
        return tight.evaluated(seed.order, seed.planner)

    lives = place(asked, as_given(asked), "fast").lifetimes
    length = lives.stop - lives.start
    moved = int(np.flatnonzero((length > 2) & (length < 9) & (lives.writer_step >= 0))[0])
    monkeypatch.setattr(Formulation, "placed", stacked)
    plan, said = repair_arena(asked, as_given(asked), "fast", search, threading.Event())
    assert said == () and np.array_equal(plan.order, as_given(asked).order)
    first, *everywhere = searched
    searched.clear()
    stopped = threading.Event()
    stopped.set()
    repair_arena(asked, as_given(asked), "fast", search, stopped)
    assert searched == []
    assert np.flatnonzero(first).tolist() == list(range(lives.start[moved], lives.stop[moved]))
    assert [set(more.tolist()) for more in everywhere] == [
        {arena_repair.fragmentation_over_budget(asked, plan) * times} for times in arena_repair.UNIFORM_CHARGES
    ]


def test_a_charge_holds_under_every_alternative() -> None:
    problem = drawn("a>b b>c")
    table = Choices(
        np.array([0, 0]),
        np.array([0]),
        Csr.of([[], [1]]),
        np.array([3]),
        np.array([7]),
        Csr.of([[0]]),
        Csr.of([[], []]),
        np.zeros(0, np.int64),
    )
    problem = replace(problem, choices=table)
    more = np.array([5, 6, 0])
    for vector in ((0,), (1,)):
        difference = (
            resolve_choices(with_extra_workspace(problem, more), vector).workspace
            - resolve_choices(problem, vector).workspace
        )
        assert difference.tolist() == more.tolist()


def test_arena_repair_ends_with_the_requested_search_time(monkeypatch: pytest.MonkeyPatch) -> None:
    #   until      10                   each search takes all of its time: 30% of what is left at most
    #   now    0 ── 3 ── 5.1 ── ... < 10
    asked, now, seconds, place = question(), [0.0], [], Formulation.placed
    asked = replace(asked, goal=replace(asked.goal, iterations=None, seconds=80.0))
    good = place(asked, as_given(asked), "fast")

    def stacked(self: Formulation, plan: Plan, layout: str, cancel: threading.Event) -> Plan:
        assert asked.goal.budget_bytes is not None
        if layout == "best":
            now[0] += self.goal.seconds
        return replace(good, arena_bytes=asked.goal.budget_bytes * 5 // 4)

    def search(tight: Formulation, seed: Candidate) -> Plan:
        seconds.append(tight.goal.seconds)
        now[0] += tight.goal.seconds
        return tight.evaluated(seed.order, seed.planner)

    monkeypatch.setattr(Formulation, "placed", stacked)
    monkeypatch.setattr(arena_repair.time, "monotonic", lambda: now[0])
    repair_arena(asked, as_given(asked), "fast", search, threading.Event(), 10.0)
    assert len(seconds) == 1 + len(arena_repair.UNIFORM_CHARGES) and 0 < now[0] <= 10
    seconds.clear()
    now[0] = 10.0
    repair_arena(asked, as_given(asked), "fast", search, threading.Event(), 10.0)
    assert seconds == [] and now[0] == 10
