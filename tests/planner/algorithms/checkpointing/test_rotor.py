"""The table is the recursion of the paper, its schedules take what it says, and orders fit."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.algorithms.checkpointing import revolve, rotor
from planner.algorithms.checkpointing.revolve import ActionKind
from planner.problem import liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.algorithms.heuristics.columns import Columns
from tests.planner.drawn import drawn


def drawn_costs(rng: random.Random, segments: int) -> rotor.SegmentCosts:
    return rotor.SegmentCosts(*(np.array([rng.randint(0, 9) for _ in range(segments)]) for _ in range(5)))


def least(costs: rotor.SegmentCosts, room: int) -> int:
    """C(0, k - 1, room) by the recursion, without a table."""
    ticks, state, inside, forth, back = (row.tolist() for row in costs)
    following = [*state[1:], 0]

    @cache
    def cost(s: int, t: int, m: int) -> int:
        if m < 0:
            return rotor.INFEASIBLE
        fits = m >= max(inside[s] + back[s], state[s] + forth[s])
        if s == t:
            return ticks[s] if fits else rotor.INFEASIBLE
        best = ticks[s] + cost(s + 1, t, m - inside[s]) if fits else rotor.INFEASIBLE
        for j in range(s + 1, t + 1):
            if m >= state[s] + max(forth[i] + following[i] for i in range(s, j)):
                best = min(best, sum(ticks[s:j]) + cost(j, t, m - state[j]) + cost(s, j - 1, m))
        return min(best, rotor.INFEASIBLE)

    return cost(0, len(ticks) - 1, room)


def monitor() -> Monitor:
    return Monitor(lambda order: None)


@pytest.mark.parametrize("seed", range(12))
def test_the_table_is_the_recursion(seed: int):
    rng = random.Random(seed)
    costs = drawn_costs(rng, rng.randint(1, 6))
    table = rotor.CostTable(costs, monitor())
    for room in range(0, 70, 3):
        assert table.ticks[0, table.segments - 1, room] == least(costs, room)


@pytest.mark.parametrize("seed", range(12))
def test_a_schedule_undoes_every_segment_and_stores_no_more_than_it_may(seed: int):
    rng = random.Random(seed)
    costs = drawn_costs(rng, 6)
    table = rotor.CostTable(costs, monitor())
    if table.min_units > rotor.UNITS:
        return
    for room in {table.min_units, min(rotor.UNITS, table.min_units + 9)}:
        stored, whole, undone = {0}, set(), []
        for kind, begin, _ in table.actions(room):
            if kind is ActionKind.STORE:
                stored.add(begin)
            elif kind is ActionKind.FREE:
                stored.remove(begin)
            elif kind is ActionKind.KEEP:
                whole.add(begin)
            else:
                undone.append(begin)
                whole |= {begin}
            held = sum(costs.state[k] for k in stored - {0}) + sum(costs.inside[k] for k in whole)
            assert held <= room
            whole -= {begin} if kind is ActionKind.BACKWARD else set()
        assert undone == [5, 4, 3, 2, 1, 0]


def test_a_dear_segment_between_cheap_ones_is_not_run_again():
    #   forward chain of 8 values, each read again on the way back; the fourth takes as long as all others
    columns, value, values = Columns(), -1, []
    for _ in range(8):
        out = columns.buffer(4)
        columns.task([value] if value >= 0 else [], [out])
        values.append(value := out)
    gradient = columns.gradient([value])
    for saved in reversed(values):
        gradient = columns.gradient([gradient, saved])
    problem = columns.done()
    cost = np.where(np.arange(problem.tasks) == 3, 50, 2)
    cost.flags.writeable = False
    problem = replace(problem, cost=cost)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 6 // 10)
    found = [
        way.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order))) for way in (rotor, revolve)
    ]
    assert liveness.peak(problem, found[0]) <= goal.budget_bytes
    assert found[0].tolist().count(3) == 1
    assert liveness.cost(problem, found[0]) <= liveness.cost(problem, found[1])


def test_what_is_no_chain_comes_back_as_given_with_a_note():
    asked = Monitor(lambda order: goal_score(drawn("a>b"), Goal(0), order))
    assert rotor.plan(drawn("a>b"), Goal(0), asked).tolist() == [0, 1]
    assert "not a chain" in asked.notes[0]
