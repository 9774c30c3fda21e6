"""The bound that a thread tightens beside a search gives way to the repair of addresses, and may find the plan."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from bench.catalogue import Instance
from graph.cancellation import CancellationError, Deadline, check_cancelled
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.proven_bound.findings import Findings
from planner.pipeline import bound_beside
from planner.pipeline.bound_beside import BoundBeside
from planner.pipeline.solve_stages import OF_BOUND, SolveStages
from planner.problem.monitor import CostBound
from planner.request.plan_request import parse_request


@pytest.mark.parametrize(("planner", "is_bound_first"), [("auto", False), ("auto", True), ("segments", False)])
def test_an_order_of_the_bound_ends_a_search_of_all_planners_once_it_is_proven(
    planner: str, is_bound_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = parse_request({"budget": "60%", "layout": "none", "search_seconds": 60})
    formulation = formulate(load(Instance("chain40").bytes), request)
    plan = formulation.search("segments", formulation.monitor())
    assert not plan.score.bytes_over_budget

    is_bounded = threading.Event()

    def finding(given: Formulation, _: object, findings: Findings) -> Iterator[LowerBound]:
        bound = replace(given.bound, cost=plan.score.cost)
        if is_bound_first:
            yield bound
        findings.offer(given, plan.order, math.inf)
        yield bound
        is_bounded.set()

    def bound_beside_search(*arguments: Any) -> BoundBeside:
        beside = begin_bound(*arguments)
        assert is_bounded.wait(60)  # a search with a plan as good would end the thread before it offers the order
        return beside

    monkeypatch.setattr(bound_beside, "tightening_bounds", finding)
    monkeypatch.setattr(bound_beside, "certified", lambda given, bound, _: replace(given, bound=bound))
    stages = SolveStages(None, threading.Event(), False)
    begin_bound = stages._bound_beside
    monkeypatch.setattr(stages, "_bound_beside", bound_beside_search)
    stages.start_clock(formulation)
    assert stages.search(formulation, planner).score <= plan.score
    assert stages.beside is not None and not stages.stopped_by_clock
    assert stages.beside.shared.is_met == (planner == "auto")
    # Arena repair tries the addresses of the bound's order.
    assert any(candidate.planner == OF_BOUND for candidate in stages.incumbents) == (planner == "auto")


def test_a_paused_bound_makes_no_progress_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0

    def endless(formulation: Formulation, *_: object) -> Iterator[LowerBound]:
        nonlocal checks
        with suppress(CancellationError):
            while True:
                check_cancelled()
                checks += 1
                time.sleep(0.001)
                yield formulation.bound

    monkeypatch.setattr(bound_beside, "tightening_bounds", endless)
    formulation = formulate(load(Instance("chain40").bytes), parse_request({"budget": 0.9, "order": "given"}))
    beside = BoundBeside(formulation, Deadline(threading.Event(), time.monotonic() + 60), CostBound())
    with beside.paused():
        time.sleep(0.02)  # ends the check that had begun
        before = checks
        time.sleep(0.05)
        assert checks == before
    while checks == before:
        time.sleep(0.001)
    beside.end()
    beside.tightened(formulation, formulation.baseline)
