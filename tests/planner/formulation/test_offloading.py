"""The search for plans with copies: the bytes it begins with, and the time to pack addresses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.formulation import offloading
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.training_graph import load_model, training_graph
from planner.problem.copies import CopyProblem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Plan
from planner.request.plan_request import Request, parse_request
from planner.search import portfolio
from tests.planner.pipeline.test_offload import DEVICE, MODEL

#: Share of an arena that quick addresses waste in these tests, if they waste some.
WASTE = 0.1


@pytest.fixture(scope="module")
def request_for_copies() -> Request:
    dims = {"batch": 8, "sequence": 16}
    return parse_request({"budget": "85%", "offload": True, "dims": dims, "device": DEVICE, "iterations": 50})


@pytest.fixture(scope="module")
def step(request_for_copies: Request) -> tuple[Formulation, Plan]:
    """A training step, and a plan within its budget without copies and addresses."""
    model = MODEL.read_bytes()
    source, _ = training_graph(model, load_model(model, request_for_copies), request_for_copies)
    formulation = formulate(source, request_for_copies)
    found = portfolio.search(formulation.lowered.problem, formulation.goal, "greedy", formulation.monitor())
    plan = formulation.plan_of(found)
    assert not plan.score.bytes_over_budget
    return formulation, plan


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Budgets of searches that find the plan without copies each time."""
    found = list[int]()

    class Known:
        gains = True

        def __init__(self, copies: CopyProblem, goal: Goal, seeds: Sequence[Candidate]):
            self.seed = seeds[0]

        def prepare(self, monitor: Monitor) -> None:
            pass

        def within(self, budget_bytes: int, monitor: Monitor) -> Candidate:
            found.append(budget_bytes)
            return self.seed

    monkeypatch.setattr(offloading, "CopyChoiceSearch", Known)
    return found


@pytest.fixture
def wasteful(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the next quick addresses waste bytes, in turn, as they do once the list is empty. Packing finds none."""
    swept, answers = Formulation.swept, list[bool]()

    def with_waste(formulation: Formulation, plan: Plan, monitor: Monitor) -> Plan:
        found = swept(formulation, plan, Monitor(monitor.judge, iterations=1))
        share = WASTE if not answers or answers.pop(0) else 0.0
        return replace(found, arena_bytes=int(plan.score.peak_bytes / (1 - share)))

    monkeypatch.setattr(Formulation, "swept", with_waste)
    monkeypatch.setattr(Formulation, "packed", lambda formulation, plan, monitor: plan)
    return answers


def searched(formulation: Formulation, plan: Plan, arena_bytes: int, request: Request) -> None:
    """Search copies beside a plan whose addresses need so many bytes."""
    plain = replace(formulation.swept(plan, formulation.monitor()), arena_bytes=arena_bytes)
    offloading.with_copies_searched(formulation, plain, request, threading.Event(), 10.0)


@pytest.mark.usefixtures("wasteful")
@pytest.mark.parametrize("fits", [True, False])
def test_copies_are_first_searched_within_the_bytes_that_addresses_probably_leave(
    step: tuple[Formulation, Plan], request_for_copies: Request, fits: bool, budgets: list[int]
) -> None:
    formulation, plan = step
    budget = formulation.goal.budget_bytes or 0
    searched(formulation, plan, plan.score.peak_bytes if fits else budget + 64, request_for_copies)
    # Of a plan whose packed addresses fit, the arena says what is wasted: nothing. Else its quick addresses say it.
    assert budgets[0] == pytest.approx(budget if fits else (1 - WASTE) * budget, rel=5e-3)


@pytest.mark.usefixtures("budgets")
def test_addresses_are_packed_in_more_of_the_time_until_those_of_a_plan_fit(
    step: tuple[Formulation, Plan], request_for_copies: Request, wasteful: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    (formulation, plan), shares = step, list[float]()
    packed = offloading._packed

    def noted(planned: Formulation, plan: Plan, monitor: Monitor, share: float) -> Plan:
        shares.append(share)
        return packed(planned, plan, monitor, share)

    monkeypatch.setattr(offloading, "_packed", noted)
    wasteful += [True, True, True, False]  # of the plan without copies, then of those with
    searched(formulation, plan, plan.score.peak_bytes, request_for_copies)
    first, later = [offloading.FIRST_PACK_SHARE] * 3, [offloading.PACK_SHARE]
    assert shares[:4] == first + later and set(shares[4:]) <= set(later)
