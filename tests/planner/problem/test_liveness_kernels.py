"""The compiled peak is that of the profile, for every sequence that may run, and refuses the others as it does."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.errors import IllegalPlan
from planner.problem import HANDED_OUT, RESIDENT, TO_THE_END, Problem, liveness, liveness_kernels
from tests.planner.random_problems import random_order, random_problem, training_problem


def kernel_only(problem: Problem, order: np.ndarray) -> int:
    """What the kernel says, interpreted; HANDED_OUT is not for it."""
    made = np.isin(np.arange(problem.buffers), problem.writes.index)
    always = problem.hold == RESIDENT
    return liveness_kernels.peak_step_bytes(
        order,
        problem.reads.pointer,
        problem.reads.index,
        problem.writes.pointer,
        problem.writes.index,
        problem.takeover.pointer,
        problem.takeover.index,
        problem.size,
        problem.space,
        made,
        always,
        problem.workspace,
        (problem.hold == TO_THE_END).astype(np.int64),
        np.full(problem.buffers, -1, np.int64),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_peak_is_the_highest_step_of_the_profile(seed: int):
    liveness_kernels.KERNELS.compiled()
    rng = random.Random(seed)
    legal = judged = 0
    for trial in range(400):
        problem = random_problem(rng, 9) if trial % 3 else training_problem(rng, rng.randint(1, 6))
        order = np.array(random_order(rng, problem), np.int64)
        if not len(order):
            continue
        try:
            expected = int(liveness.profile(problem, order).max())
        except IllegalPlan:
            with pytest.raises(IllegalPlan):
                liveness.peak(problem, order)
            continue
        assert liveness.peak(problem, order) == expected
        legal += 1
        judged += (
            not (problem.hold == HANDED_OUT).any() and kernel_only(problem, order) != liveness_kernels.UNDEFINED_PEAK
        )
    assert legal > 100 and judged > 40
