"""Plans that hold less near the budget: the same runs in another order, or other recomputation."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from planner.pipeline.arena_repair import flat
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.flat import FLAT_TRIES, near_bytes, recompute_flat, with_flat_order
from planner.pipeline.arena_repair.repair import with_layout
from planner.problem.plan import Plan
from tests.planner.pipeline.arena_repair.plans import formulated, searched_plan

pytestmark = pytest.mark.usefixtures("bounds")


@pytest.mark.parametrize("order", ["free", "given"])
def test_by_the_clock_the_same_runs_are_tried_in_a_flat_order_unless_the_order_is_given(order: str) -> None:
    asked = formulated(budget="70%", search_seconds=60, order=order)
    plan = searched_plan(asked)
    attempts = Attempts(asked, "auto", threading.Event(), time.monotonic() + 60)
    swept = with_layout(attempts, plan, "fast")
    assert asked.bytes_over_budget(swept) > 0.02 * (asked.budget_bytes or 0)
    flat = with_flat_order(attempts, swept, FLAT_TRIES)
    if order == "given":
        assert flat is swept
        return
    assert asked.bytes_over_budget(flat) == 0 and attempts.best is flat
    assert flat.score.cost == plan.score.cost and sorted(flat.order) == sorted(plan.order)
    asked.check(flat)


@pytest.mark.heavy
@pytest.mark.parametrize("order", ["free", "given"])
def test_by_the_clock_other_recomputation_is_tried_that_holds_less_near_the_budget(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = formulated(budget="70%", search_seconds=60, order=order)
    plan = searched_plan(asked)
    attempts = Attempts(asked, "auto", threading.Event(), time.monotonic() + 60)
    swept, near = with_layout(attempts, plan, "fast"), near_bytes(attempts, plan)
    assert asked.bytes_over_budget(swept) > 0.02 * (asked.budget_bytes or 0)
    flatter, walked = flat.flatter, list[list[Plan]]()

    def counted(attempts: Attempts, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
        assert walked or max(targets) < near
        walked.append(flatter(attempts, start, targets, number))
        if any(not asked.bytes_over_budget(found) for found in walked[-1]):
            attempts.cancel.set()
        return walked[-1]

    monkeypatch.setattr(flat, "flatter", counted)
    recompute_flat(attempts, swept)
    assert attempts.best is not None and not asked.bytes_over_budget(attempts.best)
    fitting = [plan for plans in walked for plan in plans if not asked.bytes_over_budget(plan)]
    assert attempts.best is min(fitting, key=lambda plan: plan.score)
    assert near_bytes(attempts, attempts.best) < near
    asked.check(attempts.best)


@pytest.mark.parametrize("order", ["free", "given"])
def test_recomputation_is_flattened_while_no_addresses_fit(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulated(budget="70%", search_seconds=60, order=order)
    plan, flattened = searched_plan(asked), list[Plan]()
    attempts = Attempts(asked, "auto", threading.Event(), time.monotonic() + 60)
    swept = with_layout(attempts, plan, "fast")

    def stopped(attempts: Attempts, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
        flattened.append(start)
        attempts.cancel.set()
        return [start, start]

    monkeypatch.setattr(flat, "flatter", stopped)
    recompute_flat(attempts, swept)
    assert flattened == [swept]
    attempts.cancel.clear()
    attempts.best = swept
    recompute_flat(attempts, swept)
    assert flattened == [swept]
