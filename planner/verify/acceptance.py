"""Quick acceptance of plans for large problems, by compiled kernels; what they reject is left to `checker.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.problem import DEVICE, FORBID, FROM_HOST, NEVER, RESIDENT, TO_HOST, Csr, Problem
from planner.problem.plan import Goal, Plan
from planner.verify.acceptance_kernels import KERNELS, Claims, Ranges, Rules, Scratch

#: Fewer tasks are checked as fast in Python, if the kernels are loaded and if they have to be.
MIN_TASKS, MIN_TASKS_TO_LOAD = 200, 1000
#: Sums of bytes or ticks from here on might overflow in the kernels; Python has whole numbers of any size.
MAX_SUM = 2.0**62


def applies(problem: Problem) -> bool:
    """Whether the kernels save time: the problem is large, and nothing has to be compiled."""
    if KERNELS.is_compiled():
        return problem.tasks >= MIN_TASKS
    return problem.tasks >= MIN_TASKS_TO_LOAD and KERNELS.is_on_disk()


def is_accepted(problem: Problem, goal: Goal, plan: Plan, alignment: int) -> bool:
    """Whether the kernels accept a plan: order, lifetimes, bytes, cost, score and layout.

    False also for what they do not know: a plan on engines side by side or with choices, columns that are not of whole
    numbers, and sums that might overflow. O(k log k) time for k reads and writes. The kernels are compiled or loaded if
    they are not yet.
    """
    is_plain = plan.schedule is None and not len(plan.choices) and plan.host_arena_bytes is None
    if not is_plain or np.isin(problem.engine, (TO_HOST, FROM_HOST)).any() or not _is_exact(problem, plan):
        return False
    kernels, claims = KERNELS.compiled(), _claims(plan)
    if claims is None or plan.score.bytes_over_budget != max(0, plan.score.peak_bytes - (goal.budget_bytes or 0)):
        return False
    rules, scratch = _rules(problem, goal), _scratch(problem, len(plan.lifetimes.buffer))
    if not (kernels["accepts_order"](rules, claims, scratch) and kernels["accepts_replay"](rules, claims, scratch)):
        return False
    ranges = None if plan.offsets is None else _ranges(problem, plan, alignment)
    return plan.offsets is None or (ranges is not None and kernels["accepts_addresses"](ranges))


def _is_exact(problem: Problem, plan: Plan) -> bool:
    """Whether the columns of a plan and its score are whole numbers, and no sum of bytes or ticks overflows."""
    lives = plan.lifetimes
    columns = [plan.order, plan.step_bytes, lives.buffer, lives.writer_step, lives.start, lives.stop, lives.taken_from]
    columns += [
        column for rows in (lives.read_instance, lives.written_instance) for column in (rows.pointer, rows.index)
    ]
    columns += [] if plan.offsets is None else [plan.offsets]
    if any(column.dtype != np.int64 or column.ndim != 1 for column in columns):
        return False
    if not all(isinstance(number, (int, np.integer)) for number in (plan.score.cost, plan.score.peak_bytes)):
        return False
    parts = (problem.cost, problem.workspace, problem.size)
    cost, workspace, size = (float(column.max(initial=0)) for column in parts)
    return (
        min(int(column.min(initial=0)) for column in parts) >= 0
        and cost * len(plan.order) < MAX_SUM
        and size * (len(lives.buffer) + problem.buffers) + workspace < MAX_SUM
        and max(abs(plan.score.cost), abs(plan.score.peak_bytes)) < MAX_SUM
    )


def _rules(problem: Problem, goal: Goal) -> Rules:
    resident = (problem.space == DEVICE) & (problem.hold == RESIDENT)
    relations = (problem.reads, problem.shape_reads, problem.writes, problem.takeover)
    precedence = (problem.after_every, problem.after_first)
    fields: list[Any] = [
        _integers(problem.cost),
        _integers(problem.workspace),
        _read_only(problem.phase, np.int8),
        _read_only((problem.repeat != NEVER) & (problem.recompute != FORBID), np.bool_),
        _read_only(problem.optional, np.bool_),
        _integers(problem.size),
        _read_only(problem.space, np.int8),
        _read_only(problem.hold, np.int8),
        *_columns(*relations),
        *_columns(*precedence),
        int(goal.strict_phases),
        int(goal.order_is_given),
        int(problem.size[resident].sum()),
    ]
    return Rules._make(fields)


def _claims(plan: Plan) -> Claims | None:
    """The claims of a plan; None if columns differ in length."""
    lives, steps = plan.lifetimes, len(plan.order)
    copies = (lives.buffer, lives.writer_step, lives.start, lives.stop, lives.taken_from)
    if len({len(column) for column in copies}) > 1 or len(plan.step_bytes) != steps:
        return None
    if len(lives.read_instance) != steps or len(lives.written_instance) != steps:
        return None
    columns = map(_integers, (plan.order, plan.step_bytes, *copies))
    bound = _columns(lives.read_instance, lives.written_instance)
    return Claims._make([*columns, *bound, int(plan.score.cost), int(plan.score.peak_bytes)])


def _scratch(problem: Problem, copies: int) -> Scratch:
    tasks, buffers = problem.tasks, problem.buffers
    rows = [np.full(length, -1, np.int64) for length in (tasks, tasks, buffers, buffers, buffers, *[copies] * 4)]
    return Scratch._make([*rows, np.zeros(3, np.int64)])


def _ranges(problem: Problem, plan: Plan, alignment: int) -> Ranges | None:
    """Ranges of the accepted lifetimes of a plan; None if one is outside the arena, unaligned or not where it must be.

    A copy that takes storage over begins once the source has ended.
    """
    lives, offsets, arena_bytes = plan.lifetimes, _integers(plan.offsets), plan.arena_bytes
    copies, steps = len(lives.buffer), len(plan.order)
    if arena_bytes is None or len(offsets) != copies + steps:
        return None
    size = np.where(problem.space[lives.buffer] == DEVICE, problem.size[lives.buffer], 0)
    takes = (lives.taken_from >= 0) & (size > 0)
    source = lives.taken_from[takes]
    if (offsets[:copies][takes] != offsets[source]).any():
        return None
    start = lives.start.copy()
    start[takes] = lives.stop[source]
    first = np.append(start, np.arange(steps))
    end = np.append(lives.stop, np.arange(1, steps + 1))
    bytes = np.append(size, problem.workspace[plan.order])
    used = np.flatnonzero((bytes > 0) & (first < end))
    low = offsets[used]
    if (low < 0).any() or (low > arena_bytes - bytes[used]).any() or (low % alignment).any():
        return None
    high = low + bytes[used]
    first, end = first[used], end[used]
    by_first, by_end = (np.argsort(column, kind="stable") for column in (first, end))
    columns = map(_integers, (low, high, by_first, by_end, first, end))
    return Ranges._make([*columns, np.zeros(len(used), np.int64), np.zeros(len(used), np.int64)])


def _columns(*relations: Csr) -> list[np.ndarray]:
    return [_integers(column) for relation in relations for column in (relation.pointer, relation.index)]


def _integers(column: np.ndarray | None) -> np.ndarray:
    return _read_only(column, np.int64)


def _read_only(column: np.ndarray | None, dtype: type) -> np.ndarray:
    """A view of the column, as kernels take it."""
    view: np.ndarray = np.ascontiguousarray(column, dtype).view()
    view.flags.writeable = False
    return view
