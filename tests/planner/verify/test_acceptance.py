"""Compiled acceptance of plans accepts what the checker accepts, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.layout import place
from planner.problem import Problem
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Plan
from planner.verify import acceptance, checker
from tests.planner.random_problems import random_problem

ALIGNMENT = 8


def planned(problem: Problem, goal: Goal, order: np.ndarray) -> Plan:
    plan = evaluate(problem, goal, order, "test")
    monitor = Monitor(lambda _: plan.score, iterations=10)
    offsets, arena_bytes = place("fast", plan.lifetimes, problem.size, problem.workspace[order], ALIGNMENT, monitor)
    return replace(plan, offsets=offsets, arena_bytes=arena_bytes)


def orders(problem: Problem, rng: random.Random) -> Iterator[np.ndarray]:
    """The given order, with tasks again at the end, and with tasks moved; some are illegal."""
    given = list(range(problem.tasks))
    yield np.array(given)
    yield np.array(given + rng.choices(given, k=2))
    yield np.array(given[:3] + rng.choices(given[:3], k=2) + given[3:])
    yield np.array(rng.sample(given, len(given)))
    yield np.array(given[:-1], np.int64)


def changed(plan: Plan, rng: random.Random) -> Iterator[Plan]:
    """The plan with one number changed in each of its columns."""

    def off_by_one(column: np.ndarray) -> np.ndarray:
        result = column.copy()
        if len(result):
            result[rng.randrange(len(result))] += rng.choice((-1, 1))
        return result

    lives = plan.lifetimes
    for name in ("buffer", "writer_step", "start", "stop", "taken_from"):
        yield replace(plan, lifetimes=replace(lives, **{name: off_by_one(getattr(lives, name))}))
    for name in ("read_instance", "written_instance"):
        rows = getattr(lives, name)
        yield replace(plan, lifetimes=replace(lives, **{name: replace(rows, index=off_by_one(rows.index))}))
    for name in ("peak_bytes", "cost", "bytes_over_budget"):
        yield replace(plan, score=plan.score._replace(**{name: getattr(plan.score, name) + 1}))
    yield replace(plan, step_bytes=off_by_one(plan.step_bytes))
    assert plan.offsets is not None and plan.arena_bytes is not None
    for step in (-ALIGNMENT, ALIGNMENT, 1) if len(plan.offsets) else ():
        moved = plan.offsets.copy()
        moved[rng.randrange(len(moved)) :][:1] += step
        yield replace(plan, offsets=moved)
    yield replace(plan, arena_bytes=plan.arena_bytes - 1)
    yield replace(plan, offsets=plan.offsets[:-1])


def is_legal(problem: Problem, goal: Goal, plan: Plan) -> bool:
    """What the checker says in plain Python."""
    try:
        checker.check(problem, goal, plan, ALIGNMENT)
    except (IllegalPlan, IndexError):  # columns that no plan has
        return False
    return True


def test_kernels_accept_what_the_checker_accepts_of_random_plans_and_of_changed_ones():
    rng, accepted, refused = random.Random(7), 0, 0
    for _ in range(120):
        problem = random_problem(rng, rng.randint(4, 10))
        goal = Goal(rng.choice((None, 0, 40)), strict_phases=rng.random() < 0.5, order_is_given=rng.random() < 0.5)
        for order in orders(problem, rng):
            try:
                plan = planned(problem, goal, order)
            except IllegalPlan:
                continue
            for each in (plan, *changed(plan, rng)):
                is_accepted = acceptance.is_accepted(problem, goal, each, ALIGNMENT)
                assert is_accepted == is_legal(problem, goal, each)
                accepted, refused = accepted + is_accepted, refused + (not is_accepted)
    assert accepted > 200 and refused > 2000


def test_a_large_plan_is_accepted_without_a_replay_in_python_and_refused_with_its_message(monkeypatch):
    monkeypatch.setattr(acceptance, "MIN_TASKS", 0)
    acceptance.KERNELS.compiled()
    problem = random_problem(random.Random(3), 6)
    plan = planned(problem, Goal(0), np.arange(problem.tasks))
    wrong = replace(plan, score=plan.score._replace(cost=plan.score.cost + 1))
    with pytest.raises(IllegalPlan, match="the cost is"):
        checker.check(problem, Goal(0), wrong, ALIGNMENT)

    def replay(*_: object) -> None:
        raise AssertionError("replayed in Python")

    monkeypatch.setattr(checker, "Replay", replay)
    checker.check(problem, Goal(0), plan, ALIGNMENT)


def test_kernels_that_are_loaded_check_smaller_problems_and_none_is_compiled_for_a_check(monkeypatch) -> None:
    problem = random_problem(random.Random(3), 6)
    for limit, is_loaded, is_on_disk, applies in (
        ("MIN_TASKS", True, False, True),
        ("MIN_TASKS", False, True, False),
        ("MIN_TASKS_TO_LOAD", False, True, True),
        ("MIN_TASKS_TO_LOAD", False, False, False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(acceptance, limit, problem.tasks)
            patch.setattr(type(acceptance.KERNELS), "is_compiled", lambda _, found=is_loaded: found)
            patch.setattr(type(acceptance.KERNELS), "is_on_disk", lambda _, found=is_on_disk: found)
            assert acceptance.applies(problem) is applies


def overflowing(plan: Plan) -> Iterator[Plan]:
    """The plan with numbers near 2^63, and with columns that are not of whole numbers."""
    assert plan.offsets is not None
    for far in (2**63 - 512, 2**62):
        yield replace(plan, offsets=np.append(plan.offsets[:-1], far))
    yield replace(plan, offsets=plan.offsets + 0.5)
    yield replace(plan, step_bytes=plan.step_bytes + 0.5)
    yield replace(plan, step_bytes=plan.step_bytes.astype(np.uint64) + np.uint64(2**63))
    for number in (2**64, plan.score.cost + 0.5, float("nan")):
        yield replace(plan, score=plan.score._replace(cost=number))  # type: ignore[arg-type]


def test_numbers_that_overflow_and_columns_of_other_types_are_not_accepted() -> None:
    problem = random_problem(random.Random(3), 6)
    problem = replace(problem, workspace=np.full(problem.tasks, 1024))
    plan = planned(problem, Goal(0), np.arange(problem.tasks))
    assert acceptance.is_accepted(problem, Goal(0), plan, ALIGNMENT)
    for each in overflowing(plan):
        assert not acceptance.is_accepted(problem, Goal(0), each, ALIGNMENT)
        with pytest.raises(IllegalPlan):
            checker.check(problem, Goal(0), each, ALIGNMENT)


@pytest.mark.parametrize("column", ["cost", "size"])
def test_sums_that_overflow_in_the_evaluator_too_are_left_to_python(column: str) -> None:
    problem = random_problem(random.Random(3), 6)
    large = replace(problem, **{column: np.full(len(getattr(problem, column)), 2**62)})
    plan = evaluate(large, Goal(), np.arange(problem.tasks), "test")
    assert not acceptance.is_accepted(large, Goal(), plan, ALIGNMENT)
    with pytest.raises(IllegalPlan):
        checker.check(large, Goal(), plan, ALIGNMENT)
