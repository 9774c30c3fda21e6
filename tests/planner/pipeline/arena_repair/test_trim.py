"""Recomputations that the addresses of a plan do not need are dropped from it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair import repair, trim
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.charges import charged_alike
from planner.problem.columns import frozen
from planner.problem.plan import Plan
from tests.planner.pipeline.arena_repair.plans import formulated, repairs, searched_plan, solved

pytestmark = pytest.mark.usefixtures("bounds")


def loose_plan(asked: Formulation) -> Plan:
    """A plan whose addresses fit since it was searched for a fifth less than the budget."""
    charged = charged_alike(asked.in_arena_bytes(), (asked.budget_bytes or 0) // 5)
    loose = asked.plan_of(charged.search("greedy", charged.monitor()).candidate)
    placed = asked.placed(loose, "fast")
    assert not asked.bytes_over_budget(placed)
    return placed


def attempts_with(asked: Formulation, best: Plan, seconds: float = 600) -> Attempts:
    attempts = Attempts(asked, "auto", threading.Event(), time.monotonic() + seconds)
    attempts.best = best
    return attempts


def test_recomputations_are_dropped_until_addresses_need_all_that_are_left() -> None:
    asked = formulated(budget="70%", iterations=80)
    first, loose = searched_plan(asked), loose_plan(asked)
    attempts = attempts_with(asked, loose)
    trim.trim(attempts, first)
    best = attempts.best
    assert best is not None and best.score.cost < loose.score.cost and not asked.bytes_over_budget(best)
    asked.check(best)
    assert first.score.cost <= best.score.cost
    again = attempts_with(asked, best)
    trim.trim(again, first)
    assert again.best is best
    same = attempts_with(asked, loose)
    trim.trim(same, first)
    assert same.best is not None and np.array_equal(same.best.order, best.order)
    assert np.array_equal(same.best.offsets, best.offsets)


def test_nothing_is_dropped_after_a_stop_or_from_a_plan_as_cheap_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", iterations=80)
    first, loose = searched_plan(asked), loose_plan(asked)
    stopped = attempts_with(asked, loose)
    stopped.cancel.set()
    trim.trim(stopped, first)
    assert stopped.best is loose
    equal = attempts_with(asked, loose)
    trim.trim(equal, replace(first, score=loose.score))
    assert equal.best is loose
    none = attempts_with(asked, loose)
    none.best = None
    trim.trim(none, first)
    assert none.best is None
    monkeypatch.setattr(trim, "MAX_TRIED", asked.lowered.problem.tasks**2 - 1)
    without_tries = attempts_with(asked, loose)
    trim.trim(without_tries, first)
    assert without_tries.best is loose


@pytest.mark.parametrize("why", ["is_large", "has_engines"])
def test_large_graphs_and_engines_side_by_side_are_left_alone(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", iterations=80)
    first, loose = searched_plan(asked), loose_plan(asked)
    attempts = attempts_with(asked, loose)
    monkeypatch.setattr(Attempts if why == "is_large" else Formulation, why, True)
    trim.trim(attempts, first)
    assert attempts.best is loose


def test_a_trim_that_the_clock_ends_is_told() -> None:
    asked = formulated(budget="70%", search_seconds=60)
    first, loose = searched_plan(asked), loose_plan(asked)
    whole, cut = attempts_with(asked, loose), attempts_with(asked, loose, seconds=0)
    for attempts in (whole, cut):
        trim.trim(attempts, first)
    assert not whole.stopped_by_clock and whole.best is not loose
    assert cut.stopped_by_clock and cut.best is loose


def test_recomputations_that_cost_nothing_are_dropped_and_each_try_starts_from_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="70%", iterations=80)
    problem = asked.lowered.problem
    cost = np.where(np.random.default_rng(0).random(problem.tasks) < 0.6, 0, problem.cost)
    asked = replace(asked, lowered=replace(asked.lowered, problem=replace(problem, cost=frozen(cost)), known={}))
    packed_from, tried = Formulation.packed_from, list[bool]()

    def compared(self: Formulation, plan: Plan, known: Plan, origin: np.ndarray, *limits: Any) -> Plan | None:
        tried.append(np.array_equal(known.order[origin], plan.order))
        return packed_from(self, plan, known, origin, *limits)

    monkeypatch.setattr(Formulation, "packed_from", compared)
    first, loose = searched_plan(asked), loose_plan(asked)
    attempts = attempts_with(asked, loose)
    trim.trim(attempts, first)
    assert len(tried) > 50 and all(tried)
    assert attempts.best is not None and attempts.best.score.cost < loose.score.cost
    asked.check(attempts.best)


def test_the_repair_trims_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = solved()
    monkeypatch.setattr(repair, "trim", lambda attempts, first: None)
    whole = solved()
    assert repairs(whole) and repairs(trimmed)
    assert trimmed.report["plan"]["overhead"] < whole.report["plan"]["overhead"]
