"""List schedules start collectives earlier, stay legal, and keep the bytes that they are given."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from planner.algorithms.offload.overlapping import LOOK_EVERY, WINDOWS, ListScheduler
from planner.problem import COMMUNICATION, COMPUTE, TO_LAST_READ, TO_THE_END, Problem, liveness, schedule
from planner.problem.plan import Goal
from tests import oracles
from tests.planner.drawn import problem_of
from tests.planner.random_problems import random_order, random_problem

#: No limit.
ANY = 2**62


def gathered() -> Problem:
    """A gather that task 3 waits for, and two tasks that do not: a, b, gather, c reads it, d, e.

    compute          a b ─ ─ ─ ─ c d d e e     in line with the order: 2 + 4 + 1 + 2 + 2
    communication        gather
    """
    reads = [[], [0], [0], [1, 2], [1], [4], [3, 5]]
    return problem_of(
        reads,
        [[t] for t in range(7)],
        7,
        size=[1] * 7,
        cost=[1, 1, 4, 1, 2, 2, 1],
        hold=[TO_LAST_READ] * 6 + [TO_THE_END],
        engine=[COMPUTE, COMPUTE, COMMUNICATION, *[COMPUTE] * 4],
    )


def listed(order: np.ndarray | None) -> list[int]:
    assert order is not None
    return [int(task) for task in order]


def test_compute_that_does_not_wait_runs_while_a_collective_does() -> None:
    problem, goal, order = gathered(), Goal(strict_phases=False), np.arange(7)
    scheduler = ListScheduler(problem, goal, order)
    assert schedule.score(problem, goal, order).cost == 11
    found = scheduler.run(ANY, ANY, ANY)
    assert (
        found is not None and found.tolist() == [0, 2, 1, 4, 5, 3, 6] and schedule.score(problem, goal, found).cost == 8
    )
    assert listed(scheduler.run(1, 0, ANY)) == [0, 2, 1, 3, 4, 5, 6]  # the collective alone moves
    assert listed(scheduler.run(ANY, ANY, 0)) == order.tolist()  # nothing more may be held


def test_list_schedules_are_legal_and_keep_within_their_bytes() -> None:
    rng, moved = random.Random(7), 0
    for _ in range(400):
        problem = random_problem(rng)
        goal = Goal(order_is_given=rng.random() < 0.3, strict_phases=rng.random() < 0.5)
        order = random_order(rng, problem)
        if not order or not oracles.legal(problem, goal, order):
            continue
        engine = np.array([rng.choice([COMPUTE, COMMUNICATION]) for _ in range(problem.tasks)], np.int8)
        problem = replace(problem, engine=engine)
        scheduler = ListScheduler(problem, goal, np.array(order))
        peak = liveness.peak(problem, np.array(order))
        for hoist, ahead, share in rng.sample(WINDOWS, 4):
            found = scheduler.run(hoist, ahead, max(share, 1) * peak)
            assert found is not None and oracles.legal(problem, goal, found.tolist())
            assert sorted(found.tolist()) == sorted(order)
            if share <= 1:
                assert liveness.peak(problem, found) <= peak
            moved += found.tolist() != order
    assert moved > 100


def test_an_order_on_one_engine_keeps_its_places_without_a_limit_ahead() -> None:
    problem = replace(gathered(), engine=np.zeros(7, np.int8))
    assert listed(ListScheduler(problem, Goal(strict_phases=False), np.arange(7)).run(ANY, 0, ANY)) == list(range(7))


def test_a_long_order_is_left_once_the_search_stops() -> None:
    tasks, looks = 4 * LOOK_EVERY, list[int]()
    reads = [[], *([t - 1] for t in range(1, tasks))]
    problem = problem_of(reads, [[t] for t in range(tasks)], tasks, size=[1] * tasks, cost=[1] * tasks)
    scheduler = ListScheduler(problem, Goal(strict_phases=False), np.arange(tasks))

    def should_stop() -> bool:
        looks.append(len(looks))
        return len(looks) > 2

    assert scheduler.run(4, 4, ANY, should_stop) is None and len(looks) == 3
    assert len(listed(scheduler.run(4, 4, ANY))) == tasks
