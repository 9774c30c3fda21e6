"""Runs whose results nothing reads: a first run goes if a later one can be first, or if its task is optional.

    a  b  c  d  a  b  e        c and d do not read b: without its first run, b runs first where it is recomputed
    a  ·  c  d  a  b  e

Searches near the lowest peak leave such runs behind, because a search keeps the first run of every task.
"""

from __future__ import annotations

import numpy as np

from planner.algorithms.greedy.gap_closing import needed_steps, read_steps
from planner.problem import FROM_HOST, RESIDENT, TO_HOST, Problem, liveness
from planner.problem.plan import Goal, Order
from planner.problem.recompute import first_run_step, is_first_run

#: Above so many tasks, steps walked in all rounds together: some runs that nothing reads may then be left.
LARGE_TASKS, MAX_STEPS_WALKED = 20_000, 1_000_000


def without_unread_runs(problem: Problem, goal: Goal, order: Order) -> Order:
    """The legal order that is left without unread runs; peak and time are no higher. O(steps log steps) a round.

    A first run stays where its task could not run first at its next run: order given, phases, `after_first`, or another
    task that needs the shape or writes to the same buffer in between.
    """
    walked = 0
    while problem.tasks <= LARGE_TASKS or walked < MAX_STEPS_WALKED:
        walked += len(order)
        unread, first = ~read_steps(problem, order, liveness.lifetimes(problem, order)), is_first_run(problem, order)
        dropped = np.flatnonzero(unread & ~first)
        if not len(dropped):
            dropped = np.array(_movable(problem, goal, order, np.flatnonzero(unread)), np.int64)
        if not len(dropped):
            break
        order = np.delete(order, dropped)
    return order


def without_steps(problem: Problem, order: Order, kept: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """bool[steps]: `kept` without the steps `dropped`, and without recomputations that nothing reads then."""
    kept = kept.copy()
    while len(dropped):
        kept[dropped] = False
        left = order[kept]
        dropped = np.flatnonzero(kept)[~needed_steps(problem, left, liveness.lifetimes(problem, left))]
    return kept


def _movable(problem: Problem, goal: Goal, order: Order, firsts: np.ndarray) -> list[int]:
    """The steps among the first runs `firsts` without which the order is legal."""
    steps, first = len(order), first_run_step(problem, order)
    later = np.full(problem.tasks, steps)  # step of the second run
    repeats = np.flatnonzero(~is_first_run(problem, order))
    np.minimum.at(later, order[repeats], repeats)
    # Copies belong to no phase, so that they come before none.
    phase = np.where(np.isin(problem.engine, (TO_HOST, FROM_HOST)), -1, problem.phase)[order]
    producer, found = problem.producer(), []
    for k in firsts[(later[order[firsts]] < steps) | problem.optional[order[firsts]]].tolist():
        task, end = int(order[k]), int(later[order[k]])
        between, made = order[k + 1 : end], problem.writes[task]
        made = made[producer[made] == task]
        may_wait = end == steps or (
            not (goal.order_is_given and (first[between] > k).any())
            and not (goal.strict_phases and (phase[k + 1 : end] > phase[k]).any())
            and (first[problem.after_first[task]] > end).all()
        )
        shapes = problem.shape_reads.gather(between)
        needed = np.concatenate([shapes[problem.hold[shapes] != RESIDENT], problem.writes.gather(between)])
        if may_wait and not np.isin(needed, made).any():
            found.append(k)
    return found
