"""Plans of blocks are what the evaluator says they are, the best there are, and chained through any depth."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from planner.algorithms.blocks import kernels, planner
from planner.algorithms.blocks.chain_dp import BlockChainDp
from planner.algorithms.blocks.detection import blocks_of
from planner.algorithms.blocks.kernels import BACK, COLUMNS, DOMINATED, DROPS, KEPT, NEEDS, OUT, SAVED, TICKS
from planner.algorithms.blocks.subproblem import Subproblem, subproblem_of
from planner.algorithms.greedy import planner as greedy
from planner.problem import Csr, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import problem_of
from tests.planner.random_problems import training_problem
from tests.planner.stacks import stack


def planned(problem: Problem, goal: Goal, by=planner) -> Score:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=1000)
    return monitor.judge(by.plan(problem, goal, monitor))


def chain_of(problem: Problem, *lengths: int) -> BlockChainDp:
    chain = BlockChainDp(blocks_of(problem, True), kernels.KERNELS, True)
    for length in lengths:
        chain.add_parts((length,), lambda: False)
    return chain


def as_problem(part: Subproblem) -> Problem:
    """The part's arrays as columns, for the evaluator."""
    arrays = part.arrays
    reads, writes = (
        Csr(np.array(pointer), np.array(index))
        for pointer, index in ((arrays.read_pointer, arrays.read_index), (arrays.write_pointer, arrays.write_index))
    )
    return problem_of(
        reads.lists(), writes.lists(), len(arrays.size), cost=arrays.cost, workspace=arrays.workspace, size=arrays.size
    )


def walked(part: Subproblem, kept: int) -> np.ndarray:
    steps = np.zeros(500, np.int64)
    return steps[: kernels.write_order(part.arrays, kept, steps)]


def plans_of(part: Subproblem) -> np.ndarray:
    steps, plans = np.zeros(500, np.int64), np.zeros((600, COLUMNS), np.int64)
    count = kernels.enumerate_plans(part.arrays, part.kept, 2000, steps, plans)
    return plans[:count][plans[:count, DOMINATED] == 0]


def test_what_a_plan_of_a_part_costs_saves_and_peaks_at_is_what_the_evaluator_says():
    blocks = blocks_of(stack(6), True)
    for begin, end in ((1, 2), (2, 4), (0, 1), (4, 5)):
        part = subproblem_of(blocks, begin, end, True)
        problem = as_problem(part)
        for plan in plans_of(part):
            order = walked(part, int(plan[KEPT]))
            step_bytes, turn = liveness.profile(problem, order), order.tolist().index(part.turn)
            assert plan[TICKS] == liveness.cost(problem, order) - problem.cost.sum()
            assert plan[SAVED] == step_bytes[turn]
            assert plan[OUT] == step_bytes[:turn].max()
            assert plan[BACK] == step_bytes[turn + 1 :].max()


def test_no_set_of_kept_buffers_beats_the_plans_found():
    blocks = blocks_of(stack(5), True)
    part = subproblem_of(blocks, 2, 3, True)
    found = plans_of(part)
    bits = len(part.arrays.flips)
    assert bits == 10
    plan, quantum = np.zeros(COLUMNS, np.int64), part.arrays.turn[1]
    for kept in range(1 << bits):
        order = walked(part, kept)
        kernels.measure_plan(part.arrays, order, len(order), plan)
        as_good = (found[:, [TICKS, SAVED]] <= plan[[TICKS, SAVED]]).all(axis=1)
        as_good &= (found[:, [OUT, BACK]] // quantum <= plan[[OUT, BACK]] // quantum).all(axis=1)
        as_good &= (found[:, [DROPS, NEEDS]] | plan[[DROPS, NEEDS]] == plan[[DROPS, NEEDS]]).all(axis=1)
        assert as_good.any(), bin(kept)


@pytest.mark.parametrize("lengths", [(1,), (1, 2), (1, 2, 3)])
def test_a_chain_costs_what_it_says_and_keeps_the_budget(lengths):
    problem = stack(12)
    chain = chain_of(problem, *lengths)
    base = base_order(problem)
    peak = liveness.peak(problem, base)
    for part in (0.8, 0.5, 0.35):
        budget = int(part * peak)
        found = chain._cheapest(budget, chain._price(budget))
        assert found is not None
        order = found[1]()
        assert liveness.cost(problem, order) - problem.cost.sum() == found[0]
        assert liveness.peak(problem, order) <= budget


def test_a_chain_of_single_blocks_is_the_best_choice_of_their_plans():
    problem = stack(4)
    chain = chain_of(problem, 1)
    peak = liveness.peak(problem, base_order(problem))
    blocks = {
        int(k): (table[:, :KEPT].tolist(), under.tolist())
        for table, places, unders in zip(chain.plans, chain.places, chain.under, strict=True)
        for k, under in zip(places, unders, strict=True)
    }
    for part in (0.85, 0.6, 0.5):
        budget, best = int(part * peak), None
        for plans in itertools.product(*(blocks[k][0] for k in range(len(blocks)))):
            saved, leads, fits = 0, 0, True
            for k, row in enumerate(plans):
                under = blocks[k][1]
                highest = max(under[0] + row[OUT], under[1] + row[BACK])
                fits = fits and not leads & row[NEEDS] and saved + highest <= budget
                saved, leads = saved + row[SAVED], row[DROPS]
            if fits:
                ticks = sum(row[TICKS] for row in plans)
                best = ticks if best is None else min(ticks, best)
        found = chain._cheapest(budget, chain._price(budget))
        assert best is not None and found is not None
        assert found[0] == best


def test_depth_is_free():
    assert len(chain_of(stack(8), 1).parts) == len(chain_of(stack(40), 1).parts)


@pytest.mark.parametrize("part", [0.7, 0.5, 0.35])
def test_equal_layers_cost_no_more_than_by_price(part):
    problem = stack(16)
    goal = Goal(int(part * liveness.peak(problem, base_order(problem))))
    assert planned(problem, goal) <= planned(problem, goal, greedy)


def test_equal_layers_at_a_third_cost_less_than_by_price():
    problem = stack(16)
    goal = Goal(int(0.3 * liveness.peak(problem, base_order(problem))))
    assert planned(problem, goal).cost < planned(problem, goal, greedy).cost


def test_several_blocks_that_keep_nothing_between_them_cost_less_where_little_fits():
    problem = stack(16)
    single, several = chain_of(problem, 1), chain_of(problem, 1, 2, 3, 4)
    budget = liveness.peak(problem, base_order(problem)) // 5
    by_one, by_more = (chain._cheapest(budget, chain._price(budget)) for chain in (single, several))
    assert by_one is not None and by_more is not None
    assert by_more[0] < by_one[0]


def test_graphs_without_equal_blocks_are_planned_as_well_as_by_price():
    rng = random.Random(9)
    for _ in range(6):
        problem = training_problem(rng, rng.randint(2, 40))
        goal = Goal(liveness.peak(problem, base_order(problem)) * 7 // 10)
        assert planned(problem, goal) <= planned(problem, goal, greedy)


def test_an_overhead_is_spent_on_a_lower_peak():
    problem = stack(12)
    goal = Goal(max_overhead=0.15)
    score = planned(problem, goal)
    assert score.cost <= problem.cost.sum() * 1.15
    assert score.peak_bytes <= planned(problem, goal, greedy).peak_bytes


def test_compiled_and_interpreted_kernels_choose_the_same_runs(monkeypatch):
    monkeypatch.setattr("planner.algorithms.blocks.chain_dp.SETS_PER_TASK", 4)
    monkeypatch.setattr("planner.algorithms.blocks.chain_dp.PAIRS_PER_TASK", 50)
    problem = stack(3)
    blocks = blocks_of(problem, True)
    budget = liveness.peak(problem, base_order(problem)) * 3 // 4
    orders = []
    for fast in (False, True):
        chain = BlockChainDp(blocks, kernels.KERNELS, fast)
        chain.add_parts((1, 2), lambda: False)
        order = chain.order(budget)
        assert order is not None
        orders.append(order.tolist())
    assert orders[0] == orders[1]
