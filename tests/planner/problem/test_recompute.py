"""What is not kept is run again just in time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.problem import RESIDENT, TO_THE_END, UPDATE, liveness, recompute
from planner.problem.plan import Goal
from planner.problem.recompute import (
    RecomputeBuilder,
    backward_start,
    base_order,
    can_recompute,
    droppable_before,
    order_evicting,
    order_keeping,
)
from planner.verify.checker import check_order
from tests.planner.drawn import drawn, letters_of, problem_of
from tests.planner.random_problems import training_problem

KEEP_NOTHING = np.zeros(0, np.int64)

# A chain with its way back: f reads e and c, g reads f and b, h reads g and a.
CHAIN = "a>b b>c c>d d>e e>f c>f f>g b>g g>h a>h"


def test_a_dropped_buffer_is_made_again_right_before_its_first_reader_on_the_way_back():
    problem = drawn(CHAIN, backward="fgh")
    keep_a_and_e = np.array([0, 4])
    assert letters_of(order_keeping(problem, keep_a_and_e)) == "abcde" + "bc" + "fgh"


def test_keeping_everything_repeats_nothing():
    problem = drawn(CHAIN, backward="fgh")
    assert letters_of(order_keeping(problem, np.arange(8))) == "abcdefgh"


def test_what_may_not_repeat_stays():
    problem = drawn(CHAIN, backward="fgh", never="b")
    assert letters_of(order_keeping(problem, np.array([0, 4]))) == "abcdecfgh"


def test_what_is_held_to_the_end_is_not_made_again():
    problem = drawn(CHAIN, backward="fgh", hold={"c": TO_THE_END})
    assert letters_of(order_keeping(problem, np.array([0, 4]))) == "abcdefbgh"


def test_no_copy_reads_what_was_overwritten():
    #   a reads the weight and is wanted again by d, but c has overwritten the weight by then
    problem = problem_of(
        reads=[[0], [1], [0], [1, 2]],
        writes=[[1], [2], [0], [3]],
        hold=[RESIDENT, 0, 0, 0],
        phase=[0, 0, 1, 1],
        after_every=[(0, 2)],
    )
    assert letters_of(order_keeping(problem, KEEP_NOTHING, strict_phases=False)) == "abcbd"


def test_a_task_with_two_outputs_is_run_again_once_for_both():
    problem = problem_of(reads=[[], [0, 1], [2], [0], [1]], writes=[[0, 1], [2], [3], [4], [5]], phase=[0, 0, 1, 1, 1])
    assert letters_of(order_keeping(problem, KEEP_NOTHING)) == "ababcde"


def test_a_task_that_overwrites_what_it_reads_may_not_repeat():
    problem = problem_of(reads=[[], [0], [0]], writes=[[0], [0], [1]])
    assert can_recompute(problem).tolist() == [True, False, True]


def test_without_phases_the_way_back_begins_after_the_peak():
    problem = drawn(CHAIN)
    order = base_order(problem)
    assert backward_start(problem, order) == int(np.argmax(liveness.profile(problem, order))) + 1


def test_every_set_of_kept_buffers_gives_a_legal_order_with_one_copy_at_most():
    rng = random.Random(5)
    for _ in range(60):
        problem = training_problem(rng, rng.randint(1, 8))
        keep = np.array([b for b in range(problem.buffers) if rng.random() < 0.4], np.int64)
        order = order_keeping(problem, keep)
        check_order(problem, Goal(order_is_given=True), order.tolist())
        runs = np.bincount(order, minlength=problem.tasks)
        assert runs.max() <= 2
        assert (runs[problem.phase == UPDATE] == 1).all()


def test_compiled_and_interpreted_kernels_recompute_alike_and_as_the_builder():
    rng = random.Random(8)
    for _ in range(40):
        problem = training_problem(rng, rng.randint(2, 12))
        order = base_order(problem)
        turn = backward_start(problem, order)
        evicted = droppable_before(problem, order, turn) & np.array([rng.random() < 0.7] * problem.buffers)
        builder = RecomputeBuilder(problem, order, turn)
        builder.evict(np.flatnonzero(evicted).tolist())
        for step, task in enumerate(order[turn:].tolist(), start=turn):
            builder.run(task, step)
        recompute.KERNELS.compiled()
        fast = order_evicting(problem, order, turn, evicted).tolist()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(recompute.Kernels, "is_compiled", lambda _: False)
            assert order_evicting(problem, order, turn, evicted).tolist() == fast == builder.steps


def test_a_chain_of_a_hundred_thousand_tasks_needs_no_recursion():
    n = 50_000
    reads = [[]] + [[i] for i in range(n - 1)] + [[n - 1, n - 1 - i] if i else [n - 1] for i in range(n)]
    problem = problem_of(reads, [[i] for i in range(2 * n)], phase=[0] * n + [1] * n)
    order = order_keeping(problem, np.array([n - 1]))
    assert len(order) == 3 * n - 1
