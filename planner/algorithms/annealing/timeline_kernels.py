"""Kernels that place and remove runs on an `AnnealingTimeline` and update its bytes; see `timeline.py`."""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.jit import Row, Table

# Columns of `AnnealingTimeline.tasks`: ticks, bytes, phase and flags; number of reads and writes; where the task's
# entries begin in `rows` (buffers that it reads, buffers that it writes, tasks whose first run all its runs precede,
# tasks whose first run precedes and follows its own), and where they end; its first run, and the head of its list of
# unplaced runs.
(
    COST,
    WORKSPACE,
    PHASE,
    RECOMPUTABLE,
    MOVABLE,
    TAKES,
    DEGREE,
    READ,
    WRITE,
    EVERY,
    EARLIER,
    LATER,
    ENTRIES_END,
    FIRST_RUN,
    SPARE,
    TASK_COLUMNS,
) = range(16)
# Columns of `AnnealingTimeline.buffers`: bytes, producer, first and last use, entries of the buffers whose storage it
# may take.
SIZE, PRODUCER, FIRST, LAST, TAKE, TAKE_END, BUFFER_COLUMNS = range(7)
# Columns of `AnnealingTimeline.uses`: buffer, 1 for a read, run, next and previous use of the buffer.
BUFFER, READS, RUN, NEXT, BEFORE, USE_COLUMNS = range(6)
# Columns of `AnnealingTimeline.runs`: task (-1: START and END), slot, first use (reads come before writes), bytes that
# its outputs take over from inputs, next unplaced run of the task; list of recomputations, and the run's index in it.
TASK, SLOT, USE, TAKEN, NEXT_SPARE, REPEAT, LISTED, RUN_COLUMNS = range(8)
# Columns of `AnnealingTimeline.scratch`.
FREE, HELD = 0, 1
# Entries of `AnnealingTimeline.counters`: limit in bytes, bytes over it summed over slots, ticks, numbers of runs, uses
# and recomputations, changes since the last commit, state of the random numbers, ticks of the best order, maximum ticks
# that the current move may reach; bytes from the limit to a second one, and the weight of bytes over that one in OVER;
# OVER up to which an order may be the best one.
LIMIT, OVER, TICKS, RUNS, USES, REPEATS, LOGGED, RANDOM, BEST, ALLOWED, MARGIN, WEIGHT, MAX_OVER, COUNTERS = range(14)
NO_BEST = 2**62
# Pseudo runs: START writes the initial buffers, END reads the buffers held at the end.
START, END = 0, 1
# Kinds of log entries.
NEW, DROP, MOVE = 0, 1, 2


class AnnealingTimeline(NamedTuple):
    """One order in the form that the kernels read and modify; `timeline.py` builds it.

    Of n tasks and two fences between phases, m buffers, c slots, r runs and u uses.
    """

    tasks: Table  # n + 2, TASK_COLUMNS
    buffers: Table  # m, BUFFER_COLUMNS
    rows: Row  # entries of all tasks, then of all buffers
    uses: Table  # u, USE_COLUMNS
    runs: Table  # r, RUN_COLUMNS
    slot_run: Row  # c  -1: empty
    bytes: Row  # c + 1  the last entry: bytes held at the end
    scratch: Table  # largest number of reads, 2
    logged: Row  # (kind, run, following run) of each change since the last commit
    counters: Row


def add_bytes(t: AnnealingTimeline, first: int, last: int, amount: int) -> None:
    """Add to the slots from `first` to `last`, and update the bytes over the limit."""
    limit, over, margin, above = t.counters[LIMIT], 0, t.counters[MARGIN], 0
    row = t.bytes[max(first, 0) : last + 1]
    for i in range(len(row)):
        old = row[i] - limit
        new = old + amount
        row[i] = new + limit
        over += max(new, 0) - max(old, 0)
        above += max(new - margin, 0) - max(old - margin, 0)
    t.counters[OVER] += over + above * t.counters[WEIGHT]


def slot_of(t: AnnealingTimeline, use: int) -> int:
    """The slot of the run of a use."""
    return int(t.runs[t.uses[use, RUN], SLOT])


def read_count(t: AnnealingTimeline, task: int) -> int:
    """Number of buffers that a task reads."""
    return int(t.tasks[task, WRITE] - t.tasks[task, READ])


def is_read(t: AnnealingTimeline, use: int) -> bool:
    """Whether the use is a read."""
    return bool(use >= 0 and t.uses[use, READS] == 1)


def update_takeover(t: AnnealingTimeline, run: int) -> None:
    """Recompute the takeover of the run's outputs from inputs that die here."""
    task = t.runs[run, TASK]
    if task < 0 or t.tasks[task, TAKES] == 0:
        return
    taken, begin, reads = 0, t.runs[run, USE], read_count(t, task)
    for k in range(reads):
        t.scratch[k, FREE] = 1 if not is_read(t, t.uses[begin + k, NEXT]) else 0
    for entry in range(t.tasks[task, WRITE], t.tasks[task, EVERY]):
        output = t.rows[entry]
        for take in range(t.buffers[output, TAKE], t.buffers[output, TAKE_END]):
            source, found = t.rows[take], -1
            for k in range(reads):
                if t.rows[t.tasks[task, READ] + k] == source and t.scratch[k, FREE] == 1:
                    found = k
            if found >= 0 and t.buffers[source, SIZE] >= t.buffers[output, SIZE] > 0:
                t.scratch[found, FREE] = 0
                taken += t.buffers[output, SIZE]
                break
    if taken != t.runs[run, TAKEN]:
        add_bytes(t, t.runs[run, SLOT], t.runs[run, SLOT], t.runs[run, TAKEN] - taken)
        t.runs[run, TAKEN] = taken


def held_slots(t: AnnealingTimeline, use: int, slot: int) -> tuple[int, int, int]:
    """(first slot, last slot, bytes) that a use at `slot` adds, given the neighbouring uses of its buffer.

    A read holds its buffer since the previous use, a write up to the next read; overwritten content is not held.
    """
    before, following = t.uses[use, BEFORE], t.uses[use, NEXT]
    size = t.buffers[t.uses[use, BUFFER], SIZE]
    if t.uses[use, READS] == 1:
        if is_read(t, following):
            return 0, -1, 0
        return slot_of(t, before) + 1, slot, size
    if not is_read(t, following) or (before >= 0 and slot_of(t, before) == slot):
        return slot, slot, size  # in addition to the old content, which the run reads
    if before < 0:
        return slot, slot_of(t, following) - 1, size
    return slot_of(t, before) + 1, slot - 1, -size


def link(t: AnnealingTimeline, use: int, slot: int) -> None:
    """Insert a use into its buffer's list at `slot`."""
    buffer = t.uses[use, BUFFER]
    before = t.buffers[buffer, LAST]
    while before >= 0 and slot_of(t, before) > slot:
        before = t.uses[before, BEFORE]
    following = t.uses[before, NEXT] if before >= 0 else t.buffers[buffer, FIRST]
    t.uses[use, BEFORE], t.uses[use, NEXT] = before, following
    connect(t, buffer, before, use)
    connect(t, buffer, use, following)


def unlink(t: AnnealingTimeline, use: int) -> None:
    """Remove a use from its buffer's list; its own links keep the former neighbours."""
    connect(t, t.uses[use, BUFFER], t.uses[use, BEFORE], t.uses[use, NEXT])


def connect(t: AnnealingTimeline, buffer: int, before: int, following: int) -> None:
    """Link two successive uses of a buffer; -1: the end of the list."""
    if before >= 0:
        t.uses[before, NEXT] = following
    else:
        t.buffers[buffer, FIRST] = following
    if following >= 0:
        t.uses[following, BEFORE] = before
    else:
        t.buffers[buffer, LAST] = before


def update_takeover_before(t: AnnealingTimeline, use: int) -> None:
    """Recompute the takeover of the run of the previous use."""
    if t.uses[use, BEFORE] >= 0:
        update_takeover(t, t.uses[t.uses[use, BEFORE], RUN])


def insert_use(t: AnnealingTimeline, use: int, slot: int) -> None:
    """Insert a use at `slot`, and update the bytes of the slots it makes live or frees."""
    link(t, use, slot)
    first, last, size = held_slots(t, use, slot)
    add_bytes(t, first, last, size)
    update_takeover_before(t, use)


def remove_use(t: AnnealingTimeline, use: int, slot: int) -> None:
    """Remove a use; the inverse of `insert_use`."""
    first, last, size = held_slots(t, use, slot)
    unlink(t, use)
    add_bytes(t, first, last, -size)
    update_takeover_before(t, use)


def move_use(t: AnnealingTimeline, use: int, old: int, slot: int) -> None:
    """Move a use to another slot; only bytes in between change. Its run uses the buffer once."""
    first, last, size = held_slots(t, use, old)
    unlink(t, use)
    update_takeover_before(t, use)
    link(t, use, slot)
    begin, end, held = held_slots(t, use, slot)
    if held != size:
        add_bytes(t, first, last, -size)
        add_bytes(t, begin, end, held)
    elif size != 0:
        add_bytes(t, begin, first - 1, size)
        add_bytes(t, first, begin - 1, -size)
        add_bytes(t, last + 1, end, size)
        add_bytes(t, end + 1, last, -size)
    update_takeover_before(t, use)


def place_run(t: AnnealingTimeline, run: int, slot: int) -> None:
    """Place a run in an empty slot."""
    task = t.runs[run, TASK]
    t.slot_run[slot], t.runs[run, SLOT], t.runs[run, TAKEN] = run, slot, 0
    add_bytes(t, slot, slot, t.tasks[task, WORKSPACE])
    begin = t.runs[run, USE]
    for use in range(begin, begin + t.tasks[task, DEGREE]):
        insert_use(t, use, slot)
    update_takeover(t, run)
    t.counters[TICKS] += t.tasks[task, COST]


def remove_run(t: AnnealingTimeline, run: int) -> None:
    """Remove a run from its slot."""
    task, slot = t.runs[run, TASK], t.runs[run, SLOT]
    add_bytes(t, slot, slot, t.runs[run, TAKEN] - t.tasks[task, WORKSPACE])
    t.runs[run, TAKEN] = 0
    begin = t.runs[run, USE]
    for use in range(begin, begin + t.tasks[task, DEGREE]):
        remove_use(t, use, slot)
    t.slot_run[slot] = -1
    t.counters[TICKS] -= t.tasks[task, COST]


def move_to_slot(t: AnnealingTimeline, run: int, slot: int) -> None:
    """Move a run from its slot to an empty one."""
    task, old = t.runs[run, TASK], t.runs[run, SLOT]
    add_bytes(t, old, old, t.runs[run, TAKEN] - t.tasks[task, WORKSPACE])
    add_bytes(t, slot, slot, t.tasks[task, WORKSPACE])
    t.slot_run[old], t.slot_run[slot], t.runs[run, SLOT], t.runs[run, TAKEN] = -1, run, slot, 0
    begin = t.runs[run, USE]
    for use in range(begin, begin + t.tasks[task, DEGREE]):
        move_use(t, use, old, slot)
    update_takeover(t, run)


def bytes_before(t: AnnealingTimeline, run: int) -> int:
    """Bytes held right before a run."""
    task = t.runs[run, TASK]
    added = t.tasks[task, WORKSPACE] - t.runs[run, TAKEN]
    for entry in range(t.tasks[task, WRITE], t.tasks[task, EVERY]):
        added += t.buffers[t.rows[entry], SIZE]
    return int(t.bytes[t.runs[run, SLOT]] - added)


def empty_slot_before(t: AnnealingTimeline, run: int) -> int:
    """An empty slot right before a run; shifts neighbours if there is none."""
    slots = len(t.slot_run)
    slot = t.runs[run, SLOT]
    if slot > 0 and t.slot_run[slot - 1] < 0:
        low = slot - 1
        while low > 0 and t.slot_run[low - 1] < 0 and slot - low < 16:
            low -= 1
        return int((low + slot) // 2)
    distance = 1
    while True:
        left, right = slot - 1 - distance, slot + distance
        if right < slots and t.slot_run[right] < 0:
            shift(t, run, right, slot, -1)
            return int(slot)
        if left >= 0 and t.slot_run[left] < 0:
            shift(t, run, left, slot - 1, 1)
            return int(slot - 1)
        distance += 1


def shift(t: AnnealingTimeline, run: int, empty: int, target: int, direction: int) -> None:
    """Shift the runs between an empty slot and `target` by one slot, so that `target` becomes empty."""
    held = bytes_before(t, run) if run != END else t.bytes[len(t.slot_run)]
    limit = t.counters[LIMIT]
    t.counters[OVER] += max(held - limit, 0) - max(t.bytes[empty] - limit, 0)
    limit += t.counters[MARGIN]
    t.counters[OVER] += (max(held - limit, 0) - max(t.bytes[empty] - limit, 0)) * t.counters[WEIGHT]
    at = empty
    while at != target:
        moved = t.slot_run[at + direction]
        t.slot_run[at], t.runs[moved, SLOT], t.bytes[at] = moved, at, t.bytes[at + direction]
        at += direction
    t.slot_run[target], t.bytes[target] = -1, held


def run_after(t: AnnealingTimeline, slot: int) -> int:
    """The first run in a slot after `slot`."""
    for at in range(slot + 1, len(t.slot_run)):
        if t.slot_run[at] >= 0:
            return int(t.slot_run[at])
    return END


def unplaced_run(t: AnnealingTimeline, task: int) -> int:
    """An unplaced run of the task; -1 at the maximum of runs."""
    run = t.tasks[task, SPARE]
    if run >= 0:
        t.tasks[task, SPARE] = t.runs[run, NEXT_SPARE]
        return int(run)
    run, use = t.counters[RUNS], t.counters[USES]
    if run >= len(t.runs) or use + t.tasks[task, DEGREE] > len(t.uses):
        return -1
    t.counters[RUNS] += 1
    t.counters[USES] += t.tasks[task, DEGREE]
    t.runs[run, TASK], t.runs[run, USE] = task, use
    for entry in range(t.tasks[task, READ], t.tasks[task, WRITE]):
        t.uses[use, BUFFER], t.uses[use, READS], t.uses[use, RUN] = t.rows[entry], 1, run
        use += 1
    for entry in range(t.tasks[task, WRITE], t.tasks[task, EVERY]):
        t.uses[use, BUFFER], t.uses[use, READS], t.uses[use, RUN] = t.rows[entry], 0, run
        use += 1
    return int(run)


def add_to_spare(t: AnnealingTimeline, run: int) -> None:
    """Add a run to the list of unplaced runs of its task."""
    task = t.runs[run, TASK]
    t.runs[run, NEXT_SPARE], t.tasks[task, SPARE] = t.tasks[task, SPARE], run


def add_to_repeats(t: AnnealingTimeline, run: int) -> None:
    """Add a run to the list of recomputations."""
    t.runs[t.counters[REPEATS], REPEAT], t.runs[run, LISTED] = run, t.counters[REPEATS]
    t.counters[REPEATS] += 1


def remove_from_repeats(t: AnnealingTimeline, run: int) -> None:
    """Remove a run from the list of recomputations."""
    t.counters[REPEATS] -= 1
    last, at = t.runs[t.counters[REPEATS], REPEAT], t.runs[run, LISTED]
    t.runs[at, REPEAT], t.runs[last, LISTED] = last, at


def log_change(t: AnnealingTimeline, kind: int, run: int, following: int) -> None:
    """Append a change to the log."""
    at = t.counters[LOGGED]
    t.logged[3 * at], t.logged[3 * at + 1], t.logged[3 * at + 2] = kind, run, following
    t.counters[LOGGED] += 1


def has_log_room(t: AnnealingTimeline) -> bool:
    """Whether the log has room for another change."""
    return bool(3 * t.counters[LOGGED] + 3 <= len(t.logged))


def add_repeat(t: AnnealingTimeline, task: int, before: int) -> int:
    """Recompute the task right before the run `before`; returns the new run, or -1 if there is no room."""
    if not has_log_room(t):
        return -1
    run = unplaced_run(t, task)
    if run < 0:
        return -1
    place_run(t, run, empty_slot_before(t, before))
    add_to_repeats(t, run)
    log_change(t, NEW, run, -1)
    return run


def drop_repeat(t: AnnealingTimeline, run: int) -> None:
    """Remove a recomputation."""
    following = run_after(t, t.runs[run, SLOT])
    remove_run(t, run)
    remove_from_repeats(t, run)
    log_change(t, DROP, run, following)


def move_run(t: AnnealingTimeline, run: int, before: int) -> bool:
    """Place a run right before another one; False if there is no room."""
    following = run_after(t, t.runs[run, SLOT])
    if before in (run, following) or not has_log_room(t):
        return False
    move_to_slot(t, run, empty_slot_before(t, before))
    log_change(t, MOVE, run, following)
    return True


def undo(t: AnnealingTimeline) -> None:
    """Roll back all changes in the log."""
    while t.counters[LOGGED] > 0:
        t.counters[LOGGED] -= 1
        at = 3 * t.counters[LOGGED]
        kind, run, following = t.logged[at], t.logged[at + 1], t.logged[at + 2]
        if kind == NEW:
            remove_run(t, run)
            remove_from_repeats(t, run)
            add_to_spare(t, run)
            continue
        slot = empty_slot_before(t, following)
        if kind == MOVE:
            move_to_slot(t, run, slot)
        else:
            add_to_repeats(t, run)
            place_run(t, run, slot)


def commit(t: AnnealingTimeline) -> None:
    """Keep all changes and clear the log."""
    for at in range(t.counters[LOGGED]):
        if t.logged[3 * at] == DROP:
            add_to_spare(t, t.logged[3 * at + 1])
    t.counters[LOGGED] = 0


def fill(t: AnnealingTimeline, tasks: Row, stride: int) -> None:
    """Place a whole order on the empty timeline, a run in every `stride`-th slot."""
    for use in range(t.runs[START, USE], t.runs[END, USE]):
        insert_use(t, use, -1)
    for step in range(len(tasks)):
        task = tasks[step]
        run = unplaced_run(t, task)
        place_run(t, run, stride * step + 1)
        if t.tasks[task, FIRST_RUN] < 0:
            t.tasks[task, FIRST_RUN] = run
        else:
            add_to_repeats(t, run)
    stop = t.runs[END, USE]
    while stop < len(t.uses) and t.uses[stop, RUN] == END:
        insert_use(t, stop, t.runs[END, SLOT])
        stop += 1
