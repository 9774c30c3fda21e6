"""Offload: copies to the host are tasks for every planner and for the checker."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.advice.offload import order_within, with_offload_tasks
from planner.problem import BACKWARD, FORWARD, FROM_HOST, HOST, TO_HOST, Problem, liveness
from planner.problem.plan import Goal
from planner.verify.checker import check_order
from planner.verify.replay import Replay
from tests.planner.drawn import drawn
from tests.planner.random_problems import random_problem, training_problem


def never() -> bool:
    return False


def test_an_unused_buffer_is_offloaded_and_fetched():
    #   a ── b ── c ── d      a: 5 bytes, read by b and, on the way back, by d
    #    ╰─────────────╯
    problem = drawn("a>b b>c c>d a>d", size={"a": 5, "b": 2, "c": 4, "d": 1}, backward="d", never="abcd")
    copies = with_offload_tasks(problem, bytes_per_second=2.0, launch_seconds=1.0, strict_phases=True)
    assert copies.buffer.tolist() == [0]
    (out,), (back,) = copies.offload.tolist(), copies.fetch.tolist()
    a, b, c, d = copies.task.tolist()
    assert [a, b, out, c, back, d] == [0, 1, 2, 3, 4, 5]
    made = copies.problem
    assert made.cost[[out, back]].tolist() == [4, 4]  # 1 s, and 5 bytes at 2 bytes a second, rounded to ticks
    assert made.engine[[out, back]].tolist() == [TO_HOST, FROM_HOST]
    assert made.phase[[out, back]].tolist() == [FORWARD, BACKWARD]
    assert copies.name_of(out, "abcd".__getitem__, "ABCD".__getitem__) == "offload:A"
    assert copies.name_of(d, "abcd".__getitem__, "ABCD".__getitem__) == "d"
    order = order_within(copies, 10, never)
    assert order.tolist() == [a, b, out, c, back, d]
    assert liveness.profile(made, order).tolist() == [5, 7, 7, 6, 9, 10]
    assert liveness.profile(made, order, space=HOST).tolist() == [0, 0, 5, 5, 5, 0]
    assert order_within(copies, 11, never).tolist() == [a, b, c, d]


def test_the_better_price_goes_first():
    problem = drawn("a>b b>c c>d d>e e>f a>f b>f", size={"a": 4, "b": 4, "c": 1, "d": 9, "e": 1, "f": 1}, backward="f")
    copies = with_offload_tasks(problem, bytes_per_second=1.0, launch_seconds=0.0, strict_phases=True)
    order = order_within(copies, 14, never)  # 17 at d; both are over the budget there and at e, a one step longer
    assert copies.fetch[copies.buffer == 0][0] in order and copies.fetch[copies.buffer == 1][0] not in order


def plain(seed: int) -> Problem:
    """Random problem without optional tasks."""
    rng = random.Random(seed)
    problem = random_problem(rng, 2 + seed % 17) if seed % 2 else training_problem(rng, 1 + seed % 7)
    return replace(problem, optional=np.zeros(problem.tasks, bool))


def check_one(seed: int) -> int:
    problem = plain(seed)
    for strict in (True, False):
        if strict and (np.diff(problem.phase) < 0).any():
            continue
        copies = with_offload_tasks(problem, 1.0, 1.0, strict)
        base = liveness.peak(problem, copies.base)
        for limit in (0, base // 2, base - 1, base):
            order = order_within(copies, limit, never)
            for given in (True, False):
                check_order(copies.problem, Goal(strict_phases=strict, order_is_given=given), order.tolist())
            assert Replay(copies.problem, order.tolist()).step_bytes == liveness.profile(copies.problem, order).tolist()
            assert limit < base or len(order) == problem.tasks
            alone = order[np.isin(order, copies.task)]
            assert liveness.profile(copies.problem, alone).tolist() == liveness.profile(problem, copies.base).tolist()
    return len(copies.buffer)


def test_orders_with_copies_are_legal_on_random_problems():
    assert sum(check_one(seed) for seed in range(150)) > 100


@pytest.mark.heavy
def test_orders_with_copies_are_legal_on_many_random_problems():
    for seed in range(150, 1200):
        check_one(seed)


def test_nothing_to_copy_is_no_copy():
    slow = with_offload_tasks(drawn("a>b b>c a>c", size=2**40), 1e-9, 1.0, True)
    assert not len(slow.buffer) and slow.problem.cost.tolist() == [1, 1, 1]
    for problem in (drawn(""), drawn("a"), drawn("a>b", size=0)):
        copies = with_offload_tasks(problem, 1.0, 1.0, True)
        assert not len(copies.buffer)
        assert order_within(copies, 0, never).tolist() == list(range(problem.tasks))
