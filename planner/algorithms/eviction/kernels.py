"""Kernels that run the base order within a memory limit and evict buffers; see `runs.py` and `problem/jit.py`."""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.problem.jit import Kernels, Reals, Row

# Entries of `RunState.counters`: live bytes, runs so far, live evictable buffers, the last token (which marks the tasks
# and buffers of one walk), entries looked at, and their limit.
BYTES, RUNS, LIVE, TOKEN, LOOKED, MAX_LOOKED, COUNTERS = range(7)
# Results of `run_missing`.
RAN, EVICTED, FAILED = range(3)
# After so many starts of the runs before one task, whose inputs were evicted, a run of the base order fails.
MAX_STARTS = 20
# Counting ticks ends once the price exceeds the least one by this share, which is more than the price is rounded.
ROUNDING = 1e-9


class Columns(NamedTuple):
    """What all runs of one base order read. The rows are named as in `Problem`, and have only buffers with bytes."""

    # By task:
    cost: Row
    workspace: Row
    read_pointer: Row
    read_index: Row
    write_pointer: Row
    write_index: Row
    step_of: Row  # step of the base order
    # By buffer:
    size: Row
    producer: Row  # -1: none
    evictable: Row  # 0 or 1
    until: Row  # last step before which it can be recomputed; if not evictable, the last step at which it may be read
    take_pointer: Row  # inputs whose storage it may take over
    take_index: Row
    reader_pointer: Row
    reader_index: Row
    use_pointer: Row  # its reads in the base order
    use_index: Row  # steps, ascending
    first: Row  # buffers that are live before the first step
    # By step of the base order:
    base: Row  # task
    end_pointer: Row
    end_index: Row  # buffers that are not evictable and are freed after the step


class RunState(NamedTuple):
    """State of one run of the base order."""

    order: Row  # tasks run so far; its length limits their number
    counters: Row
    live: Row  # by buffer, 0 or 1
    members: Row  # live evictable buffers, in no order
    place: Row  # by buffer: its place in `members`
    next_use: Row  # by buffer: entry of its next use in `use_index`
    stale: Row  # by buffer: whether `ticks` is only a lower bound
    ticks: Reals  # by buffer: ticks to recompute it with its missing inputs, and 1
    waiting: Row  # buffers whose ticks `victim` has to count
    ran: Row  # by task, 0 or 1
    marked: Row  # by task: token of the last walk that met it
    met: Row  # by buffer: the same
    pinned: Row  # by buffer: token of the run that reads it, or the next one of the run that writes it
    taken: Row  # by buffer: token of the run that takes its storage over, or writes it to the storage of another one
    wanted: Row  # by step of the base order: token of the missing runs that include it
    pending: Row  # by buffer: reads left in these
    stack: Row


def new_token(r: RunState) -> int:
    """A token that marks nothing yet."""
    r.counters[TOKEN] += 1
    return int(r.counters[TOKEN])


def recompute_ticks(c: Columns, r: RunState, buffer: int, most: float) -> float:
    """Ticks of the buffer's producer and of those of its missing inputs, transitively; part of them if above `most`."""
    token, depth = new_token(r), 1
    r.stack[0] = c.producer[buffer]
    r.marked[c.producer[buffer]] = token
    ticks = 0.0
    while depth and ticks <= most:
        depth -= 1
        task = r.stack[depth]
        ticks += c.cost[task]
        r.counters[LOOKED] += c.read_pointer[task + 1] - c.read_pointer[task]
        for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
            b = c.read_index[entry]
            if r.live[b] == 0 and r.marked[c.producer[b]] != token:
                r.marked[c.producer[b]] = token
                r.stack[depth] = c.producer[b]
                depth += 1
    return ticks


def own_ticks(c: Columns, buffer: int) -> float:
    """What `ticks` is at least: the ticks of the buffer's producer alone, and 1."""
    return float(c.cost[c.producer[buffer]] + 1.0)


def mark_stale(c: Columns, r: RunState, buffer: int) -> None:
    """Mark `ticks` as stale for the buffers that are computed from this one, directly or over missing ones.

    Once it is live they may take less, down to the ticks of their own tasks; once it is missing they take more.
    """
    token, depth = new_token(r), 1
    r.stack[0] = buffer
    r.met[buffer] = token
    while depth:
        depth -= 1
        b = r.stack[depth]
        r.counters[LOOKED] += c.reader_pointer[b + 1] - c.reader_pointer[b]
        for entry in range(c.reader_pointer[b], c.reader_pointer[b + 1]):
            task = c.reader_index[entry]
            if r.ran[task] == 0:
                continue
            for output in range(c.write_pointer[task], c.write_pointer[task + 1]):
                other = c.write_index[output]
                if r.met[other] == token:
                    continue
                r.met[other] = token
                r.stale[other] = 1
                if r.live[buffer]:
                    r.ticks[other] = own_ticks(c, other)
                if r.live[other] == 0:
                    r.stack[depth] = other
                    depth += 1


def add(c: Columns, r: RunState, buffer: int) -> None:
    """Make the buffer live, unless it is."""
    if r.live[buffer]:
        return
    r.live[buffer] = r.stale[buffer] = 1
    r.counters[BYTES] += c.size[buffer]
    if c.evictable[buffer]:
        r.ticks[buffer] = own_ticks(c, buffer)
        r.place[buffer] = r.counters[LIVE]
        r.members[r.counters[LIVE]] = buffer
        r.counters[LIVE] += 1
    mark_stale(c, r, buffer)


def remove(c: Columns, r: RunState, buffer: int) -> None:
    """Free the buffer, if it is live."""
    if r.live[buffer] == 0:
        return
    r.live[buffer] = 0
    r.counters[BYTES] -= c.size[buffer]
    if c.evictable[buffer]:
        r.counters[LIVE] -= 1
        last = r.members[r.counters[LIVE]]
        r.members[r.place[buffer]] = last
        r.place[last] = r.place[buffer]
    mark_stale(c, r, buffer)


def use_after(c: Columns, r: RunState, buffer: int, step: int) -> int:
    """Entry in `use_index` of the buffer's first use at `step` or later; the end of its row if there is none."""
    use = r.next_use[buffer]
    while use < c.use_pointer[buffer + 1] and c.use_index[use] < step:
        use += 1
    return int(use)


def weight_of(c: Columns, use: int, step: int, of_uses: Reals, of_steps: Reals) -> float:
    """Weight of a use (an entry of `use_index`), times that of the steps from `step` to it."""
    return float(of_uses[use] * of_steps[c.use_index[use] - step])


def price_of(ticks: float, weight: float, by_root: bool) -> float:
    """Ticks divided by a weight; `by_root`: the square root of the ticks counts."""
    return (math.sqrt(ticks) if by_root else ticks) / weight


def victim(c: Columns, r: RunState, step: int, pin: int, of_uses: Reals, of_steps: Reals, by_root: bool) -> int:
    """The live buffer to evict before the task of `step` runs, that no missing run reads; -1: none.

    The largest one that nothing reads any more, else the one with the least price: its ticks over the weight of its
    next use and the weight of the steps to that. Stale ticks are counted last, as far as they may be the least.
    Buffers pinned since the token `pin` belong to the run that needs the room, and are not evicted.
    """
    best, least, waiting = -1, math.inf, 0
    r.counters[LOOKED] += r.counters[LIVE]
    for at in range(r.counters[LIVE]):
        b = r.members[at]
        if r.pinned[b] >= pin or r.pending[b] > 0:
            continue
        use = r.next_use[b] = use_after(c, r, b, step)
        if use == c.use_pointer[b + 1]:
            price = -float(c.size[b])
        elif c.use_index[use] > c.until[b]:
            continue
        elif r.stale[b]:
            r.waiting[waiting] = b
            waiting += 1
            continue
        else:
            price = price_of(r.ticks[b], weight_of(c, use, step, of_uses, of_steps), by_root)
        if price < least or (price == least and b < best):
            best, least = b, price
    for at in range(waiting):
        b = r.waiting[at]
        weight = weight_of(c, r.next_use[b], step, of_uses, of_steps)
        if price_of(r.ticks[b], weight, by_root) > least:
            continue
        most = least * weight * (1 + ROUNDING)
        r.ticks[b] = recompute_ticks(c, r, b, most * most if by_root else most) + 1.0
        price = price_of(r.ticks[b], weight, by_root)
        if price > least:
            continue
        r.stale[b] = 0
        if price < least or b < best:
            best, least = b, price
    return int(best)


def farthest_pending(c: Columns, r: RunState, first: int, step: int, token: int, pin: int) -> int:
    """The live evictable buffer whose next read by missing runs is the latest; -1: none. The runs begin at `first`."""
    found, seen = -1, new_token(r)
    r.counters[LOOKED] += step - first + 1
    for at in range(first, step + 1):
        if r.wanted[at] != token:
            continue
        task = c.base[at]
        for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
            b = c.read_index[entry]
            if r.met[b] != seen:
                r.met[b] = seen
                if r.live[b] and c.evictable[b] and c.until[b] >= step and r.pinned[b] < pin:
                    found = b
    return int(found)


def take_over(c: Columns, r: RunState, output: int, step: int, at: int, pin: int, evicts: bool) -> int:
    """Let an output take over the storage of an input, and return the bytes that this saves, 0 if there is none.

    The input is freed after the run, which is that of step `at` in the base order. It has no later reads, or, if this
    `evicts` it, none by missing runs.
    """
    if r.live[output] or r.taken[output] == pin:
        return 0
    for entry in range(c.take_pointer[output], c.take_pointer[output + 1]):
        b = c.take_index[entry]
        is_read = r.live[b] == 1 and r.pinned[b] == pin and r.pending[b] == 1
        if not is_read or r.taken[b] == pin or c.size[b] < c.size[output]:
            continue
        if c.evictable[b]:
            use = use_after(c, r, b, step + 1)
            is_last = use == c.use_pointer[b + 1] or (evicts and c.use_index[use] <= c.until[b])
        else:
            is_last = at == step and c.until[b] <= step
        if is_last:
            r.taken[b] = r.taken[output] = pin
            return int(c.size[output])
    return 0


def find_missing(c: Columns, r: RunState, step: int) -> int:
    """Mark in `wanted` the task of `step` and the runs that it needs before it; returns the first step marked.

    `pending` counts their reads. The token is the last one.
    """
    token, depth, first = new_token(r), 1, step
    r.stack[0] = c.base[step]
    r.wanted[step] = token
    while depth:
        depth -= 1
        task = r.stack[depth]
        for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
            b = c.read_index[entry]
            r.pending[b] += 1
            if r.live[b] == 0:
                at = c.step_of[c.producer[b]]
                if r.wanted[at] != token:
                    r.wanted[at] = token
                    first = min(first, at)
                    r.stack[depth] = c.producer[b]
                    depth += 1
    r.counters[LOOKED] += step - first + 1
    return int(first)


def forget_missing(c: Columns, r: RunState, first: int, step: int, token: int) -> None:
    """Set `pending` to 0 for all reads of the missing runs."""
    for at in range(first, step + 1):
        if r.wanted[at] == token:
            task = c.base[at]
            for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
                r.pending[c.read_index[entry]] = 0


def run_missing(
    c: Columns, r: RunState, first: int, step: int, room: int, of_uses: Reals, of_steps: Reals, by_root: bool
) -> int:
    """Run the marked tasks; EVICTED if an input of one was evicted meanwhile, FAILED without room or at a limit."""
    token = r.counters[TOKEN]
    for at in range(first, step + 1):
        if r.wanted[at] != token:
            continue
        task = c.base[at]
        pin, needed = new_token(r), c.workspace[task]
        for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
            b = c.read_index[entry]
            if r.live[b] == 0:
                forget_missing(c, r, first, step, token)
                return EVICTED
            r.pinned[b] = pin
        written = new_token(r)
        for entry in range(c.write_pointer[task], c.write_pointer[task + 1]):
            r.pinned[c.write_index[entry]] = written
        for entry in range(c.write_pointer[task], c.write_pointer[task + 1]):
            b = c.write_index[entry]
            if r.live[b] == 0 or c.evictable[b] == 0:  # of one that is held the step has the value before, too
                needed += c.size[b] - take_over(c, r, b, step, at, pin, False)
        while r.counters[BYTES] + needed > room and r.counters[LOOKED] <= r.counters[MAX_LOOKED]:
            b = victim(c, r, step, pin, of_uses, of_steps, by_root)
            if b < 0:
                b = farthest_pending(c, r, at + 1, step, token, pin)
            if b < 0:
                break
            remove(c, r, b)
        for entry in range(c.write_pointer[task], c.write_pointer[task + 1]):
            if r.counters[BYTES] + needed > room:
                needed -= take_over(c, r, c.write_index[entry], step, at, pin, True)
        is_at_limit = r.counters[RUNS] == len(r.order) or r.counters[LOOKED] > r.counters[MAX_LOOKED]
        if is_at_limit or r.counters[BYTES] + needed > room:
            return FAILED
        r.order[r.counters[RUNS]] = task
        r.counters[RUNS] += 1
        r.ran[task] = 1
        for entry in range(c.read_pointer[task], c.read_pointer[task + 1]):
            r.pending[c.read_index[entry]] -= 1
            if r.taken[c.read_index[entry]] == pin:
                remove(c, r, c.read_index[entry])
        for entry in range(c.write_pointer[task], c.write_pointer[task + 1]):
            b = c.write_index[entry]
            if c.evictable[b] or c.until[b] >= step:  # else nothing reads it any more
                add(c, r, b)
    return RAN


def run_base_order(c: Columns, r: RunState, room: int, of_uses: Reals, of_steps: Reals, by_root: bool) -> int:
    """Run the base order within `room` bytes; the number of runs in `order`, or -1 without room or at a limit."""
    for at in range(len(c.first)):
        add(c, r, c.first[at])
    for step in range(len(c.base)):
        result = EVICTED
        for _ in range(MAX_STARTS):
            first = find_missing(c, r, step)
            result = run_missing(c, r, first, step, room, of_uses, of_steps, by_root)
            if result != EVICTED:
                break
        if result != RAN:
            return -1
        for entry in range(c.end_pointer[step], c.end_pointer[step + 1]):
            remove(c, r, c.end_index[entry])
    return int(r.counters[RUNS])


KERNELS = Kernels((run_base_order,))
