"""Reorder the runs of an order, recomputations included, as a problem whose tasks are the runs.

    a b c a' d        a ──▶ b ──▶ c ─╮          run a' rewrites the buffer of a, so b, which reads it from the
                                     ├──▶ d     first run, stays before a'; no run is repeated
                      a' ────────────╯

The saved and recomputed sets do not change, only the times of the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.algorithms.annealing import order_only
from planner.algorithms.annealing.search import FIRST_RUNS_ALONE, Annealing
from planner.problem import ALLOW, NEVER, NO_CHOICES, RESIDENT, TO_LAST_READ, TO_THE_END, Csr, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Lifetimes, Order, Score
from planner.problem.recompute import first_run_step


def reorder_runs(
    problem: Problem, goal: Goal, order: Order, judge: Callable[[Order], Score], monitor: Monitor
) -> Order:
    """The best order found of the same runs, or `order` if none is better; annealing as in `search_order`.

    `monitor` limits the search; the orders offered to it are orders of `unroll_runs`.
    """
    if goal.order_is_given or not len(order):
        return order
    lives = liveness.lifetimes(problem, order)
    plain = unroll_runs(problem, order, lives, goal.strict_phases)
    monitor.judge = lambda steps: liveness.score(plain, steps, goal.budget_bytes or 0)
    steps = order_only.plan(plain, replace(goal, max_overhead=None), monitor)
    found = order[steps]
    is_better = judge(found) < judge(order)
    return found if is_better and same_runs(problem, order, found) else order


def flatten_runs(problem: Problem, goal: Goal, order: Order, monitor: Monitor) -> Order:
    """An order of the same runs that holds less near the budget, so that addresses fit better; else `order`.

    While few bytes are live, holes that no buffer fits do no harm.
    """
    if goal.order_is_given or not len(order) or not goal.budget_bytes:
        return order
    lives = liveness.lifetimes(problem, order)
    plain = unroll_runs(problem, order, lives, goal.strict_phases)
    steps = Annealing(plain, goal, monitor, FIRST_RUNS_ALONE).flattened(np.arange(len(order)), goal.budget_bytes, 1.0)
    found = order[steps]
    fits = liveness.peak(problem, found) <= goal.budget_bytes
    return found if fits and same_runs(problem, order, found) else order


def same_runs(problem: Problem, one: Order, two: Order) -> bool:
    """Whether both orders have the same runs of each task, each reading the outputs of the same runs."""
    return _bindings(problem, one) == _bindings(problem, two)


def _bindings(problem: Problem, order: Order) -> list[list[tuple[int, ...]]]:
    """Per task and run: the instances it reads and writes, numbered by buffer and write."""
    lives = liveness.lifetimes(problem, order)
    found: list[list[tuple[int, ...]]] = [[] for _ in range(problem.tasks)]
    reads, writes = lives.read_instance.lists(), lives.written_instance.lists()
    for task, read, written in zip(order.tolist(), reads, writes, strict=True):
        found[task].append((*read, -1, *written))
    return found


def unroll_runs(problem: Problem, order: Order, lives: Lifetimes, strict_phases: bool) -> Problem:
    """A problem with a task per step and a buffer per instance; edges preserve the inputs of every run. O(reads)."""
    steps, buffer = len(order), lives.buffer
    first = first_run_step(problem, order)
    hold = np.where(lives.stop == steps, TO_THE_END, TO_LAST_READ)
    hold = np.where(problem.hold[buffer] == TO_LAST_READ, TO_LAST_READ, hold)
    hold = np.where(problem.hold[buffer] == RESIDENT, RESIDENT, hold).astype(np.int8)
    phase = np.where(first[order] == np.arange(steps), problem.phase[order], 0)
    none = np.zeros(steps, bool)
    return replace(
        problem,
        cost=problem.cost[order],
        workspace=problem.workspace[order],
        engine=problem.engine[order],
        phase=(np.maximum.accumulate(phase) if strict_phases else problem.phase[order]).astype(np.int8),
        repeat=np.full(steps, NEVER, np.int8),
        recompute=np.full(steps, ALLOW, np.int8),
        optional=none,
        heavy=none,
        size=np.where(lives.stop > lives.start, problem.size[buffer], 0),
        space=problem.space[buffer],
        hold=hold,
        checkpoint=problem.checkpoint[buffer],
        reads=lives.read_instance,
        shape_reads=Csr.empty(steps),
        writes=lives.written_instance,
        takeover=_takeovers(problem, lives),
        after_every=Csr.empty(steps),
        after_first=_edges(problem, order, lives, first),
        choices=NO_CHOICES,
    )


def _takeovers(problem: Problem, lives: Lifetimes) -> Csr:
    """Instance -> instances read by its step whose storage it may reuse."""
    reads, may = lives.read_instance.lists(), problem.takeover.lists()
    rows = []
    for buffer, step in zip(lives.buffer.tolist(), lives.writer_step.tolist(), strict=True):
        read = {int(lives.buffer[k]): k for k in reads[step]} if step >= 0 and may[buffer] else {}
        rows.append([read[b] for b in may[buffer] if b in read])
    return Csr.of(rows)


def _edges(problem: Problem, order: Order, lives: Lifetimes, first: np.ndarray) -> Csr:
    """Step -> steps that must come later: next write of its buffers, later runs of its task, and precedence."""
    runs: list[list[int]] = [[] for _ in range(problem.tasks)]
    for step, task in enumerate(order.tolist()):
        runs[task].append(step)
    later: list[set[int]] = [set() for _ in order]
    for earlier, step in itertools.chain(_rewrites(lives), *map(itertools.pairwise, runs)):
        later[earlier].add(step)
    producer = problem.producer().tolist()
    for task, row in enumerate(problem.shape_reads.lists()):
        for written in {producer[b] for b in row} - {-1, task}:
            later[int(first[written])].update(runs[task])
    for task, follower in _pairs(problem.after_every):
        for step in runs[task]:
            later[step].update(runs[follower])
    for task, follower in _pairs(problem.after_first):
        if runs[task] and runs[follower]:
            later[runs[task][0]].add(runs[follower][0])
    return Csr.of(sorted(row - {step}) for step, row in enumerate(later))


def _rewrites(lives: Lifetimes) -> Iterator[tuple[int, int]]:
    """(step that uses an instance, later step that writes the next instance of the same buffer)."""
    buffer, writer = lives.buffer.tolist(), lives.writer_step.tolist()
    rewritten = [writer[k + 1] if buffer[k : k + 2] == [b, b] else -1 for k, b in enumerate(buffer)]
    for relation in (lives.read_instance, lives.written_instance):
        for step, instance in _pairs(relation):
            if rewritten[instance] > step:
                yield step, rewritten[instance]


def _pairs(rows: Csr) -> Iterator[tuple[int, int]]:
    """(row, entry) of every entry."""
    return zip(rows.row_of_entry().tolist(), rows.index.tolist(), strict=True)
