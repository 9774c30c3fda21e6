"""The cut of the dearest moment as a plan: what it keeps stays, the rest is made again when it is next read.

    a  b  c  d │ D  b  c  C  B  A          │ the moment of D: {a} stays, b and c are read behind it and made again

Of what the cut leaves open, the largest that is not too much is dropped until the bytes fit. Where other moments are
over the budget, free first runs are moved, and gaps closed as in `greedy`. Where the order is free, tasks that each
need much may all come late, as the gradients of the weights of an unrolled recurrent net may: none before one of them
and the next can run. What else has run by then is the choice of a cut, too.

Source: the project's own; the cut is that of `bounds/moment_cut.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from graph.cancellation import CancellationError, cancellation_scope
from planner.algorithms.annealing.search import FIRST_RUNS_ALONE, FREE_COLD, Annealing
from planner.algorithms.greedy.gap_closing import GapCloser
from planner.bounds import first_of_set, step_cut
from planner.bounds.step_branch_and_bound import bracket_budget
from planner.bounds.step_cut import StepCut
from planner.bounds.step_network import StepModel, StepNetwork, reachable_from
from planner.problem import TO_LAST_READ, Csr, Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import RecomputeBuilder, base_order, can_recompute, first_run_step
from planner.problem.topological import edges

# Times at which tasks that come late may begin, and of how many orders, those nearest to the goal, gaps are closed.
TIMES, CLOSED = 30, 3
# The part of what is left of the time that first runs of one order may be moved in before.
MOVED = 0.1
# Times that buffers are dropped beside what a cut drops.
ROUNDS = 12


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order that a cut suggests within the budget; without one, the document's order."""
    base = base_order(problem, goal.strict_phases)
    score = monitor.offer(base)
    if problem.tasks and goal.budget_bytes and score.bytes_over_budget:
        with suppress(CancellationError), cancellation_scope(monitor.cancel_event):
            _search(problem, goal, goal.budget_bytes, monitor, base)
    assert monitor.best is not None
    return monitor.best


def _search(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> None:
    """Offer what cuts suggest, and what first runs moved and gaps closed make of the cheapest."""
    closing = GapCloser(problem, monitor.should_stop)
    found = [(monitor.offer(order), order) for order in _cut(problem, goal, budget, monitor, base)]
    found.sort(key=lambda pair: (pair[0].cost, pair[0].peak_bytes))
    for score, order in found[:CLOSED]:
        if score.bytes_over_budget and not goal.order_is_given and not monitor.should_stop():
            annealing = Annealing(problem, goal, monitor, FIRST_RUNS_ALONE)
            until = monitor.progress() + MOVED * (1 - monitor.progress())
            score = monitor.offer(annealing.reorder(order, budget, until, FREE_COLD))
        if score.bytes_over_budget and not monitor.should_stop():
            monitor.offer(closing.reduce_to(order, budget)[0])


def _cut(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> Iterator[Order]:
    """What the cut of one moment makes of the document's order, and of others."""
    as_given = replace(goal, order_is_given=True)

    def is_over() -> bool:
        return monitor.progress() >= 1

    for cut in step_cut.best_cuts(problem, as_given, budget, 1, is_over):
        yield _kept(StepModel(problem, as_given, budget), base, cut, is_over)
    for tasks in () if goal.order_is_given else first_of_set.candidate_sets(StepModel(problem, goal, budget)):
        for order, task in _late(problem, goal, budget, base, tasks):
            if monitor.should_stop():
                return
            moments = StepModel(problem, as_given, budget, order=order)
            cut = step_cut.cut_of_task(moments, task)
            if cut.task >= 0 and cut.feasible:
                yield _kept(moments, order, cut, is_over)


def _late(problem: Problem, goal: Goal, budget: int, base: Order, tasks: list[int]) -> Iterator[tuple[Order, int]]:
    """Orders with none of the tasks before some time, and those that can run then, and the first of them.

    At the time one of them can run and the next but one cannot; what else has run is the choice of a cut.
    """
    after, moments = edges(problem), StepModel(problem, goal, budget, firsts=tasks)
    ahead, maker = after.transposed(problem.tasks), moments.maker
    undone, now = moments.undone, (problem.phase == problem.phase[tasks[0]]) | (not goal.strict_phases)
    for i in range(0, len(tasks), max(1, len(tasks) // TIMES)):
        moments.done = reachable_from(ahead, *tasks[: i + 1]) & ~undone
        makers = maker[problem.reads.gather(np.array(tasks[i + 2 :], np.int64))]
        moments.undone = undone | reachable_from(after, *makers[(makers >= 0) & (now & ~moments.done)[makers]])
        cut = step_cut.cut_of_task(moments, tasks[i])
        if cut.task < 0 or not cut.feasible:
            continue
        chosen = StepNetwork(moments, tasks[i]).done(cut.price)
        done = _runnable(ahead, base[chosen[base]], set())
        begun = _runnable(ahead, base[(undone & now)[base]], set(done))
        if begun:
            order = np.array([*done, *begun], np.int64)
            yield np.append(order, base[~np.isin(base, order)]), begun[0]


def _runnable(ahead: Csr, tasks: Order, done: set[int]) -> list[int]:
    """Those of the tasks that can run once others are done, in their order."""
    rows, found = ahead.lists(), list[int]()
    for task in tasks.tolist():
        if done.issuperset(rows[task]):
            done.add(task)
            found.append(task)
    return found


def _kept(moments: StepModel, order: Order, cut: StepCut, is_over: Callable[[], bool]) -> Order:
    """The order with runs behind the moment for what the cut does not keep there."""
    problem = moments.problem
    turn = int(first_run_step(problem, order)[cut.task])
    maker, early = problem.producer(), np.zeros(problem.tasks + 1, bool)  # the last entry: "nobody", number -1
    early[order[:turn]] = can_recompute(problem)[order[:turn]]
    gone = early[maker] & (problem.hold == TO_LAST_READ)
    gone[problem.reads[cut.task]] = False
    gone[list(_live(moments, cut, is_over))] = False
    rerun = RecomputeBuilder(problem, order, turn)
    rerun.evict(np.flatnonzero(gone).tolist())
    for step, task in enumerate(order[turn:].tolist(), start=turn):
        rerun.run(task, step)
    return np.array(rerun.steps, np.int64)


def _live(moments: StepModel, cut: StepCut, is_over: Callable[[], bool]) -> tuple[int, ...]:
    """Buffers that lie at the moment, so few that they fit: of choices within the budget, one that costs little."""
    fixed, price, best = dict[int, int](), max(1, cut.price), None
    for _ in range(ROUNDS):
        network = StepNetwork(moments, cut.task, fixed)
        cheap, dear = network.line(max(1, price - 1)), network.line(min(price + 1, moments.max_multiplier))
        if cheap.bytes <= 0:
            cheap = network.line(1)
        if dear.bytes > 0:
            dear = network.line(moments.max_multiplier)
        if cheap.bytes > 0 >= dear.bytes:
            cheap, dear, (_, price) = bracket_budget(network, cheap, dear)
        fitting = cheap if cheap.bytes <= 0 else dear
        if fitting.bytes <= 0 and (best is None or fitting.ticks < best.ticks):
            best = fitting
        differ = sorted(set(cheap.live) - set(dear.live) - fixed.keys(), key=lambda b: (-moments.size[b], -b))
        if cheap.bytes <= 0 or not differ or (best is not None and cheap.ticks >= best.ticks) or is_over():
            break
        over, known = cheap.bytes, len(fixed)
        for b in differ:
            if moments.size[b] <= over:
                fixed[b], over = 0, over - int(moments.size[b])
        if len(fixed) == known:
            fixed[differ[-1]] = 0
    return best.live if best is not None else dear.live
