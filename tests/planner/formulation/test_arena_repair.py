"""Arena repair: re-plan when the addresses of a plan exceed the budget although its peak does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.catalogue import instances
from bench.generators import layered, transformer
from graph.formats.readers import load
from planner.formulation import arena_repair
from planner.formulation.arena_charges import with_extra_workspace
from planner.formulation.arena_repair import (
    EXCEEDED_PART,
    FLAT_CHARGE,
    FLAT_TRIES,
    LARGE_EXCESS,
    LARGE_TASKS,
    NEAR_EXCESS,
    NEAR_PACK,
    _Repair,
    probable_part,
    repair_arena,
)
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.problem import Choices, Csr
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Plan
from planner.request.plan_request import parse_request
from tests.graph.stopping import set_event
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
    monkeypatch.setattr(_Repair, "run", lambda *_: None)
    before = solved()
    plan, loose = found.report["plan"], before.report["plan"]
    assert loose["peak_bytes"] <= loose["budget_bytes"] < loose["arena_bytes"] and not repairs(before)
    assert (loose["status"], loose["within_budget"], loose["gap"]) == ("over_budget", False, None)
    assert before.exit_code == 1 and loose["smallest_budget_bytes"] == loose["arena_bytes"]
    assert plan["arena_bytes"] <= plan["budget_bytes"] and plan["within_budget"] and found.exit_code == 0
    assert np.array_equal(found.plan.order, repeated.plan.order)
    assert np.array_equal(found.plan.offsets, repeated.plan.offsets)


def test_a_runtime_with_its_own_allocator_needs_no_repair() -> None:
    found = solved(runtime="ort")
    plan = found.report["plan"]
    assert plan["peak_bytes"] <= plan["budget_bytes"] < plan["arena_bytes"] and not repairs(found)
    assert plan["within_budget"] and plan["needed_bytes"] == plan["peak_bytes"]


def question() -> Formulation:
    """Formulation whose baseline is within the budget."""
    return formulate(load(json.dumps(transformer(60)).encode()), parse_request({"budget": "100%", "iterations": 9}))


def as_given(question: Formulation) -> Plan:
    return question.evaluated(np.arange(question.lowered.problem.tasks), "as_given")


def test_a_plan_that_fits_is_not_replanned(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question()
    monkeypatch.delattr(_Repair, "run")  # nothing is to be searched
    found = repair_arena(asked, as_given(asked), "fast", "auto", threading.Event())
    assert found.plan.offsets is not None and np.array_equal(found.plan.order, as_given(asked).order)
    assert found.notes == ()


def test_a_search_that_was_cut_short_goes_on_from_a_plan_that_fits() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "80%", "search_seconds": 60}))
    plan = asked.search("greedy", asked.monitor())
    until = time.monotonic() + 60
    ended = repair_arena(asked, plan, "fast", "auto", threading.Event(), until)
    assert asked.bytes_over_budget(ended.plan) == 0
    again = repair_arena(asked, ended.plan, "fast", "auto", threading.Event(), until, goes_on=True)
    assert again.plan.score < plan.score and asked.bytes_over_budget(again.plan) == 0


def test_by_the_clock_an_order_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    searched = asked.in_arena_bytes()  # so that only addresses exceed the budget
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    placed, swept = list[bytes](), _Repair._with_sweeps

    def counted(repair: _Repair, plan: Plan, part: float) -> Plan:
        placed.append(plan.order.tobytes())
        return swept(repair, plan, part)

    monkeypatch.setattr(_Repair, "_with_sweeps", counted)
    monkeypatch.setattr(_Repair, "_may_flatten", lambda _: False)
    monkeypatch.setattr(_Repair, "walk_on", lambda *_: None)
    monkeypatch.setattr(_Repair, "_descend", lambda *_, **__: None)
    until = time.monotonic() + 60
    repair_arena(asked, plan, "fast", "auto", threading.Event(), until, seeds=[plan.candidate, plan.candidate])
    assert placed == [plan.order.tobytes()]


def test_time_is_kept_for_the_repair_in_proportion_to_what_the_arena_exceeds() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "80%", "search_seconds": 60}))
    order = asked.search("greedy", asked.monitor()).order
    monitor = asked.monitor()
    monitor.seconds = 0.0  # one sweep
    arena = asked.placed(asked.evaluated(order, ""), "fast", monitor).arena_bytes or 0
    part = EXCEEDED_PART * asked.lowered.problem.tasks / LARGE_TASKS

    def kept(excess: float) -> float:
        budget = int(arena / (1 + excess))
        return probable_part(replace(asked, budget_bytes=budget, goal=replace(asked.goal, budget_bytes=budget)), order)

    assert kept(0) == 0 and kept(LARGE_EXCESS / 2) == pytest.approx(part / 2, rel=1e-2)
    assert kept(LARGE_EXCESS) == kept(2 * LARGE_EXCESS) == pytest.approx(part, rel=1e-2)


def test_under_an_iteration_limit_no_walk_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "iterations": 80}))
    plan = asked.search("greedy", asked.monitor())
    monkeypatch.delattr(_Repair, "_walk_down")  # nothing is to depend on the clock
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
    monkeypatch.setattr(_Repair, "fill_last_unit", lambda *_: None)
    before = pipeline.solve(document, request).report["plan"]
    assert before["arena_bytes"] <= 6080 < plan["arena_bytes"] <= 6112
    assert plan["seconds"] < before["seconds"]


def stacked(asked: Formulation, plan: Plan) -> tuple[Plan, int]:
    """(plan with one instance, live for some steps, above the budget by a quarter of it, that instance)."""
    good = asked.placed(plan, "fast")
    assert good.offsets is not None and asked.goal.budget_bytes is not None
    length = good.lifetimes.stop - good.lifetimes.start
    moved = int(np.flatnonzero((length > 2) & (length < 9) & (good.lifetimes.writer_step >= 0))[0])
    offsets, top = good.offsets.copy(), asked.goal.budget_bytes * 5 // 4
    offsets[moved] = top - asked.lowered.problem.size[good.lifetimes.buffer[moved]]
    return replace(good, offsets=offsets, arena_bytes=top), moved


def test_tasks_running_during_the_excess_are_charged_before_all_tasks() -> None:
    asked = question()
    plan, moved = stacked(asked, as_given(asked))
    repair = _Repair(asked, "fast", "auto", threading.Event(), 0.0)
    charges = list(repair._charges(plan, lambda: plan, uniform_first=False))
    during = list(range(plan.lifetimes.start[moved], plan.lifetimes.stop[moved]))
    for charge in charges[: arena_repair.TASK_CHARGES]:
        assert np.flatnonzero(charge).tolist() == during
    excess = asked.bytes_over_budget(plan)
    assert [set(charge.tolist()) for charge in charges[arena_repair.TASK_CHARGES :]] == [
        {excess},
        {2 * excess},
        {4 * excess},  # the plan has no slack
    ]


def test_no_search_follows_a_stop_and_the_first_plan_is_kept() -> None:
    asked, stopped = question(), threading.Event()
    asked = replace(asked, budget_bytes=asked.baseline_bytes // 2)
    stopped.set()
    found = repair_arena(asked, as_given(asked), "fast", "auto", stopped)
    assert np.array_equal(found.plan.order, as_given(asked).order) and asked.bytes_over_budget(found.plan)


def test_a_plan_whose_peak_exceeds_the_budget_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "10%", "iterations": 5}))
    monkeypatch.delattr(_Repair, "run")  # nothing is to be searched
    found = repair_arena(asked, as_given(asked), "fast", "auto", threading.Event())
    assert found.plan.score.bytes_over_budget and found.plan.offsets is not None


def test_by_the_clock_a_plan_whose_peak_exceeds_the_budget_has_the_requested_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "10%", "search_seconds": 60}))
    plan = as_given(asked)
    placed = asked.placed(plan, "fast")
    wasteful = replace(placed, arena_bytes=2 * (placed.arena_bytes or 0))
    monkeypatch.setattr(_Repair, "_swept", lambda *_: wasteful)
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60)
    assert found.plan.arena_bytes == placed.arena_bytes


def test_by_the_clock_the_plan_whose_addresses_exceed_the_budget_least_is_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    searched = asked.in_arena_bytes()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    wasteful, swept = stacked(asked, plan)[0], asked.swept(plan, asked.monitor())
    assert 0 < asked.bytes_over_budget(swept) < asked.bytes_over_budget(wasteful)
    monkeypatch.setattr(_Repair, "_swept", lambda *_: wasteful)
    monkeypatch.setattr(_Repair, "_packed", lambda *_: swept)
    monkeypatch.setattr(_Repair, "walk_on", lambda *_: None)
    monkeypatch.setattr(_Repair, "_descend", lambda *_, **__: None)
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60)
    assert asked.bytes_over_budget(found.plan) == asked.bytes_over_budget(swept)


def test_by_the_clock_plans_that_nearly_fit_are_packed_in_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    searched, packed = asked.in_arena_bytes(), list[tuple[int, float]]()
    slow, quick = (searched.search(name, searched.monitor()) for name in ("greedy", "moment"))
    swept = _Repair._with_sweeps

    def placed(repair: _Repair, plan: Plan, part: float) -> Plan:
        return replace(swept(repair, plan, part), arena_bytes=int((asked.budget_bytes or 0) * (1 + NEAR_EXCESS / 2)))

    def counted(repair: _Repair, plan: Plan) -> Plan:
        packed.append((plan.score.cost, repair.shares.pack))
        assert until - repair.until == pytest.approx((1 - NEAR_PACK) * 60, rel=0.2)  # left to what follows
        return plan

    monkeypatch.setattr(_Repair, "_with_sweeps", placed)
    monkeypatch.setattr(_Repair, "_packed", counted)
    monkeypatch.setattr(_Repair, "_may_flatten", lambda _: False)
    monkeypatch.setattr(_Repair, "walk_on", lambda repair, _: ends.append(repair.until))
    monkeypatch.setattr(_Repair, "_descend", lambda *_, **__: None)
    until, ends = time.monotonic() + 60, list[float]()
    repair_arena(asked, asked.plan_of(slow.candidate), "fast", "auto", threading.Event(), until, [quick.candidate])
    assert packed == [(quick.score.cost, NEAR_PACK), (slow.score.cost, NEAR_PACK)] and quick.score < slow.score
    assert ends == [until]


@pytest.mark.parametrize("order", ["free", "given"])
def test_by_the_clock_the_same_runs_are_tried_in_a_flat_order_unless_the_order_is_given(order: str) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60, "order": order}))
    searched = asked.in_arena_bytes()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    repair = _Repair(asked, "fast", "auto", threading.Event(), time.monotonic() + 60)
    swept = repair.first(plan)
    assert asked.bytes_over_budget(swept) > 0.02 * (asked.budget_bytes or 0)
    flat = repair._with_flat_order(swept, FLAT_TRIES)
    if order == "given":
        assert flat is swept
        return
    assert asked.bytes_over_budget(flat) == 0 and repair.best is flat
    assert flat.score.cost == plan.score.cost and sorted(flat.order) == sorted(plan.order)
    asked.check(flat)


@pytest.mark.heavy
def test_by_the_clock_other_recomputation_is_tried_that_holds_less_near_the_budget_if_the_order_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60, "order": "given"}))
    searched = asked.in_arena_bytes()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    repair = _Repair(asked, "fast", "auto", threading.Event(), time.monotonic() + 60)
    swept, near = repair.first(plan), repair._near_bytes(plan)
    assert asked.bytes_over_budget(swept) > 0.02 * (asked.budget_bytes or 0)
    flatter, walks = _Repair._flatter, list[list[Plan]]()

    def counted(repair: _Repair, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
        assert walks or max(targets) < near
        walks.append(flatter(repair, start, targets, number))
        if any(not asked.bytes_over_budget(found) for found in walks[-1]):
            repair.cancel.set()
        return walks[-1]

    monkeypatch.setattr(_Repair, "_flatter", counted)
    repair._flatten_down(swept)
    assert repair.best is not None and not asked.bytes_over_budget(repair.best)
    fitting = [plan for plans in walks for plan in plans if not asked.bytes_over_budget(plan)]
    assert repair.best is min(fitting, key=lambda plan: plan.score)
    assert repair._near_bytes(repair.best) < near
    asked.check(repair.best)


@pytest.mark.parametrize("order", ["free", "given"])
def test_recomputation_is_flattened_only_with_the_order_given(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60, "order": order}))
    searched, flattened = asked.in_arena_bytes(), list[Plan]()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    repair = _Repair(asked, "fast", "auto", threading.Event(), time.monotonic() + 60)
    swept = repair.first(plan)

    def stopped(repair: _Repair, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
        flattened.append(start)
        repair.cancel.set()
        return [start, start]

    monkeypatch.setattr(_Repair, "_flatter", stopped)
    repair._flatten_down(swept)
    assert flattened == ([swept] if order == "given" else [])


def test_after_flat_orders_that_do_not_fit_a_walk_has_room_for_what_addresses_waste(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    searched, charges = asked.in_arena_bytes(), list[int]()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    repair = _Repair(asked, "fast", "auto", threading.Event(), time.monotonic() + 60)
    swept = repair.first(plan)
    near = replace(swept, arena_bytes=(swept.arena_bytes or 0) - asked.bytes_over_budget(swept) + 64)

    def walked(repair: _Repair, charged: Formulation, start: Plan, reorder: bool) -> Plan:
        charges.append(int((charged.lowered.problem.workspace - searched.lowered.problem.workspace).min()))
        repair.cancel.set()
        return start

    monkeypatch.setattr(_Repair, "_walk", walked)
    repair._walk_down(near)
    assert charges == [int(FLAT_CHARGE * (searched.goal.budget_bytes or 0))]


def test_by_the_clock_gaps_are_closed_in_the_plan_of_a_large_graph_until_its_addresses_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    searched = asked.in_arena_bytes()
    plan = asked.plan_of(searched.search("greedy", searched.monitor()).candidate)
    monkeypatch.setattr(_Repair, "walk_on", lambda *_: None)
    monkeypatch.setattr(_Repair, "_descend", lambda *_, **__: None)
    monkeypatch.setattr(_Repair, "_packed", lambda _, plan: plan)

    def repaired() -> Plan:
        return repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60).plan

    assert asked.bytes_over_budget(repaired())
    monkeypatch.setattr(arena_repair, "LOWERED_TASKS", 1)
    charges, lowered = list[int](), _Repair._lowered

    def counted(repair: _Repair, charged: Formulation, start: Plan) -> Plan:
        charges.append(int(charged.lowered.problem.workspace.min()))
        return lowered(repair, charged, start)

    monkeypatch.setattr(_Repair, "_lowered", counted)
    best = repaired()
    assert not asked.bytes_over_budget(best) and best.score.cost > plan.score.cost
    assert 1 < len(charges) <= arena_repair.MAX_LOWERED and charges[-1] < max(charges)  # bisected back


def test_where_time_is_over_the_known_plan_with_the_lowest_peak_is_placed() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "85%", "search_seconds": 60}))
    tight = formulate(load(DOCUMENT), parse_request({"budget": 0, "search_seconds": 60})).in_arena_bytes()
    rounded, low = asked.in_arena_bytes(), tight.search("greedy", tight.monitor()).candidate
    plan = asked.plan_of(rounded.search("greedy", rounded.monitor()).candidate)
    known = [plan.candidate, low, plan.candidate]
    found = repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() - 1, known).plan
    assert not asked.bytes_over_budget(found) and np.array_equal(found.order, low.order)


def test_a_known_plan_whose_addresses_fit_replaces_one_whose_do_not() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "planner": "greedy", "iterations": 80}))
    rounded, known = asked.in_arena_bytes(), solved()
    first = asked.plan_of(rounded.search("greedy", rounded.monitor()).candidate)
    assert known.report["plan"]["within_budget"] and asked.bytes_over_budget(asked.placed(first, "fast"))
    found = repair_arena(asked, first, "fast", "as_given", threading.Event(), seeds=[known.plan.candidate])
    assert asked.bytes_over_budget(found.plan) == 0


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


def test_arena_repair_ends_with_the_requested_search_time() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    rounded = asked.in_arena_bytes()
    first = rounded.search("greedy", rounded.monitor()).candidate
    began = time.process_time()  # which other processes of a busy machine do not add to
    repair_arena(asked, asked.plan_of(first), "fast", "auto", threading.Event(), time.monotonic() + 1.0)
    assert time.process_time() - began < 3.0


def test_the_whole_of_a_graph_with_odd_sizes_fits_by_construction() -> None:
    for seed in range(4):
        document = json.dumps(layered(40, seed=seed)).encode()
        for order in ("free", "given"):
            fields = {"budget": "100%", "order": order, "iterations": 5, "execute": "no"}
            plan = pipeline.solve(document, parse_request(fields)).report["plan"]
            assert plan["status"] == "proven" and plan["arena_bytes"] <= plan["budget_bytes"], (seed, order)


def test_a_stopped_search_of_a_large_graph_is_placed_once_and_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "80%", "search_seconds": 60}))
    plan = asked.search("greedy", asked.monitor())
    stopped = asked.monitor(cancel=set_event())
    monkeypatch.delattr(Formulation, "evaluated")
    monkeypatch.delattr(Formulation, "placed")
    monkeypatch.setattr(arena_repair.portfolio, "MAX_SLOW_TASKS", 10)
    until = time.monotonic() + 60
    found = repair_arena(asked, plan, "best", "auto", set_event(), until).plan
    assert found.order is plan.order and found.arena_bytes == asked.swept(plan, stopped).arena_bytes
    asked.check(found)


def test_a_layout_that_the_clock_ends_is_told() -> None:
    asked = formulate(load(DOCUMENT), parse_request({"budget": "70%", "search_seconds": 60}))
    first = asked.plan_of(solved().plan.candidate)
    stopped = [repair_arena(asked, first, layout, "as_given", threading.Event(), 0.0) for layout in ("fast", "best")]
    assert [found.stopped_by_clock for found in stopped] == [True, True]
