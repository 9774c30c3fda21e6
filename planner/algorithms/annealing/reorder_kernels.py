"""Kernels that move first runs of an `AnnealingTimeline`: one within the window its neighbours leave, or a group.

    a   b   c  |  u        u needs b: `u` may move left of `|` alone, and left of `b` only with `b` before it

Moves of single tasks get stuck where many edges leave small windows; a group can cross them.
"""

from __future__ import annotations

import math

from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.timeline_kernels import AnnealingTimeline, move_run, read_count, run_after, slot_of
from planner.problem.jit import Row

# Chance in 100 that a move of a first run is at a slot over the limit, and that it moves a group.
OVER_LIMIT_PERCENT, GROUP_PERCENT = 70, 50
# Slots visited when searching for one over the limit.
MAX_VISITED = 256
# Maximum runs of a group.
MAX_GROUP = 12
MODULUS = 2147483647


def random_below(t: AnnealingTimeline, count: int) -> int:
    """A random integer in [0, count), by the generator of Park and Miller (1988)."""
    t.counters[on.RANDOM] = t.counters[on.RANDOM] * 48271 % MODULUS
    return int(t.counters[on.RANDOM] % count)


def random_unit(t: AnnealingTimeline) -> float:
    """A random number in (0, 1)."""
    t.counters[on.RANDOM] = t.counters[on.RANDOM] * 48271 % MODULUS
    return float(t.counters[on.RANDOM] / MODULUS)


def is_repeat(t: AnnealingTimeline, run: int) -> bool:
    """Whether the run is a recomputation."""
    return bool(run > on.END and t.tasks[t.runs[run, on.TASK], on.FIRST_RUN] != run)


def nearby_slot(t: AnnealingTimeline, slot: int) -> int:
    """A slot at a log-uniform random distance; it may be out of range."""
    distance = int(math.exp(random_unit(t) * math.log(len(t.slot_run))))
    return int(slot - distance if random_below(t, 2) == 0 else slot + distance)


def next_over_limit(t: AnnealingTimeline, slot: int) -> int:
    """The first slot over the limit within a few slots from `slot` on; -1: none."""
    for at in range(slot, min(slot + MAX_VISITED, len(t.slot_run))):
        if t.bytes[at] > t.counters[on.LIMIT]:
            return int(at)
    return -1


def window(t: AnnealingTimeline, run: int) -> tuple[int, int]:
    """(low, high) slots of the runs between which a first run may be placed."""
    task = t.runs[run, on.TASK]
    phase, low, high = t.tasks[task, on.PHASE], -1, len(t.slot_run)
    if phase > 0:
        low = t.runs[t.tasks[len(t.tasks) - 3 + phase, on.FIRST_RUN], on.SLOT]
    if phase < 2:
        high = t.runs[t.tasks[len(t.tasks) - 2 + phase, on.FIRST_RUN], on.SLOT]
    begin = t.runs[run, on.USE]
    count = read_count(t, task)
    for use in range(begin, begin + count):
        low = max(low, slot_of(t, t.buffers[t.uses[use, on.BUFFER], on.FIRST]))
    for use in range(begin + count, begin + t.tasks[task, on.DEGREE]):
        if t.uses[use, on.NEXT] >= 0:
            high = min(high, slot_of(t, t.uses[use, on.NEXT]))
    for entry in range(t.tasks[task, on.EARLIER], t.tasks[task, on.LATER]):
        low = max(low, t.runs[t.tasks[t.rows[entry], on.FIRST_RUN], on.SLOT])
    for entry in range(t.tasks[task, on.LATER], t.tasks[task, on.ENTRIES_END]):
        high = min(high, t.runs[t.tasks[t.rows[entry], on.FIRST_RUN], on.SLOT])
    return int(low), int(high)


def collect_group(t: AnnealingTimeline, run: int, count: int, stack: Row) -> int:
    """Number of runs in the group of `run`, left on `stack`; -1: not movable, or too many."""
    for k in range(count):
        if stack[k] == run:
            return count
    if run <= on.END or is_repeat(t, run) or t.tasks[t.runs[run, on.TASK], on.MOVABLE] == 0 or count == MAX_GROUP:
        return -1
    at = count
    while at > 0 and t.runs[stack[at - 1], on.SLOT] > t.runs[run, on.SLOT]:
        stack[at] = stack[at - 1]
        at -= 1
    stack[at] = run
    return count + 1


def collect_producers(t: AnnealingTimeline, run: int, slot: int, count: int, stack: Row) -> int:
    """`collect_group` for every first run that `run` depends on and that is not before `slot`; -1: not possible."""
    task, here = t.runs[run, on.TASK], t.runs[run, on.SLOT]
    phase = t.tasks[task, on.PHASE]
    if phase > 0 and t.runs[t.tasks[len(t.tasks) - 3 + phase, on.FIRST_RUN], on.SLOT] >= slot:
        return -1
    begin = t.runs[run, on.USE]
    for use in range(begin, begin + read_count(t, task)):
        first = t.buffers[t.uses[use, on.BUFFER], on.FIRST]
        if slot_of(t, first) >= slot:
            count = collect_group(t, t.uses[first, on.RUN], count, stack)
            if count < 0:
                return -1
    for entry in range(t.tasks[task, on.EARLIER], t.tasks[task, on.LATER]):
        other = t.tasks[t.rows[entry], on.FIRST_RUN]
        if t.runs[other, on.SLOT] >= slot:
            count = collect_group(t, other, count, stack) if t.runs[other, on.SLOT] < here else -1
            if count < 0:
                return -1
    return count


def collect_readers(t: AnnealingTimeline, run: int, slot: int, count: int, stack: Row) -> int:
    """`collect_group` for every first run that depends on `run` and is before `slot`; -1: not possible."""
    task, here = t.runs[run, on.TASK], t.runs[run, on.SLOT]
    phase = t.tasks[task, on.PHASE]
    if phase < 2 and t.runs[t.tasks[len(t.tasks) - 2 + phase, on.FIRST_RUN], on.SLOT] < slot:
        return -1
    begin = t.runs[run, on.USE]
    for written in range(begin + read_count(t, task), begin + t.tasks[task, on.DEGREE]):
        use = t.uses[written, on.NEXT]
        while use >= 0 and slot_of(t, use) < slot:
            if t.uses[use, on.READS] == 0:
                return -1
            count = collect_group(t, t.uses[use, on.RUN], count, stack)
            if count < 0:
                return -1
            use = t.uses[use, on.NEXT]
    for entry in range(t.tasks[task, on.LATER], t.tasks[task, on.ENTRIES_END]):
        other = t.tasks[t.rows[entry], on.FIRST_RUN]
        if t.runs[other, on.SLOT] < slot:
            count = collect_group(t, other, count, stack) if t.runs[other, on.SLOT] > here else -1
            if count < 0:
                return -1
    return count


def move_group_before(t: AnnealingTimeline, run: int, target: int, stack: Row) -> bool:
    """Place a first run right before another run, after those it depends on that are behind that run."""
    slot, count = t.runs[target, on.SLOT], 1
    stack[0] = run
    low = t.runs[run, on.SLOT] + 1
    while True:  # the last of the group whose producers are not collected yet
        at = count - 1
        while at >= 0 and t.runs[stack[at], on.SLOT] >= low:
            at -= 1
        if at < 0:
            break
        low = t.runs[stack[at], on.SLOT]
        count = collect_producers(t, stack[at], slot, count, stack)
        if count < 0:
            return False
    moved = bool(stack[0] != target)
    for k in range(count):
        moved = moved and move_run(t, stack[k], target)
    return moved


def move_group_behind(t: AnnealingTimeline, run: int, target: int, stack: Row) -> bool:
    """Place a first run right before a later run, followed by those that depend on it and are before that run."""
    slot, count = t.runs[target, on.SLOT], 1
    stack[0] = run
    high = t.runs[run, on.SLOT] - 1
    while True:  # the first of the group whose readers are not collected yet
        at = 0
        while at < count and t.runs[stack[at], on.SLOT] <= high:
            at += 1
        if at == count:
            break
        high = t.runs[stack[at], on.SLOT]
        count = collect_readers(t, stack[at], slot, count, stack)
        if count < 0:
            return False
    for k in range(count - 1, -1, -1):
        if run_after(t, t.runs[stack[k], on.SLOT]) != target and not move_run(t, stack[k], target):
            return False
        target = stack[k]
    return True


def try_move_first(t: AnnealingTimeline, stack: Row) -> bool:
    """Move: place a first run elsewhere, together with predecessors or successors in the way."""
    slots, crowded = len(t.slot_run), -1
    at = random_below(t, slots)
    if t.counters[on.OVER] > 0 and random_below(t, 100) < OVER_LIMIT_PERCENT:
        crowded = next_over_limit(t, at)
        at = at if crowded < 0 else min(max(nearby_slot(t, crowded), 0), slots - 1)
    run = run_after(t, at)
    if run == on.END or is_repeat(t, run) or t.tasks[t.runs[run, on.TASK], on.MOVABLE] == 0:
        return False
    here = t.runs[run, on.SLOT]
    low, high = window(t, run)
    if not low < here < high:  # an order from elsewhere, which has a resident buffer read before its writer
        return False
    if random_below(t, 100) < GROUP_PERCENT:
        slot = min(max(nearby_slot(t, here), 0), slots - 1)
        if slot <= low:
            return move_group_before(t, run, run_after(t, slot), stack)
        if slot >= high:
            return move_group_behind(t, run, run_after(t, slot), stack)
    if high - low < 2:
        return False
    slot = low + random_below(t, high - low)  # from right after the run at `low` to right before the one at `high`
    if low < crowded < high:
        slot = low + random_below(t, crowded - low) if here >= crowded else crowded + random_below(t, high - crowded)
    target = run_after(t, slot)
    return bool(target != run and t.runs[target, on.SLOT] <= high and move_run(t, run, target))
