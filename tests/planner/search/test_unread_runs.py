"""Runs that nothing reads are removed where the order stays legal."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.algorithms.greedy.gap_closing import read_steps
from planner.errors import IllegalPlan
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from planner.search import unread_runs
from planner.search.unread_runs import without_unread_runs
from planner.verify.order_rules import check_order
from tests.planner.drawn import drawn
from tests.planner.random_problems import random_order, random_problem

FREE = Goal(strict_phases=False)


def is_legal(problem: Problem, goal: Goal, order: list[int]) -> bool:
    try:
        check_order(problem, goal, order)
    except IllegalPlan:
        return False
    return True


def shortened(problem: Problem, order: str, goal: Goal = FREE) -> str:
    tasks = np.array(["abcdef".index(task) for task in order])
    return "".join("abcdef"[task] for task in without_unread_runs(problem, goal, tasks))


def test_a_first_run_that_nothing_reads_goes_and_what_only_it_read():
    arcs = "a>b a>c c>d b>e d>e"
    assert shortened(drawn(arcs), "abcdabe") == "acdabe"
    assert shortened(drawn(arcs), "abcabcde") == "abcde"
    assert shortened(drawn(arcs), "abcde") == "abcde"  # all are read


def test_the_rounds_of_a_large_graph_are_limited(monkeypatch: pytest.MonkeyPatch):
    arcs, order = "a>b a>c c>d b>e d>e", "abcabcde"
    monkeypatch.setattr(unread_runs, "MAX_STEPS_WALKED", len(order))
    assert shortened(drawn(arcs), order) == "abcde"  # a small graph
    monkeypatch.setattr(unread_runs, "LARGE_TASKS", 4)
    once = shortened(drawn(arcs), order)
    assert len("abcde") < len(once) < len(order)


def test_a_first_run_stays_where_its_task_may_not_run_first_at_its_next_run():
    arcs, order = "a>b a>c c>d b>e d>e", "abcdabe"
    assert shortened(drawn(arcs), order, Goal(order_is_given=True)) == order
    assert shortened(drawn(arcs, backward="de"), order, Goal()) == order
    assert shortened(drawn(arcs, backward="e"), order, Goal()) == "acdabe"
    assert shortened(drawn(arcs, after_first="b>d"), order) == order


def test_random_orders_stay_legal_and_lose_every_run_that_may_go():
    rng, fewer = random.Random(5), 0
    for _ in range(2500):
        problem = random_problem(rng)
        order, goal = (
            random_order(rng, problem),
            Goal(order_is_given=rng.random() < 0.3, strict_phases=rng.random() < 0.5),
        )
        if not is_legal(problem, goal, order):
            continue
        found = without_unread_runs(problem, goal, np.array(order, np.int64)).tolist()
        before, after = (liveness.score(problem, np.array(each, np.int64), 0) for each in (order, found))
        assert is_legal(problem, goal, found) and after.cost <= before.cost and after.peak_bytes <= before.peak_bytes
        unread = ~read_steps(problem, np.array(found, np.int64), liveness.lifetimes(problem, np.array(found, np.int64)))
        assert not [k for k in np.flatnonzero(unread) if is_legal(problem, goal, found[:k] + found[k + 1 :])]
        fewer += len(found) < len(order)
    assert fewer > 100
