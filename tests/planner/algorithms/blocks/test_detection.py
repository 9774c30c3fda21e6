"""Blocks cover the way out, and those of one kind are alike in every respect."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.algorithms.blocks.detection import Blocks, blocks_of, refine_colours, repeated_intervals
from planner.problem import TO_THE_END, Problem
from tests.planner.random_problems import training_problem
from tests.planner.stacks import stack


def corresponding(blocks: Blocks, a: int, b: int) -> dict[int, int]:
    """Buffers of block a -> buffers of block b, by the tasks in the same places. Fails where these differ."""
    problem, order = blocks.base.problem, blocks.base.order
    partner: dict[int, int] = {}
    here, there = order[blocks.steps(a)].tolist(), order[blocks.steps(b)].tolist()
    assert len(here) == len(there)
    for s, t in zip(here, there, strict=True):
        assert (problem.cost[s], problem.workspace[s], problem.phase[s]) == (
            problem.cost[t],
            problem.workspace[t],
            problem.phase[t],
        )
        for rows in (problem.reads, problem.writes):
            assert len(rows[s]) == len(rows[t])
            for x, y in zip(rows[s].tolist(), rows[t].tolist(), strict=True):
                assert partner.setdefault(x, y) == y
                assert (problem.size[x], problem.hold[x]) == (problem.size[y], problem.hold[y])
    assert len(set(partner.values())) == len(partner)
    return partner


def is_read(problem: Problem, order: np.ndarray, buffer: int, begin: int, end: int) -> bool:
    return any(buffer in problem.reads[t] for t in order[begin:end].tolist())


@pytest.mark.parametrize(
    "make", [lambda: stack(9), lambda: stack(9, odd=4), lambda: training_problem(random.Random(3), 60)]
)
def test_blocks_of_a_kind_are_isomorphic_down_to_who_reads_from_outside(make):
    blocks = blocks_of(make(), True)
    problem, order = blocks.base.problem, blocks.base.order
    for k in range(len(blocks)):
        first = blocks.kind.tolist().index(int(blocks.kind[k]))
        partner = corresponding(blocks, first, k)
        for x, y in partner.items():
            for begin, end in (
                (blocks.out[[first + 1, k + 1]], [blocks.base.turn] * 2),
                (blocks.back[[first, k]], [len(order)] * 2),
            ):
                assert is_read(problem, order, x, int(begin[0]), end[0]) == is_read(
                    problem, order, y, int(begin[1]), end[1]
                )


def test_equal_layers_make_one_kind_but_for_those_beside_the_ends():
    blocks = blocks_of(stack(20), True)
    assert 18 <= len(blocks) <= 20
    assert np.bincount(blocks.kind).max() >= 15


def test_a_layer_that_differs_in_one_cost_is_a_kind_of_its_own():
    blocks = blocks_of(stack(20, odd=9), True)
    task = 1 + 9 * 10 + 4  # the dearer one
    odd = np.searchsorted(blocks.out, task, side="right") - 1
    assert np.count_nonzero(blocks.kind == blocks.kind[odd]) == 1
    assert np.bincount(blocks.kind).max() >= 10


def test_a_layer_whose_value_is_held_to_the_end_is_a_kind_of_its_own():
    problem = stack(12)
    hold = problem.hold.copy()
    hold[1 + 6 * 10 + 3] = TO_THE_END
    kind = blocks_of(replace(problem, hold=hold), True).kind
    assert len(set(kind.tolist())) > len(set(blocks_of(problem, True).kind.tolist()))


@pytest.mark.parametrize("layers", [1, 3, 25])
def test_blocks_cover_the_way_out_once_and_their_ways_back_do_not_overlap(layers):
    blocks = blocks_of(stack(layers), True)
    steps = np.concatenate([blocks.steps(k) for k in range(len(blocks))])
    assert len(np.unique(steps)) == len(steps)
    assert set(range(blocks.base.turn)) <= set(steps.tolist())


def test_behind_its_way_back_nobody_reads_what_a_block_made():
    blocks = blocks_of(stack(8), True)
    base = blocks.base
    for k in range(len(blocks)):
        made = (base.produced >= blocks.out[k]) & (base.produced < blocks.out[k + 1])
        assert base.last_read[made].max() < blocks.back[k]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([1, 2, 3, 4, 5] * 6, [(0, 30, 5)]),
        ([9] * 3 + [1, 2, 3, 4, 5] * 6 + [7, 8], [(3, 33, 5)]),
        (([1, 2] * 6 + [3]) * 4, [(0, 52, 13)]),  # nested: the longer stretch is taken
        (list(range(40)), []),
        ([], []),
    ],
)
def test_repeats_are_the_longest_periodic_stretches(row, found):
    assert repeated_intervals(np.array(row, np.int64)) == found


def test_every_repeat_found_in_random_rows_is_one():
    rng = random.Random(5)
    for _ in range(200):
        unit = [rng.randrange(4) for _ in range(rng.randint(1, 6))]
        row = [rng.randrange(4) for _ in range(rng.randint(0, 20))] + unit * rng.randint(2, 12)
        row += [rng.randrange(4) for _ in range(rng.randint(0, 20))]
        taken: set[int] = set()
        for begin, end, period in repeated_intervals(np.array(row)):
            assert end - begin >= 2 * period
            assert not taken & set(range(begin, end))
            taken |= set(range(begin, end))


def test_colours_do_not_depend_on_the_numbers_of_buffers():
    problem = stack(4)
    by = np.random.default_rng(0).permutation(problem.buffers)
    place = np.argsort(by)
    renamed = replace(
        problem,
        size=problem.size[by],
        hold=problem.hold[by],
        space=problem.space[by],
        reads=replace(problem.reads, index=place[problem.reads.index]),
        writes=replace(problem.writes, index=place[problem.writes.index]),
    )
    assert refine_colours(renamed).tolist() == refine_colours(problem).tolist()


def test_layers_have_the_same_colours_away_from_the_ends():
    colour = refine_colours(stack(9))[1 : 1 + 90].reshape(9, 10)
    assert (colour[3:6] == colour[3]).all()
    assert len(set(colour[4].tolist())) == 10
