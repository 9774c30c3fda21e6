"""The methods that tighten a bound on time: which steps a tree over several steps is about, and when one is grown."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest

from bench.catalogue import Instance
from graph.cancellation import CancellationError, Deadline, cancellation_scope
from graph.formats.readers import load
from planner.bounds import multi_step_tree, step_conflicts, step_network
from planner.formulation.formulate import formulate
from planner.formulation.proven_bound import methods, tightening_bounds, with_lower_bound
from planner.request.plan_request import parse_request

OVERFULL = [3, 5]


@pytest.mark.parametrize(("proven", "small"), [(0, 1), (1, 1), (1, 999)])
def test_a_tree_over_overfull_steps_comes_first_and_others_have_to_prove_more_in_large_problems(
    proven: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "SMALL_TASKS", small)
    request = parse_request({"budget": "70%", "layout": "none"})
    asked = with_lower_bound(formulate(load(Instance("layered_n100_s1").bytes), request), quick=True)
    once, calls = asked.lowered.problem.single_run_ticks(), list[tuple[list[int], float | None]]()
    claimed = {**asked.bound.claims[1], "value": 2 * once, "kind": "several-moments", "proof": {}}

    def noted(model: Any, root: Any, tasks: Any, needed: Any, quantum: int, least: float | None = None, *_: Any) -> Any:
        calls.append((list(tasks), least))
        return claimed if proven and len(calls) == 1 else None

    monkeypatch.setattr(multi_step_tree, "bound", noted)
    monkeypatch.setattr(step_conflicts, "overfull_steps", lambda *_: OVERFULL)
    with cancellation_scope(Deadline(threading.Event(), time.monotonic() + 3600)):
        for _ in tightening_bounds(asked, lambda: math.inf):
            pass
        assert not calls  # no plan to prove anything of
        for _ in tightening_bounds(asked, lambda: 3 * once):
            pass
    (steps, least), *others = calls
    assert steps == OVERFULL and least is not None and 0 < least < once
    assert others and {tree for _, tree in others} == {once if proven and small == 1 else None}


def test_the_bound_over_a_set_comes_first_and_a_tree_over_several_steps_has_to_prove_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least: list[float | None] = []

    def noted(*given: Any) -> None:
        least.append(given[5])

    monkeypatch.setattr(multi_step_tree, "bound", noted)
    monkeypatch.setattr(methods.step_conflicts, "overfull_steps", lambda *_: [])
    request = parse_request({"budget": "60%", "layout": "none"})
    asked = with_lower_bound(formulate(load(Instance("lstm_T30x2").bytes), request), quick=True)
    once = asked.lowered.problem.single_run_ticks()
    with cancellation_scope(Deadline(threading.Event(), time.monotonic() + 3600)):
        first, *_, last = tightening_bounds(asked, lambda: 2 * once)
    assert first.kind == "first-of-some" and first.cost > asked.bound.cost
    _, *joint = least
    assert joint and set(joint) == {last.cost - once}


def test_no_method_begins_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = formulate(load(Instance("layered_n100_s1").bytes), parse_request({"budget": "60%", "layout": "none"}))
    monkeypatch.setattr(step_network, "base_order", lambda *_: pytest.fail("a model of the steps is made"))
    stopped = threading.Event()
    stopped.set()
    with cancellation_scope(stopped):
        assert list(tightening_bounds(asked, lambda: math.inf)) == []
        with pytest.raises(CancellationError):
            step_network.StepModel(asked.lowered.problem, asked.goal, 1)
