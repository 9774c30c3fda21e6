"""The search for plans with copies: the bytes it begins with, and the time to pack addresses."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from planner.formulation import offloading
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.training_graph import load_model, training_graph
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan
from planner.request.plan_request import Request, parse_request
from planner.search import portfolio
from planner.search.offload_choices import CopyChoiceSearch
from tests.planner.pipeline.test_offload import DEVICE, MODEL

#: Share that quick addresses waste in these tests.
WASTE = 0.1


@pytest.fixture(scope="module")
def request_for_copies() -> Request:
    fields = {"dims": {"batch": 16, "sequence": 32}, "device": DEVICE, "iterations": 300}
    return parse_request({"budget": "75%", "offload": True, **fields})


@pytest.fixture(scope="module")
def step(request_for_copies: Request) -> tuple[Formulation, Plan]:
    """A training step, and a plan within its budget without copies and addresses."""
    model = MODEL.read_bytes()
    source, _ = training_graph(model, load_model(model, request_for_copies), request_for_copies)
    formulation = formulate(source, request_for_copies)
    found = portfolio.search(formulation.lowered.problem, formulation.goal, "auto", formulation.monitor())
    plan = formulation.plan_of(found)
    assert not plan.score.bytes_over_budget
    return formulation, plan


@pytest.fixture
def wasteful(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Formulation.swept

    def with_waste(formulation: Formulation, plan: Plan, monitor: Monitor) -> Plan:
        found = swept(formulation, plan, monitor)
        return replace(found, arena_bytes=int(plan.score.peak_bytes / (1 - WASTE)))

    monkeypatch.setattr(Formulation, "swept", with_waste)
    monkeypatch.setattr(Formulation, "packed", lambda formulation, plan, monitor: plan)


def with_arena(formulation: Formulation, plan: Plan, arena_bytes: int) -> Plan:
    """The plan with addresses, as if they needed so many bytes."""
    return replace(formulation.swept(plan, formulation.monitor()), arena_bytes=arena_bytes)


@pytest.mark.usefixtures("wasteful")
@pytest.mark.parametrize("fits", [True, False])
def test_copies_are_first_searched_within_the_bytes_that_addresses_probably_leave(
    step: tuple[Formulation, Plan], request_for_copies: Request, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (formulation, plan), budgets = step, list[int]()
    budget, within = formulation.goal.budget_bytes or 0, CopyChoiceSearch.within

    def noted(search: CopyChoiceSearch, budget_bytes: int, monitor: Monitor) -> Any:
        budgets.append(budget_bytes)
        return within(search, budget_bytes, monitor)

    monkeypatch.setattr(CopyChoiceSearch, "within", noted)
    plain = with_arena(formulation, plan, plan.score.peak_bytes if fits else budget + 64)
    offloading.with_copies_searched(formulation, plain, request_for_copies, threading.Event(), 10.0)
    # Of a plan whose packed addresses fit, the arena says what is wasted: nothing. Else its quick addresses say it.
    assert budgets[0] == pytest.approx(budget if fits else (1 - WASTE) * budget, rel=1e-3)


@pytest.mark.usefixtures("wasteful")
def test_addresses_are_packed_in_more_of_the_time_until_those_of_a_plan_fit(
    step: tuple[Formulation, Plan], request_for_copies: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    (formulation, plan), shares, fits = step, list[float](), list[bool]()
    packed = offloading._packed

    def noted(planned: Formulation, plan: Plan, monitor: Monitor, share: float) -> Plan:
        shares.append(share)
        fits.append(not planned.bytes_over_budget(plan))
        return packed(planned, plan, monitor, share)

    monkeypatch.setattr(offloading, "_packed", noted)
    plain = with_arena(formulation, plan, plan.score.peak_bytes)
    offloading.with_copies_searched(formulation, plain, request_for_copies, threading.Event(), 10.0)
    first = fits.index(True)
    assert 0 < first < len(fits) - 1
    assert set(shares[: first + 1]) == {offloading.FIRST_PACK_SHARE}
    assert set(shares[first + 1 :]) == {offloading.PACK_SHARE}
