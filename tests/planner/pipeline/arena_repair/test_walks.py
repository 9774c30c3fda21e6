"""Walks from a plan whose addresses exceed the budget, and from one whose addresses fit."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from bench.catalogue import instances
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.pipeline.arena_repair import repair, repair_arena, walks
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.repair import with_layout
from planner.pipeline.arena_repair.walks import FLAT_CHARGE
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Plan
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from tests.planner.pipeline.arena_repair.plans import formulated, searched_plan

pytestmark = pytest.mark.usefixtures("bounds")


def test_a_search_that_was_cut_short_goes_on_from_a_plan_that_fits() -> None:
    asked = formulated(budget="80%", search_seconds=60)
    plan = asked.search("greedy", asked.monitor())
    until = time.monotonic() + 60
    ended = repair_arena(asked, plan, "fast", "auto", threading.Event(), until)
    assert asked.bytes_over_budget(ended.plan) == 0
    again = repair_arena(asked, ended.plan, "fast", "auto", threading.Event(), until, goes_on=True)
    assert again.plan.score < plan.score and asked.bytes_over_budget(again.plan) == 0


def test_under_an_iteration_limit_no_walk_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", iterations=80)
    plan = asked.search("greedy", asked.monitor())
    monkeypatch.delattr(walks, "walk_down")  # nothing is to depend on the clock
    until = time.monotonic() + 60
    first, again = (
        repair_arena(asked, plan, "fast", "auto", threading.Event(), until, goes_on=True).plan for _ in range(2)
    )
    assert np.array_equal(first.order, again.order) and first.arena_bytes == again.arena_bytes


@pytest.mark.heavy
def test_the_storage_that_ends_the_arena_is_not_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    document = next(instance.bytes for instance in instances() if instance.name == "chain40")
    request = parse_request({"budget": 6112, "iterations": 300, "execute": "no"})  # 95.5 times the alignment
    plan = pipeline.solve(document, request).report["plan"]
    monkeypatch.setattr(repair, "fill_last_unit", lambda *_: None)
    before = pipeline.solve(document, request).report["plan"]
    assert before["arena_bytes"] <= 6080 < plan["arena_bytes"] <= 6112
    assert plan["seconds"] < before["seconds"]


def test_the_last_unit_is_filled_too_where_only_a_packing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="80%", search_seconds=60)
    packed = asked.placed(asked.search("greedy", asked.monitor()), "fast")
    filled: list[Plan] = []
    swept = replace(packed, arena_bytes=2 * (packed.arena_bytes or 0))
    monkeypatch.setattr(repair, "with_layout", lambda *_: swept)
    monkeypatch.setattr(repair, "with_flat_order", lambda attempts, *_: attempts.tried(packed))
    monkeypatch.setattr(repair, "fill_last_unit", lambda attempts, plan: filled.append(plan))
    monkeypatch.setattr(repair, "walk_on", lambda *_: None)
    repair_arena(asked, packed, "fast", "auto", threading.Event(), time.monotonic() + 60)
    assert filled == [packed]


def test_by_the_clock_the_last_unit_is_filled_by_other_walks_until_addresses_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget=6112, search_seconds=60)
    plan = asked.placed(asked.evaluated(base_order(asked.lowered.problem), "as_given"), "fast")
    plan = replace(plan, score=plan.score._replace(cost=plan.score.cost + 1))  # not proven
    seeds: list[int] = []

    def walked(problem: Problem, goal: Goal, candidate: Candidate, monitor: Monitor) -> Candidate:
        seeds.append(goal.seed)
        return candidate

    def offered(attempts: Attempts, offer: Plan) -> bool:
        if attempts.best is None or (attempts.walks_by_clock and len(seeds) == 3):
            attempts.best = offer
        return True

    monkeypatch.setattr(walks.continuation, "walk_on", walked)
    monkeypatch.setattr(Attempts, "offer", offered)
    monkeypatch.setattr(Attempts, "is_over", lambda *_: False)
    for until in (time.monotonic() + 60, math.inf):
        walks.fill_last_unit(Attempts(asked, "auto", threading.Event(), until), plan)
    assert seeds == [0, 1, 2, 0]


def test_after_flat_orders_that_do_not_fit_a_walk_has_room_for_what_addresses_waste(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="70%", search_seconds=60)
    searched, charges = asked.in_arena_bytes(), list[int]()
    plan = searched_plan(asked)
    attempts = Attempts(asked, "auto", threading.Event(), time.monotonic() + 60)
    swept = with_layout(attempts, plan, "fast")
    near = replace(swept, arena_bytes=(swept.arena_bytes or 0) - asked.bytes_over_budget(swept) + 64)

    def walked(attempts: Attempts, charged: Formulation, start: Plan, reorder: bool) -> Plan:
        charges.append(int((charged.lowered.problem.workspace - searched.lowered.problem.workspace).min()))
        attempts.cancel.set()
        return start

    monkeypatch.setattr(walks, "walk", walked)
    walks.walk_down(attempts, near)
    assert charges == [int(FLAT_CHARGE * (searched.goal.budget_bytes or 0))]
