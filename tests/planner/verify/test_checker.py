"""The checker refuses what may not run, and says which step, task and buffer."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.problem import FORBID, Csr, Problem, liveness
from planner.problem.plan import Goal, Plan
from planner.verify.checker import DisplayNames, check, check_order
from tests.planner.drawn import drawn, order_of, problem_of


def refusal(problem: Problem, order: str, goal: Goal | None = None) -> str:
    with pytest.raises(IllegalPlan) as caught:
        check_order(problem, goal or Goal(), order_of(order).tolist() if order else [])
    return str(caught.value)


def plan_of(problem: Problem, order: str) -> Plan:
    array = order_of(order)
    lifetimes = liveness.lifetimes(problem, array)
    return Plan(
        array, lifetimes, liveness.profile(problem, array, lifetimes), liveness.score(problem, array, 0), "test", 0
    )


def test_a_read_before_its_write_names_both_tasks_and_the_buffer():
    assert refusal(drawn("a>b"), "ba") == ("step 0: task 1 reads buffer 0, which does not exist yet; run task 0 first")


def test_a_shape_cannot_be_read_before_its_buffer_is_there():
    problem = problem_of([[], []], [[0], [1]], shape_reads=[[], [0]])
    assert "step 0: task 1 reads buffer 0" in refusal(problem, "ba")


def test_every_task_runs():
    assert refusal(drawn("a>b"), "a").startswith("step 1: the order ends and task 1 has not run")


def test_tasks_that_must_not_repeat_run_once():
    assert "step 2: task 0 is recomputed" in refusal(drawn("a>b", never="a"), "aba")
    forbidden = problem_of([[]], [[0]], recompute=[FORBID])
    assert "step 1: task 0 is recomputed" in refusal(forbidden, "aa")


def test_all_runs_come_before_those_of_what_is_after_every():
    problem = drawn("a b", after_every="a>b")
    check_order(problem, Goal(), order_of("aab").tolist())
    assert "step 2: task 0 runs after task 1, which ran at step 1" in refusal(problem, "aba")


def test_first_runs_alone_obey_after_first():
    problem = drawn("a b", after_first="a>b")
    check_order(problem, Goal(), order_of("aba").tolist())
    assert "step 0: the first run of task 1 precedes that of task 0" in refusal(problem, "bab")


def test_the_producer_runs_before_other_writers():
    problem = problem_of([[], []], [[0], [0]])
    assert "before its producer task 0 ran" in refusal(problem, "ba")


def test_strict_phases_end_before_the_next_begins_but_repeats_are_free():
    problem = drawn("a b c", backward="c")
    check_order(problem, Goal(), order_of("abca").tolist())
    assert "step 1: task 2 of phase 1" in refusal(problem, "acb")
    check_order(problem, Goal(strict_phases=False), order_of("acb").tolist())


def test_the_given_order_holds_for_first_runs_only():
    problem = drawn("a b c")
    given = Goal(order_is_given=True)
    check_order(problem, given, order_of("abaca").tolist())
    assert "step 2: the first run of task 1 follows that of task 2" in refusal(problem, "acb", given)


def test_messages_use_the_names_they_are_given():
    names = DisplayNames(lambda task: "conv1", lambda buffer: "activation")
    with pytest.raises(IllegalPlan, match="conv1 reads activation"):
        check_order(drawn("a>b"), Goal(), [1, 0], names)


@pytest.mark.parametrize("field", ["peak_bytes", "cost", "bytes_over_budget"])
def test_a_wrong_score_is_refused(field):
    problem = drawn("a>b b>c", size=3)
    plan = plan_of(problem, "abc")
    check(problem, Goal(0), plan)
    score = plan.score._replace(**{field: getattr(plan.score, field) + 1})
    with pytest.raises(IllegalPlan):
        check(problem, Goal(0), dataclasses.replace(plan, score=score))


@pytest.mark.parametrize("column", ["buffer", "writer_step", "start", "stop", "taken_from"])
def test_a_wrong_lifetime_is_refused(column):
    problem = drawn("a>b b>c", takeover="b>c")
    plan = plan_of(problem, "abac")
    check(problem, Goal(0), plan)
    for k in range(len(plan.lifetimes.buffer)):
        changed = getattr(plan.lifetimes, column).copy()
        changed[k] += 1
        lifetimes = dataclasses.replace(plan.lifetimes, **{column: changed})
        with pytest.raises(IllegalPlan, match="instance"):
            check(problem, Goal(0), dataclasses.replace(plan, lifetimes=lifetimes))


@pytest.mark.parametrize(("relation", "what"), [("read_instance", "reads"), ("written_instance", "writes")])
def test_reads_and_writes_of_other_instances_are_refused(relation, what):
    problem = drawn("a>b b>c")
    plan = plan_of(problem, "abac")
    rows = getattr(plan.lifetimes, relation).lists()
    for changed, match in (([*rows[:-2], [5], rows[-1]], f"{what} other"), (rows[:-1], f"rows of {what}")):
        lifetimes = dataclasses.replace(plan.lifetimes, **{relation: Csr.of(changed)})
        with pytest.raises(IllegalPlan, match=match):
            check(problem, Goal(0), dataclasses.replace(plan, lifetimes=lifetimes))


def test_overlap_misalignment_and_a_small_arena_are_refused():
    problem = drawn("a>c b>c", size=8)
    plan = plan_of(problem, "abc")

    def laid(offsets: list[int], arena: int) -> Plan:
        return dataclasses.replace(plan, offsets=np.array([*offsets, -1, -1, -1]), arena_bytes=arena)

    check(problem, Goal(0), laid([0, 8, 16], 24), alignment=8)
    with pytest.raises(IllegalPlan, match="overlaps live bytes"):
        check(problem, Goal(0), laid([0, 7, 16], 24))
    with pytest.raises(IllegalPlan, match="multiple of 8"):
        check(problem, Goal(0), laid([0, 12, 20], 28), alignment=8)
    with pytest.raises(IllegalPlan, match="outside the arena"):
        check(problem, Goal(0), laid([0, 8, 16], 23))
    with pytest.raises(IllegalPlan, match="arena_bytes"):
        check(problem, Goal(0), dataclasses.replace(laid([0, 8, 16], 24), arena_bytes=None))
