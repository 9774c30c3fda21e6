"""Engines side by side: evaluator and checker agree, waits keep the bytes, one engine is the plain evaluator."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.layout import place
from planner.problem import (
    COMMUNICATION,
    COMPUTE,
    FROM_HOST,
    HOST,
    TO_HOST,
    Csr,
    Problem,
    liveness,
    schedule,
    schedule_kernels,
)
from planner.problem.alternatives import resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Plan, Score
from planner.verify.checker import check
from planner.verify.timed_replay import TimedReplay
from tests import oracles
from tests.planner.drawn import problem_of
from tests.planner.problem.test_alternatives import with_random_choices
from tests.planner.random_problems import random_order, random_problem


def on_random_engines(rng: random.Random, problem: Problem) -> Problem:
    engine = rng.choices([COMPUTE, TO_HOST, FROM_HOST, COMMUNICATION], [4, 1, 1, 1], k=problem.tasks)
    return dataclasses.replace(problem, engine=np.array(engine, np.int8))


def agreeing_sequences(count: int, seed: int) -> int:
    """Random sequences on random engines, of which evaluator and checker say the same.

    A third under random alternatives; a tenth of the tasks is optional or a collective (`random_problem`).
    """
    rng, seen = random.Random(seed), 0
    while seen < count:
        problem = on_random_engines(rng, random_problem(rng))
        if rng.random() < 1 / 3:
            problem = with_random_choices(rng, problem)
        choices = tuple(rng.randrange(of) for of in problem.choices.counts().tolist())
        goal = Goal(rng.choice([None, 0, 9, 15, 30]), None, False, False, host_bytes=rng.choice([None, 3, 9]))
        order = random_order(rng, problem)
        plain = resolve_choices(problem, choices)
        if not oracles.legal(plain, goal, order):
            continue
        plan = schedule.evaluate(problem, goal, np.array(order, np.int64), "test", choices)
        check(problem, goal, plan)
        check(problem, goal, placed(plain, plan))
        assert plan.score == schedule.score(problem, goal, plan.order, choices)
        seen += 1
    return seen


def placed(problem: Problem, plan: Plan) -> Plan:
    size, workspace = np.where(problem.space == HOST, 0, problem.size), problem.workspace[plan.order]
    monitor = Monitor(lambda order: Score(0, 0, 0), iterations=10)
    offsets, arena_bytes = place("fast", plan.lifetimes, size, workspace, 1, monitor)
    return dataclasses.replace(plan, offsets=offsets, arena_bytes=arena_bytes)


def test_evaluator_and_checker_agree_on_random_sequences_and_engines():
    assert agreeing_sequences(400, seed=1) == 400


def test_one_engine_is_the_evaluator_of_orders_on_one_engine():
    rng, seen = random.Random(2), 0
    while seen < 150:
        problem, goal = random_problem(rng), Goal(None, None, False, False)
        order = random_order(rng, problem)
        if not oracles.legal(problem, goal, order):
            continue
        plain = evaluate(problem, goal, np.array(order, np.int64), "test")
        timed = schedule.evaluate(problem, goal, np.array(order, np.int64), "test")
        assert timed.score == plain.score and timed.step_bytes.tolist() == plain.step_bytes.tolist()
        assert timed.lifetimes.stop.tolist() == plain.lifetimes.stop.tolist()
        assert timed.lifetimes.taken_from.tolist() == plain.lifetimes.taken_from.tolist()
        assert timed.schedule is not None
        host = liveness.profile(problem, plain.order, space=HOST)
        assert timed.schedule.host_bytes.tolist() == host.tolist()
        seen += 1


def with_a_pair() -> Problem:
    #   task      0   1   2   3    4 offload   5 fetch
    #   reads         u       u    u           h
    #   writes    u   v   w        h           u
    return problem_of(
        [[], [0], [1], [2, 0], [0], [4]],
        [[0], [1], [2], [3], [4], [0]],
        size=[10, 1, 1, 1, 10],
        space=[0, 0, 0, 0, HOST],
        cost=[1, 4, 4, 1, 3, 3],
        engine=[COMPUTE] * 4 + [TO_HOST, FROM_HOST],
        optional=[False] * 4 + [True] * 2,
    )


def test_copies_run_beside_compute_and_hold_their_buffers_to_their_ends():
    #   compute      0    1 ────    2 ────   3
    #   to host           4 ───
    #   from host                   5 ───
    problem = with_a_pair()
    plan = schedule.evaluate(problem, Goal(), np.array([0, 1, 4, 2, 5, 3]), "test")
    assert plan.schedule is not None and plan.score.cost == 10  # as without copies
    assert plan.schedule.start.tolist() == [0, 1, 1, 5, 5, 9]
    assert plan.step_bytes.tolist() == [10, 11, 11, 2, 12, 12]
    assert plan.schedule.host_bytes.tolist() == [0, 0, 10, 10, 10, 0]
    assert schedule.waits(plan, problem) == [[], [], [0], [2], [1, 2], [2, 4]]


def test_a_step_that_does_not_fit_waits_until_a_copy_has_ended():
    problem = dataclasses.replace(with_a_pair(), cost=np.array([1, 1, 4, 1, 3, 3]))
    plan = schedule.evaluate(problem, Goal(11), np.array([0, 1, 4, 2, 5, 3]), "test")
    assert plan.schedule is not None
    assert plan.schedule.start.tolist() == [0, 1, 1, 4, 8, 11]  # 2 waits for the offload, the fetch for 2
    assert plan.step_bytes.max() == 12 and plan.score.bytes_over_budget == 1  # the last step alone needs 12
    assert TimedReplay(problem, plan.order.tolist(), 11, None).start_time == plan.schedule.start.tolist()


def test_a_copy_waits_for_host_memory():
    problem = dataclasses.replace(with_a_pair(), optional=np.zeros(6, bool))
    goal = Goal(host_bytes=9)
    assert schedule.score(problem, goal, np.array([0, 1, 4, 2, 5, 3])).bytes_over_budget - 12 == 1


@pytest.mark.parametrize("column", ["start", "end", "host_bytes"])
def test_a_wrong_schedule_is_refused(column: str):
    problem = with_a_pair()
    plan = schedule.evaluate(problem, Goal(), np.array([0, 1, 4, 2, 5, 3]), "test")
    assert plan.schedule is not None
    claimed = getattr(plan.schedule, column) + np.array([0, 0, 1, 0, 0, 0])
    wrong = dataclasses.replace(plan, schedule=dataclasses.replace(plan.schedule, **{column: claimed}))
    with pytest.raises(IllegalPlan, match="step 2: task 4"):
        check(problem, Goal(), wrong)


def test_a_run_that_obeys_the_waits_stays_within_the_bytes_whatever_its_times():
    rng = random.Random(5)
    for _ in range(60):
        problem = on_random_engines(rng, random_problem(rng))
        problem = dataclasses.replace(problem, takeover=Csr.empty(problem.buffers))
        order = random_order(rng, problem)
        if not oracles.legal(problem, Goal(strict_phases=False), order):
            continue
        plan = schedule.evaluate(problem, Goal(), np.array(order, np.int64), "test")
        times = [rng.randint(0, 9) for _ in order]
        assert peak_of_a_run(problem, plan, times) <= plan.score.peak_bytes


def peak_of_a_run(problem: Problem, plan: Plan, ticks: list[int]) -> int:
    """Peak of a run whose steps take `ticks`: each starts after its engine's last step and the steps it waits for."""
    start, end, last = list[int](), list[int](), dict[int, int]()
    for step, (task, before) in enumerate(zip(plan.order.tolist(), schedule.waits(plan, problem), strict=True)):
        engine = int(problem.engine[task])
        start.append(max([last.get(engine, 0), *(end[other] for other in before)]))
        end.append(start[step] + ticks[step])
        last[engine] = end[step]
    lives, over = plan.lifetimes, max(end, default=0) + 1
    spans = []
    for k, buffer in enumerate(lives.buffer.tolist()):
        if lives.stop[k] <= lives.start[k] or problem.space[buffer] == HOST:
            continue
        readers = np.flatnonzero([k in row for row in lives.read_instance.lists()])
        users = [*readers.tolist(), *([int(lives.writer_step[k])] if lives.writer_step[k] >= 0 else [])]
        is_held = lives.stop[k] == len(start) and problem.hold[buffer] != 0
        begin = start[lives.writer_step[k]] if lives.writer_step[k] >= 0 else 0
        spans.append((begin, over if is_held else max(end[user] for user in users), int(problem.size[buffer])))
    spans += [(start[s], end[s], int(problem.workspace[task])) for s, task in enumerate(plan.order.tolist())]
    return max((sum(size for a, b, size in spans if a <= t < b) for t in start), default=0)


def test_compiled_and_interpreted_simulations_agree():
    rng = random.Random(7)
    cases = [on_random_engines(rng, random_problem(rng)) for _ in range(30)]
    orders = [list(range(p.tasks)) for p in cases]
    legal = [(p, o) for p, o in zip(cases, orders, strict=True) if oracles.legal(p, Goal(strict_phases=False), o)]
    plain = [schedule.evaluate(p, Goal(9), np.array(o), "test") for p, o in legal]
    schedule_kernels.KERNELS.compiled()
    for (problem, order), known in zip(legal, plain, strict=True):
        found = schedule.evaluate(problem, Goal(9), np.array(order), "test")
        assert found.score == known.score and found.step_bytes.tolist() == known.step_bytes.tolist()
