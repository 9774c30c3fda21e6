"""Simulated annealing kernels on an `AnnealingTimeline`: moves, and the loop that accepts or undoes them."""

from __future__ import annotations

import math

from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.reorder_kernels import is_repeat, random_below, random_unit, try_move_first
from planner.algorithms.annealing.timeline_kernels import (
    AnnealingTimeline,
    add_repeat,
    commit,
    drop_repeat,
    fill,
    has_log_room,
    is_read,
    move_run,
    read_count,
    run_after,
    slot_of,
    undo,
)
from planner.problem.jit import Kernels, Reals, Row

# Maximum runs that one move may add after the first.
MAX_ADDED = 24
# Probability of moving a later recomputation forward instead of adding one.
PULL_CHANCE = 0.7
# Maximum draws of a slot over the limit.
MAX_TRIES = 16


def is_unread(t: AnnealingTimeline, run: int) -> bool:
    """Whether no output of a recomputation is read."""
    task = t.runs[run, on.TASK]
    begin = t.runs[run, on.USE] + read_count(t, task)
    for use in range(begin, t.runs[run, on.USE] + t.tasks[task, on.DEGREE]):
        if is_read(t, t.uses[use, on.NEXT]):
            return False
    return True


def unread_repeat(t: AnnealingTimeline, use: int) -> int:
    """The run of a write, if it is a recomputation whose outputs are not read; else -1."""
    run = t.uses[use, on.RUN]
    return int(run) if t.uses[use, on.READS] == 0 and is_repeat(t, run) and is_unread(t, run) else -1


def prune(t: AnnealingTimeline, run: int, stack: Row) -> None:
    """Remove a recomputation, and the runs that served it only."""
    stack[0] = run
    depth = 1
    while depth > 0:
        depth -= 1
        run = stack[depth]
        if t.runs[run, on.SLOT] < 0 or t.slot_run[t.runs[run, on.SLOT]] != run or not has_log_room(t):
            continue
        begin = t.runs[run, on.USE]
        count = read_count(t, t.runs[run, on.TASK])
        for k in range(count):
            t.scratch[k, on.HELD] = t.uses[begin + k, on.BEFORE]
        drop_repeat(t, run)
        for k in range(count):
            source = unread_repeat(t, t.scratch[k, on.HELD])
            if source >= 0 and depth < len(stack):
                stack[depth] = source
                depth += 1


def may_recompute_before(t: AnnealingTimeline, task: int, slot: int) -> bool:
    """Whether the task may be recomputed before `slot`: after its first run, before its inputs are overwritten."""
    if t.runs[t.tasks[task, on.FIRST_RUN], on.SLOT] >= slot:
        return False
    for entry in range(t.tasks[task, on.EVERY], t.tasks[task, on.EARLIER]):
        if t.runs[t.tasks[t.rows[entry], on.FIRST_RUN], on.SLOT] < slot:
            return False
    return True


def is_affordable(t: AnnealingTimeline, task: int) -> bool:
    """Whether one more run of the task leaves the move a chance of acceptance."""
    return bool(t.counters[on.TICKS] + t.tasks[task, on.COST] <= t.counters[on.ALLOWED])


def producer_to_recompute(t: AnnealingTimeline, use: int, chance: float) -> int:
    """The producer of a dead input, drawn with `chance` if it may be recomputed for this read; else -1."""
    producer, slot = t.buffers[t.uses[use, on.BUFFER], on.PRODUCER], slot_of(t, use)
    before, following = t.uses[use, on.BEFORE], t.uses[use, on.NEXT]
    if producer < 0 or t.tasks[producer, on.RECOMPUTABLE] == 0 or is_read(t, following) or before < 0:
        return -1
    if slot - slot_of(t, before) < 2 or random_unit(t) >= chance:
        return -1
    return int(producer) if may_recompute_before(t, producer, slot) else -1


def recompute_inputs(t: AnnealingTimeline, run: int, chance: float, stack: Row) -> None:
    """Recompute dead inputs of a new run too, or move a later recomputation forward, instead of holding them."""
    stack[0] = run
    depth = 1
    added = 0
    while depth > 0:
        depth -= 1
        user = stack[depth]
        begin = t.runs[user, on.USE]
        for use in range(begin, begin + read_count(t, t.runs[user, on.TASK])):
            producer = producer_to_recompute(t, use, chance)
            if producer < 0:
                continue
            following = t.uses[use, on.NEXT]
            later = t.uses[following, on.RUN] if following >= 0 else on.END
            if is_repeat(t, later) and random_unit(t) < PULL_CHANCE and move_run(t, later, user):
                continue
            if added >= MAX_ADDED or not is_affordable(t, producer):
                continue
            added += 1
            extra = add_repeat(t, producer, user)
            if extra >= 0 and depth < len(stack):
                stack[depth] = extra
                depth += 1


def slot_over_limit(t: AnnealingTimeline) -> int:
    """A slot over the limit if one of a few draws is, else any slot."""
    slot = 0
    for _ in range(MAX_TRIES):
        slot = random_below(t, len(t.slot_run))
        if t.bytes[slot] > t.counters[on.LIMIT]:
            break
    return slot


def gap_across(t: AnnealingTimeline, slot: int) -> int:
    """A recomputable read after `slot` of a buffer last used before it; -1: none found."""
    slots = len(t.slot_run)
    for _ in range(2 * MAX_TRIES):
        run = run_after(t, slot + random_below(t, slots - slot))
        if run == on.END:
            continue
        task = t.runs[run, on.TASK]
        count = read_count(t, task)
        if count == 0:
            continue
        use = t.runs[run, on.USE] + random_below(t, count)
        before, producer = t.uses[use, on.BEFORE], t.buffers[t.uses[use, on.BUFFER], on.PRODUCER]
        if before >= 0 and slot_of(t, before) < slot and producer >= 0 and t.tasks[producer, on.RECOMPUTABLE] == 1:
            return int(use)
    return -1


def try_insert(t: AnnealingTimeline, stack: Row) -> bool:
    """Move: recompute a buffer that is held over the limit without being used."""
    use = gap_across(t, slot_over_limit(t))
    if use < 0:
        return False
    task, reader, before = t.buffers[t.uses[use, on.BUFFER], on.PRODUCER], t.uses[use, on.RUN], t.uses[use, on.BEFORE]
    if not is_affordable(t, task):
        return False
    if random_unit(t) < 0.2:  # anywhere in the gap instead of right before its end
        first, last = slot_of(t, before), t.runs[reader, on.SLOT]
        if last - first > 2:
            reader = run_after(t, first + random_below(t, last - first - 1))
    if not may_recompute_before(t, task, t.runs[reader, on.SLOT]):
        return False
    run = add_repeat(t, task, reader)
    if run < 0:
        return False
    recompute_inputs(t, run, 0.2 + 0.8 * random_unit(t), stack)
    source = unread_repeat(t, before)
    if source >= 0:
        prune(t, source, stack)
    return True


def try_drop(t: AnnealingTimeline, stack: Row) -> bool:
    """Move: hold a buffer instead of recomputing it."""
    if t.counters[on.REPEATS] == 0:
        return False
    prune(t, t.runs[random_below(t, t.counters[on.REPEATS]), on.REPEAT], stack)
    return True


def try_move_repeat(t: AnnealingTimeline, stack: Row) -> bool:
    """Move: run a recomputation earlier or later, near its place or right before the next use of its output."""
    if t.counters[on.REPEATS] == 0:
        return False
    run = t.runs[random_below(t, t.counters[on.REPEATS]), on.REPEAT]
    task = t.runs[run, on.TASK]
    count = read_count(t, task)
    written = t.runs[run, on.USE] + count + random_below(t, max(t.tasks[task, on.DEGREE] - count, 1))
    following = t.uses[written, on.NEXT]
    if random_unit(t) < 0.4 and is_read(t, following):
        target = t.uses[following, on.RUN]
        if random_unit(t) < 0.3 and is_read(t, t.uses[following, on.NEXT]):
            target = t.uses[t.uses[following, on.NEXT], on.RUN]
    else:
        slots = len(t.slot_run)
        reach = 2 + int(math.exp(random_unit(t) * math.log(slots)))
        slot = t.runs[run, on.SLOT] + random_below(t, 2 * reach + 1) - reach
        target = run_after(t, min(max(slot, 0), slots - 1))
    slot = t.runs[target, on.SLOT]
    if target == run or not may_recompute_before(t, task, slot) or not move_run(t, run, target):
        return False
    if is_unread(t, run):
        prune(t, run, stack)
    elif random_unit(t) < 0.5:
        recompute_inputs(t, run, 0.5, stack)
    return True


# Entries of the factors: temperature in mean task costs, mean task costs per byte over the limit and per tick, bytes
# over the limit (summed over slots) below which the penalty falls.
TEMPERATURE, PENALTY, PER_TICK, SLACK, FACTORS = range(5)
# Moves between two updates of the penalty, and the factor of an update.
ADAPT, LARGER, SMALLER = 200, 1.05, 0.97
# Maximum ticks that a move may add.
MAX_TICKS = 2.0**60


def store_best(t: AnnealingTimeline, best: Row) -> None:
    """Store the order in `best`: its length, then its tasks."""
    t.counters[on.BEST] = t.counters[on.TICKS]
    count = 0
    for slot in range(len(t.slot_run)):
        if t.slot_run[slot] >= 0:
            count += 1
            best[count] = t.runs[t.slot_run[slot], on.TASK]
    best[0] = count


def try_any(t: AnnealingTimeline, first_runs: int, stack: Row) -> bool:
    """One random move; `first_runs` is the chance in 100 that it moves a first run."""
    draw = random_below(t, 100)
    if draw < first_runs:
        return try_move_first(t, stack)
    draw = random_below(t, 100)
    if (draw < 45 and t.counters[on.OVER] > 0) or draw < 20:
        return try_insert(t, stack)
    if draw < 75:
        return try_drop(t, stack)
    return try_move_repeat(t, stack)


def anneal(t: AnnealingTimeline, moves: int, first_runs: int, factors: Reals, stack: Row, best: Row) -> int:
    """Try `moves` moves at one temperature; returns the number accepted. `best` gets a cheaper order within the limit.

    The acceptance threshold is drawn before the move, so that no move adds runs that it cannot afford. Where only first
    runs move, ticks do not change and the penalty is constant.
    """
    accepted = 0
    for move in range(moves):
        ticks, over = t.counters[on.TICKS], t.counters[on.OVER]
        threshold = -math.log(random_unit(t)) * factors[TEMPERATURE]
        t.counters[on.ALLOWED] = ticks + int(min((threshold + over * factors[PENALTY]) / factors[PER_TICK], MAX_TICKS))
        if not try_any(t, first_runs, stack):
            undo(t)
            continue
        worse = (t.counters[on.TICKS] - ticks) * factors[PER_TICK] + (t.counters[on.OVER] - over) * factors[PENALTY]
        if worse <= threshold:
            commit(t)
            accepted += 1
            if t.counters[on.OVER] <= t.counters[on.MAX_OVER] and t.counters[on.TICKS] < t.counters[on.BEST]:
                store_best(t, best)
        else:
            undo(t)
        if move % ADAPT == 0 and first_runs < 100:
            factors[PENALTY] *= LARGER if t.counters[on.OVER] > factors[SLACK] else SMALLER
    return accepted


KERNELS = Kernels((fill, anneal))
