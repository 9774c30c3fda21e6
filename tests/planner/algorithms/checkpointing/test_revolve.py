"""Revolve undoes a chain with the fewest forward runs its snapshots allow."""

from __future__ import annotations

from functools import cache

import pytest

from planner.algorithms.checkpointing import revolve
from planner.algorithms.checkpointing.decomposition import chain_of
from planner.algorithms.checkpointing.revolve import ActionKind, forward_steps, repetitions, schedule, slots_within
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of, problem_of


@cache
def fewest(steps: int, slots: int) -> int:
    """By trying every place for the next snapshot."""
    if steps == 1:
        return 0
    if slots == 1:
        return steps * (steps - 1) // 2
    return min(j + fewest(steps - j, slots - 1) + fewest(j, slots) for j in range(1, steps))


def played(steps: int, slots: int) -> tuple[int, list[int]]:
    """(steps run by advances, steps undone) of the schedule, each action checked against what is at hand."""
    stored: set[int] = set()
    at_hand, advanced, undone = 0, 0, []
    for kind, begin, end in schedule(steps, slots):
        if kind is ActionKind.STORE:
            assert at_hand == begin and begin not in stored
            stored.add(begin)
            assert len(stored) <= slots
        elif kind is ActionKind.FREE:
            stored.remove(begin)
        elif kind is ActionKind.RESTORE:
            assert begin in stored
            at_hand = begin
        elif kind is ActionKind.ADVANCE:
            assert at_hand == begin < end <= steps
            at_hand, advanced = end, advanced + end - begin
        else:
            assert at_hand == begin
            undone.append(begin)
            at_hand = -1
    assert not stored
    return advanced, undone


@pytest.mark.parametrize("slots", range(1, 8))
def test_every_step_is_undone_from_the_last_with_the_fewest_advances(slots):
    for steps in range(1, 41):
        assert played(steps, slots) == (fewest(steps, slots), list(reversed(range(steps))))
        assert forward_steps(steps, slots) == fewest(steps, slots)


def test_three_slots_and_two_repetitions_undo_ten_steps():
    # The example of the paper: C(3 + 2, 3) = 10.
    assert repetitions(10, 3) == 2
    assert repetitions(11, 3) == 3


def test_a_thousand_steps_with_any_slots_take_what_the_closed_form_says():
    for slots in (1, 2, 5, 10, 31, 100, 999, 1000, 5000):
        advanced, undone = played(1000, slots)
        assert advanced == forward_steps(1000, slots)
        assert undone == list(reversed(range(1000)))


def test_slots_within_is_the_fewest_that_keep_the_limit():
    for limit in (99, 150, 500, 4950):
        slots = slots_within(100, limit)
        assert forward_steps(100, slots) <= limit
        assert slots == 1 or forward_steps(100, slots - 1) > limit


def test_no_steps_or_no_slots_are_refused():
    for steps, slots in ((0, 1), (1, 0), (-1, 3)):
        with pytest.raises(ValueError, match="at least"):
            schedule(steps, slots)


def training_chain(steps: int, reads_output: bool = False) -> Problem:
    """A chain of equal tasks; the gradient of each reads the task's input, or its output, and the gradient before."""
    reads = [[]] + [[i] for i in range(steps - 1)]
    reads += [[steps - 1]] + [[steps + i, steps - 1 - i - (not reads_output)] for i in range(steps - 1)]
    return problem_of(reads, [[i] for i in range(2 * steps)], phase=[0] * steps + [1] * steps)


def planned(problem: Problem, goal: Goal, iterations: int = 400) -> tuple[Order, list[str]]:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
    return revolve.plan(problem, goal, monitor), monitor.notes


def test_a_drawn_chain_keeps_one_state_on_the_way_and_runs_the_rest_again():
    #   a ── b ── c ── d        way back: E reads d, F reads c, G reads b, H reads a
    problem = drawn("a>b b>c c>d d>e e>f c>f f>g b>g g>h a>h", backward="efgh")
    chain = chain_of(problem, True)
    assert chain.segments == 4 and chain.states == ((), (0,), (1,), (2,))
    assert letters_of(revolve.order_from_slots(problem, chain, 1)) == "abcdefagh"
    assert letters_of(revolve.order_from_slots(problem, chain, 4)) == "abcdefgh"


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_the_runs_added_to_a_chain_are_at_most_those_of_the_closed_form(slots):
    # A gradient reads the output of its step: what the schedule's BACKWARD runs again is at hand mostly.
    steps = 60
    problem = training_chain(steps, reads_output=True)
    chain = chain_of(problem, True)
    order = revolve.order_from_slots(problem, chain, slots)
    assert chain.segments == steps
    assert len(order) - 2 * steps <= forward_steps(steps, slots + 1)
    assert liveness.peak(problem, order) <= slots + 5


def test_every_budget_down_to_a_few_buffers_is_met_on_a_chain():
    problem = training_chain(120)
    base, costs = liveness.peak(problem, base_order(problem)), []
    for budget in (base, 90, 60, 30, 15, 9):
        order, _ = planned(problem, Goal(budget))
        assert liveness.peak(problem, order) <= budget
        costs.append(liveness.cost(problem, order))
    assert costs == sorted(costs)
    assert costs[0] == problem.cost.sum()


def test_an_overhead_is_kept_and_brings_the_peak_down():
    problem = training_chain(100)
    order, _ = planned(problem, Goal(max_overhead=0.45))
    assert liveness.cost(problem, order) <= 290
    assert liveness.peak(problem, order) < 30


def test_a_problem_that_is_no_chain_is_left_as_it_is_and_says_so():
    problem = drawn("a>b a>c b>c a>d b>d c>d a>e b>e c>e d>e", backward="e")  # everybody reads all before
    order, notes = planned(problem, Goal(0))
    assert letters_of(order) == "abcde"
    assert notes == [revolve.NO_CHAIN]


def test_blocks_with_branches_inside_are_segments():
    #   a ─┬─ b ─┬─ d ─┬─ e ─┬─ g         a, d and g are states; a block in between is one segment
    #      ╰─ c ─╯     ╰─ f ─╯
    problem = drawn("a>b a>c b>d c>d d>e d>f e>g f>g g>h h>i e>i f>i d>i i>j b>j c>j a>j", backward="hij")
    chain = chain_of(problem, True)
    assert chain.states == ((), (0,), (3,))
    assert letters_of(revolve.order_from_slots(problem, chain, 1)) == "abcdefghicbj"


def test_a_recurrence_of_two_states_is_cut_where_both_cross_alone():
    #   a, b ── c ── d, e ── f ── g, h     states {a b}, {d e}: c and f are what lies between
    reads = [[], [], [0, 1], [2, 0], [2, 1], [3, 4], [5, 3], [5, 4], [6, 7], [8, 5, 6], [9, 2, 3, 4]]
    problem = problem_of(reads, [[i] for i in range(11)], size=[1] * 11, phase=[0] * 8 + [1] * 3)
    assert (3, 4) in chain_of(problem, True).states


def test_what_puts_all_parts_together_stays_and_is_not_in_the_way():
    #   p0 ── p1 ── ... ── p7, each with a row r; all rows are put together at the end
    reads = [[2 * (i - 1)] if i else [] for i in range(8)] + [[2 * i + 1 for i in range(8)], [14, 16]]
    writes = [[2 * i, 2 * i + 1] for i in range(8)] + [[16], [17]]
    reads += [[17 + i, 2 * (7 - i)] for i in range(8)]
    writes += [[18 + i] for i in range(8)]
    problem = problem_of(reads, writes, phase=[0] * 10 + [1] * 8)
    chain = chain_of(problem, True)
    assert chain.states[:4] == ((), (0,), (2,), (4,))
    assert chain.segment[16] == -1
