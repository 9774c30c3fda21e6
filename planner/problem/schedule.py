"""Schedule: when the steps of an order run if engines work side by side, and the bytes in use meanwhile.

Rules, from which times, bytes and lifetimes follow:

1. An order is a sequence of starts: no step starts before one that precedes it.
2. An engine runs one step at a time. A step starts once its engine is free and the steps that wrote what it reads have
   ended; a read binds to the latest earlier write, as on one engine.
3. A step holds its workspace, what it reads and what it writes from its start to its end: an offload holds its device
   buffer until the copy has ended, a fetch holds its device buffer from the moment it starts. After that, an instance
   is held to the end of the last step that reads it.
4. A step that does not fit the device budget or the host memory waits until a running step ends and it fits. If nothing
   runs, it starts anyway, and the order is over budget.
5. An output takes over the storage of an input (`Problem.takeover`) if no other step reads the input from then on.

    engine       ticks ──▶
    compute      a ────── b ────── c ────── d ──── e          e reads u, which a wrote
    to host               offload u ──                        u is on the device until the offload ends,
    from host                              fetch u ──         and from the start of the fetch

The cost of an order is its makespan. With one engine all of this is what `liveness.py` says. A runtime that lets each
step wait for the steps of other engines that end before its start here (`waits`) stays within the same bytes and
addresses, however long its steps take: the steps that overlap there overlap here.

Bytes grow only when a step starts, so the largest bytes of a step are the peak over time, and lifetimes remain ranges
of steps: an instance that is released at time t is live in the steps that start before t.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem.alternatives import resolve_choices
from planner.problem.columns import DEVICE, HOST, RESIDENT, Problem, frozen
from planner.problem.liveness import bound_instances
from planner.problem.plan import Goal, Lifetimes, Order, Plan, Schedule, Score
from planner.problem.schedule_kernels import ENGINES, KERNELS, NONE, Run, Steps

#: Bytes that nothing reaches.
NO_LIMIT = 2**62


def evaluate(problem: Problem, goal: Goal, order: Order, planner: str, choices: Sequence[int] = ()) -> Plan:
    """The plan of `order` on engines side by side, under one alternative for each group of `problem.choices`.

    Raises IllegalPlan if a read has no earlier write or `choices` do not fit the groups.

    plan = evaluate(problem, Goal(8 * 2**30, host_bytes=64 * 2**30), order, "offload")
    """
    problem, order = resolve_choices(problem, choices), np.asarray(order, np.int64)
    bound, _, held = bound_instances(problem, order)
    run, makespan = _simulated(problem, goal, order, bound, held)
    starts, steps = run.start, len(order)
    stop, released = bound.stop.copy(), (run.last_user != NONE) & ~held
    stop[released] = np.maximum(stop[released], np.searchsorted(starts, run.end[run.last_user[released]]))
    lifetimes = Lifetimes(
        bound.buffer,
        bound.writer_step,
        bound.start,
        stop,
        run.taken_from,
        bound.read_instance,
        bound.written_instance,
        np.maximum(np.searchsorted(starts, run.end), np.arange(1, steps + 1)),
    )
    score = _score(problem, goal, run, makespan)
    times = Schedule(run.start, run.end, run.host)
    return Plan(order, lifetimes, run.device, score, planner, goal.seed, choices=tuple(choices), schedule=times)


def score(problem: Problem, goal: Goal, order: Order, choices: Sequence[int] = ()) -> Score:
    """Score of an order on engines side by side; bytes over the host memory count like bytes over the budget."""
    problem, order = resolve_choices(problem, choices), np.asarray(order, np.int64)
    bound, _, held = bound_instances(problem, order)
    return _score(problem, goal, *_simulated(problem, goal, order, bound, held))


def waits(plan: Plan, problem: Problem) -> list[list[int]]:
    """For each step the steps that it waits for: on each other engine the last one that ends by its start."""
    assert plan.schedule is not None
    start, end = plan.schedule.start, plan.schedule.end
    engine = problem.engine[plan.order]
    result: list[list[int]] = [[] for _ in range(len(start))]
    for other in np.unique(engine).tolist():
        steps = np.flatnonzero(engine == other)
        earlier = np.searchsorted(steps, np.arange(len(start)))
        ended = np.minimum(np.searchsorted(end[steps], start, side="right"), earlier)
        for step in np.flatnonzero((engine != other) & (ended > 0)).tolist():
            result[step].append(int(steps[ended[step] - 1]))
    return result


def _score(problem: Problem, goal: Goal, run: Run, makespan: int) -> Score:
    resident = problem.resident_bytes()
    peak, host = int(run.device.max(initial=resident)), int(run.host.max(initial=0))
    over_host = 0 if goal.host_bytes is None else max(0, host - goal.host_bytes)
    return Score(max(0, peak - (goal.budget_bytes or 0)) + over_host, makespan, peak)


def _simulated(problem: Problem, goal: Goal, order: Order, bound: Lifetimes, held: np.ndarray) -> tuple[Run, int]:
    """(times, bytes and users of the steps, makespan)."""
    count, steps = len(bound.buffer), len(order)
    resident = problem.hold[bound.buffer] == RESIDENT
    size = np.where(resident, 0, problem.size[bound.buffer])
    space = problem.space[bound.buffer]
    device_bytes, host_bytes = np.where(space == DEVICE, size, 0), np.where(space == HOST, size, 0)
    initial = (bound.writer_step < 0) & (bound.stop > 0)
    on_host = int(problem.size[(problem.hold == RESIDENT) & (problem.space == HOST)].sum())
    live = [problem.resident_bytes() + device_bytes[initial].sum(), on_host + host_bytes[initial].sum()]

    def full(length: int, value: int) -> np.ndarray:
        return np.full(length, value, np.int64)

    run = Run(
        start=full(steps, 0),
        end=full(steps, 0),
        device=full(steps, 0),
        host=full(steps, 0),
        last_user=full(count, NONE),
        taken_from=full(count, NONE),
        unread=np.bincount(bound.read_instance.index, minlength=count),
        freed_device=full(steps, 0),
        freed_host=full(steps, 0),
        following=full(steps, NONE),
        first=full(ENGINES, NONE),
        last=full(ENGINES, NONE),
        live=np.array(live, np.int64),
    )
    columns = Steps._make(
        frozen(np.ascontiguousarray(column).view())
        for column in (
            order,
            problem.cost,
            problem.workspace,
            problem.engine,
            bound.read_instance.pointer,
            bound.read_instance.index,
            bound.written_instance.pointer,
            bound.written_instance.index,
            bound.buffer,
            bound.writer_step,
            device_bytes,
            host_bytes,
            held,
            problem.takeover.pointer,
            problem.takeover.index,
        )
    )
    kernels = KERNELS.compiled() if KERNELS.is_compiled() else KERNELS.interpreted()
    device_limit = goal.budget_bytes or NO_LIMIT
    host_limit = NO_LIMIT if goal.host_bytes is None else goal.host_bytes
    return run, int(kernels["run_engines"](columns, run, device_limit, host_limit))
