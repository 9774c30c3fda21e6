"""Plans that the search has found already are tried before new ones."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from planner import layout
from planner.pipeline.arena_repair import flat, repair, repair_arena
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.descent import Descent
from planner.pipeline.arena_repair.known import NEAR_EXCESS, NEAR_PACK
from planner.pipeline.arena_repair.repair import TRIM_PART
from planner.problem.plan import Plan
from tests.planner.pipeline.arena_repair.plans import formulated, searched_plan, solved

pytestmark = pytest.mark.usefixtures("bounds")


def test_by_the_clock_an_order_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", search_seconds=60)
    plan = searched_plan(asked)
    placed, swept = list[bytes](), Attempts.with_sweeps

    def counted(attempts: Attempts, plan: Plan, part: float) -> Plan:
        placed.append(plan.order.tobytes())
        return swept(attempts, plan, part)

    monkeypatch.setattr(Attempts, "with_sweeps", counted)
    monkeypatch.setattr(Attempts, "packed", lambda _, plan: plan)
    monkeypatch.setattr(flat, "may_reorder", lambda _: False)
    for name in ("fill_last_unit", "recompute_flat", "walk_on"):
        monkeypatch.setattr(repair, name, lambda *_: None)
    monkeypatch.setattr(Descent, "run", lambda *_, **__: None)
    until = time.monotonic() + 60
    repair_arena(asked, plan, "fast", "auto", threading.Event(), until, seeds=[plan.candidate, plan.candidate])
    assert placed == [plan.order.tobytes()]


def test_by_the_clock_plans_that_nearly_fit_are_packed_in_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", search_seconds=60)
    slow, quick = (searched_plan(asked, name) for name in ("greedy", "moment"))
    packed, swept = list[tuple[int, float]](), Attempts.with_sweeps

    def placed(attempts: Attempts, plan: Plan, part: float) -> Plan:
        return replace(swept(attempts, plan, part), arena_bytes=int((asked.budget_bytes or 0) * (1 + NEAR_EXCESS / 2)))

    def counted(attempts: Attempts, plan: Plan) -> Plan:
        packed.append((plan.score.cost, attempts.shares.pack))
        left = (1 - TRIM_PART) * (1 - NEAR_PACK) * 60
        assert until - TRIM_PART * 60 - attempts.until == pytest.approx(left, rel=0.2)  # left to what follows
        return plan

    monkeypatch.setattr(Attempts, "with_sweeps", placed)
    monkeypatch.setattr(Attempts, "packed", counted)
    monkeypatch.setattr(flat, "may_reorder", lambda _: False)
    monkeypatch.setattr(repair, "recompute_flat", lambda *_: False)
    monkeypatch.setattr(repair, "walk_on", lambda attempts, _: ends.append(attempts.until))
    monkeypatch.setattr(Descent, "run", lambda *_, **__: None)
    until, ends = time.monotonic() + 60, list[float]()
    repair_arena(asked, slow, "fast", "auto", threading.Event(), until, [quick.candidate])
    assert packed == [(quick.score.cost, NEAR_PACK), (slow.score.cost, NEAR_PACK)] and quick.score < slow.score
    assert ends == [pytest.approx(until - TRIM_PART * 60, abs=1)]


def test_where_time_is_over_the_known_plan_with_the_lowest_peak_is_placed() -> None:
    asked = formulated(budget="85%", search_seconds=60)
    tight = formulated(budget=0, search_seconds=60).in_arena_bytes()
    plan, low = searched_plan(asked), tight.search("greedy", tight.monitor()).candidate
    known = [plan.candidate, low, plan.candidate]
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() - 1, known).plan
    assert not asked.bytes_over_budget(found) and np.array_equal(found.order, low.order)


def test_a_known_plan_whose_addresses_fit_replaces_one_whose_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Trimming and repairs of packings find addresses that sweeps of the same order do not.
    monkeypatch.setattr(repair, "trim", lambda *_: None)
    monkeypatch.setattr(layout, "REPAIR_MOVES", 0)
    asked = formulated(budget="70%", planner="greedy", iterations=80)
    first, known = searched_plan(asked), solved()
    assert known.report["plan"]["within_budget"] and asked.bytes_over_budget(asked.placed(first, "fast"))
    found = repair_arena(asked, first, "fast", "as_given", threading.Event(), seeds=[known.plan.candidate])
    assert asked.bytes_over_budget(found.plan) == 0
