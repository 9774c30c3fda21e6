"""Kernels that run the base order within a memory limit and evict buffers; see `runs.py` and `problem/jit.py`."""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.problem.jit import Kernels, Reals, Row

# Entries of `SimulatedRun.counters`: bytes live, runs so far, live evictable buffers, the last of the tokens that mark
# the tasks and buffers of one walk, and the reads, writes and buffers looked at, up to a limit.
BYTES, RUNS, LIVE, TOKEN, LOOKED, MOST_LOOKED, COUNTERS = range(7)
# Results of `run_missing`.
RAN, EVICTED, FAILED = range(3)
# After so many starts of the runs before one task, whose inputs were evicted again, a simulation fails.
MAX_STARTS = 20


class FixedColumns(NamedTuple):
    """What all runs of one base order read. Only buffers with bytes are there; CSR rows are named as in `Problem`."""

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
    producer: Row  # -1: there from the start
    evictable: Row
    until: Row  # last step at which it can be recomputed; if it is not evictable, last step at which it may be read
    take_pointer: Row  # inputs whose storage it may take over
    take_index: Row
    reader_pointer: Row
    reader_index: Row
    use_pointer: Row  # its reads in the base order
    use_index: Row  # steps, ascending
    begin: Row  # buffers that are there from the start
    # By step of the base order:
    base: Row  # task
    end_pointer: Row
    end_index: Row  # buffers that are not evictable and are dropped after the step


class SimulatedRun(NamedTuple):
    """State of a run, after the columns of `FixedColumns`."""

    cost: Row
    workspace: Row
    read_pointer: Row
    read_index: Row
    write_pointer: Row
    write_index: Row
    step_of: Row
    size: Row
    producer: Row
    evictable: Row
    until: Row
    take_pointer: Row
    take_index: Row
    reader_pointer: Row
    reader_index: Row
    use_pointer: Row
    use_index: Row
    begin: Row
    base: Row
    end_pointer: Row
    end_index: Row

    order: Row  # tasks run so far; its length limits their number
    counters: Row
    live: Row  # by buffer, 0 or 1
    members: Row  # live evictable buffers, in no order
    place: Row  # by buffer: its place in `members`
    next_use: Row  # by buffer: entry of its next use in `use_index`
    stale: Row  # by buffer: whether `regain` is out of date
    regain: Reals  # by buffer: ticks to recompute it, with its missing inputs
    ran: Row  # by task, 0 or 1
    marked: Row  # by task: token of the last walk that met it
    met: Row  # by buffer: the same
    pinned: Row  # by buffer: token of the run that reads or writes it
    taken: Row  # by buffer: token of the run that takes its storage over, or takes another one over for it
    wanted: Row  # by step of the base order: token of the missing runs that have it
    pending: Row  # by buffer: reads left in these
    stack: Row


def new_token(r: SimulatedRun) -> int:
    """A token that marks nothing yet."""
    r.counters[TOKEN] += 1
    return int(r.counters[TOKEN])


def ticks_to_regain(r: SimulatedRun, buffer: int) -> float:
    """Ticks of the buffer's producer and of those of its missing inputs, transitively."""
    token, depth = new_token(r), 1
    r.stack[0] = r.producer[buffer]
    r.marked[r.producer[buffer]] = token
    ticks = 0.0
    while depth:
        depth -= 1
        task = r.stack[depth]
        ticks += r.cost[task]
        r.counters[LOOKED] += r.read_pointer[task + 1] - r.read_pointer[task]
        for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
            b = r.read_index[entry]
            if r.live[b] == 0 and r.marked[r.producer[b]] != token:
                r.marked[r.producer[b]] = token
                r.stack[depth] = r.producer[b]
                depth += 1
    return ticks


def touch_readers(r: SimulatedRun, buffer: int) -> None:
    """Mark `regain` as stale for the live buffers that are recomputed from this one, over missing ones."""
    token, depth = new_token(r), 1
    r.stack[0] = buffer
    r.met[buffer] = token
    while depth:
        depth -= 1
        b = r.stack[depth]
        r.counters[LOOKED] += r.reader_pointer[b + 1] - r.reader_pointer[b]
        for entry in range(r.reader_pointer[b], r.reader_pointer[b + 1]):
            task = r.reader_index[entry]
            if r.ran[task] == 0:
                continue
            for output in range(r.write_pointer[task], r.write_pointer[task + 1]):
                c = r.write_index[output]
                if r.met[c] == token:
                    continue
                r.met[c] = token
                r.stale[c] = 1
                if r.live[c] == 0:
                    r.stack[depth] = c
                    depth += 1


def add(r: SimulatedRun, buffer: int) -> None:
    """The buffer becomes live, if it is not."""
    if r.live[buffer]:
        return
    r.live[buffer] = r.stale[buffer] = 1
    r.counters[BYTES] += r.size[buffer]
    if r.evictable[buffer]:
        r.place[buffer] = r.counters[LIVE]
        r.members[r.counters[LIVE]] = buffer
        r.counters[LIVE] += 1
    touch_readers(r, buffer)


def remove(r: SimulatedRun, buffer: int) -> None:
    """The buffer is live no more, if it was."""
    if r.live[buffer] == 0:
        return
    r.live[buffer] = 0
    r.counters[BYTES] -= r.size[buffer]
    if r.evictable[buffer]:
        r.counters[LIVE] -= 1
        last = r.members[r.counters[LIVE]]
        r.members[r.place[buffer]] = last
        r.place[last] = r.place[buffer]
    touch_readers(r, buffer)


def victim(r: SimulatedRun, step: int, pin: int, far: Reals, heavy: Reals, by_root: bool) -> int:
    """The live buffer to evict, that no run before the one of `step` reads; -1: none.

    The largest that nothing reads again, else the one with the fewest ticks to regain it per `heavy`, a weight of its
    bytes, and `far`, a weight of the steps to its next use. `by_root`: the square root of the ticks counts.
    """
    best, least = -1, math.inf
    r.counters[LOOKED] += r.counters[LIVE]
    for at in range(r.counters[LIVE]):
        b = r.members[at]
        if r.pinned[b] == pin or r.pending[b] > 0:
            continue
        use = r.next_use[b]
        while use < r.use_pointer[b + 1] and r.use_index[use] < step:
            use += 1
        r.next_use[b] = use
        if use == r.use_pointer[b + 1]:
            price = -float(r.size[b])
        elif r.use_index[use] > r.until[b]:
            continue
        else:
            if r.stale[b]:
                r.regain[b], r.stale[b] = ticks_to_regain(r, b) + 1.0, 0
            ticks = math.sqrt(r.regain[b]) if by_root else r.regain[b]
            price = ticks / (heavy[b] * far[r.use_index[use] - step])
        if price < least or (price == least and b < best):
            best, least = b, price
    return int(best)


def farthest_pending(r: SimulatedRun, first: int, step: int, token: int, pin: int) -> int:
    """Of the live evictable buffers that missing runs from step `first` on read, the one read next last; -1: none."""
    found, seen = -1, new_token(r)
    for at in range(first, step + 1):
        if r.wanted[at] != token:
            continue
        task = r.base[at]
        for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
            b = r.read_index[entry]
            if r.met[b] != seen:
                r.met[b] = seen
                if r.live[b] and r.evictable[b] and r.until[b] >= step and r.pinned[b] != pin:
                    found = b
    return int(found)


def bytes_taken(r: SimulatedRun, output: int, step: int, at: int, pin: int, by_eviction: bool) -> int:
    """Bytes of an output that takes over the storage of an input, which is then gone; 0 if there is no such input.

    `by_eviction`: of an input that is read again too, unless missing runs read it.
    """
    if r.live[output] or r.taken[output] == pin:
        return 0
    for entry in range(r.take_pointer[output], r.take_pointer[output + 1]):
        b = r.take_index[entry]
        if r.live[b] == 0 or r.taken[b] == pin or r.size[b] < r.size[output] or r.pending[b] > 1:
            continue
        if r.evictable[b]:
            use = r.next_use[b]
            while use < r.use_pointer[b + 1] and r.use_index[use] <= step:
                use += 1
            is_last = use == r.use_pointer[b + 1] or (by_eviction and r.use_index[use] <= r.until[b])
        else:
            is_last = at == step and r.until[b] <= step
        if is_last:
            r.taken[b] = r.taken[output] = pin
            return int(r.size[output])
    return 0


def find_missing(r: SimulatedRun, step: int) -> int:
    """Mark the runs that the task of `step` needs before it, and itself, in `wanted`; the first step marked.

    `pending` counts their reads. The token is the last one.
    """
    token, depth, first = new_token(r), 1, step
    r.stack[0] = r.base[step]
    r.wanted[step] = token
    while depth:
        depth -= 1
        task = r.stack[depth]
        for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
            b = r.read_index[entry]
            r.pending[b] += 1
            if r.live[b] == 0:
                at = r.step_of[r.producer[b]]
                if r.wanted[at] != token:
                    r.wanted[at] = token
                    first = min(first, at)
                    r.stack[depth] = r.producer[b]
                    depth += 1
    return int(first)


def forget_missing(r: SimulatedRun, first: int, step: int, token: int) -> None:
    """Nothing is pending any more."""
    for at in range(first, step + 1):
        if r.wanted[at] == token:
            task = r.base[at]
            for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
                r.pending[r.read_index[entry]] = 0


def run_missing(r: SimulatedRun, first: int, step: int, room: int, far: Reals, heavy: Reals, by_root: bool) -> int:
    """Run what `find_missing` has found; EVICTED if an input was evicted again, FAILED without room or at a limit."""
    token = r.counters[TOKEN]
    for at in range(first, step + 1):
        if r.wanted[at] != token:
            continue
        task = r.base[at]
        pin = new_token(r)
        needed = r.workspace[task]
        for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
            b = r.read_index[entry]
            if r.live[b] == 0:
                forget_missing(r, first, step, token)
                return EVICTED
            r.pinned[b] = pin
        for entry in range(r.write_pointer[task], r.write_pointer[task + 1]):
            b = r.write_index[entry]
            r.pinned[b] = pin
            if r.live[b] == 0:
                needed += r.size[b] - bytes_taken(r, b, step, at, pin, False)
        while r.counters[BYTES] + needed > room:
            b = victim(r, step, pin, far, heavy, by_root)
            if b < 0:
                b = farthest_pending(r, at + 1, step, token, pin)
            if b < 0:
                break
            remove(r, b)
        for entry in range(r.write_pointer[task], r.write_pointer[task + 1]):
            if r.counters[BYTES] + needed > room:
                needed -= bytes_taken(r, r.write_index[entry], step, at, pin, True)
        if r.counters[BYTES] + needed > room:
            return FAILED
        if r.counters[RUNS] == len(r.order) or r.counters[LOOKED] > r.counters[MOST_LOOKED]:
            return FAILED
        r.order[r.counters[RUNS]] = task
        r.counters[RUNS] += 1
        r.ran[task] = 1
        for entry in range(r.read_pointer[task], r.read_pointer[task + 1]):
            r.pending[r.read_index[entry]] -= 1
            if r.taken[r.read_index[entry]] == pin:
                remove(r, r.read_index[entry])
        for entry in range(r.write_pointer[task], r.write_pointer[task + 1]):
            add(r, r.write_index[entry])
    return RAN


def run_base_order(r: SimulatedRun, room: int, far: Reals, heavy: Reals, by_root: bool) -> int:
    """Run the base order within `room` bytes; the number of runs in `order`, or -1 without room or at a limit."""
    for at in range(len(r.begin)):
        add(r, r.begin[at])
    for step in range(len(r.base)):
        result = EVICTED
        for _ in range(MAX_STARTS):
            first = find_missing(r, step)
            result = run_missing(r, first, step, room, far, heavy, by_root)
            if result != EVICTED:
                break
        if result != RAN:
            return -1
        for entry in range(r.end_pointer[step], r.end_pointer[step + 1]):
            remove(r, r.end_index[entry])
    return int(r.counters[RUNS])


KERNELS = Kernels((run_base_order,))
