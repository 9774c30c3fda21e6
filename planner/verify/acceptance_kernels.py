"""Compiled replay of a plan: whether every rule and every claimed number of `checker.py` holds, without a message.

Step by step as in `order_rules.py` and `replay.py`, in plain loops; shares no code with `liveness.py`. See `jit.py` for
kernels.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from planner.problem.columns import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END
from planner.problem.jit import Kernels, Row

# Read-only columns of a problem or a plan.
Column = Annotated[Any, "int64", 1, "readonly"]
Bytes = Annotated[Any, "int8", 1, "readonly"]
Flags = Annotated[Any, "boolean", 1, "readonly"]


class Rules(NamedTuple):
    """Columns of a problem with n tasks and m buffers, and the rules of the goal."""

    cost: Column  # n
    workspace: Column  # n
    phase: Bytes  # n
    may_repeat: Flags  # n
    optional: Flags  # n
    size: Column  # m
    space: Bytes  # m
    hold: Bytes  # m
    read_pointer: Column
    reads: Column
    shape_pointer: Column
    shapes: Column
    write_pointer: Column
    writes: Column
    take_pointer: Column
    takes: Column
    every_pointer: Column
    every: Column
    first_pointer: Column
    first: Column
    strict_phases: int
    order_is_given: int
    resident_bytes: int  # on the device


class Claims(NamedTuple):
    """A plan with s steps and k copies of buffers, as it claims to be."""

    order: Column  # s
    step_bytes: Column  # s
    buffer: Column  # k
    writer_step: Column  # k
    start: Column  # k
    stop: Column  # k
    taken_from: Column  # k
    read_pointer: Column  # s + 1
    read_copy: Column
    write_pointer: Column  # s + 1
    write_copy: Column
    cost: int
    peak: int


class Scratch(NamedTuple):
    """Rows to work in; -1 throughout unless said otherwise."""

    first_run: Row  # n  step
    last_run: Row  # n  step
    producer: Row  # m  lowest task that writes the buffer
    now: Row  # m  current copy
    upcoming: Row  # m  copy that the next write makes
    written: Row  # k  step
    last_read: Row  # k  step
    held: Row  # k  1: to the end
    taken: Row  # k  copy whose storage it reuses
    phase_end: Row  # 3  step behind the last first run; initially 0


def accepts_order(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Whether the order is legal; fills `first_run`, `last_run`, `producer` and `phase_end`. O(steps + reads)."""
    tasks = len(rules.cost)
    for task in range(tasks):
        for entry in range(rules.write_pointer[task], rules.write_pointer[task + 1]):
            if scratch.producer[rules.writes[entry]] < 0:
                scratch.producer[rules.writes[entry]] = task
    for step in range(len(claims.order)):
        task = claims.order[step]
        if task < 0 or task >= tasks:
            return False
        if scratch.first_run[task] >= 0:
            if not rules.may_repeat[task]:
                return False
        else:
            scratch.first_run[task] = step
            scratch.phase_end[rules.phase[task]] = step + 1
        scratch.last_run[task] = step
    for task in range(tasks):
        if scratch.first_run[task] < 0 and not rules.optional[task]:
            return False
        for entry in range(rules.every_pointer[task], rules.every_pointer[task + 1]):
            after = scratch.first_run[rules.every[entry]]
            if scratch.first_run[task] >= 0 and after >= 0 and scratch.last_run[task] >= after:
                return False
        for entry in range(rules.first_pointer[task], rules.first_pointer[task + 1]):
            after = scratch.first_run[rules.first[entry]]
            if scratch.first_run[task] >= 0 and after >= 0 and scratch.first_run[task] >= after:
                return False
    return accepts_phases(rules, claims, scratch)


def accepts_phases(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Whether the order keeps the given order of first runs and strict phases, where the goal says so."""
    highest = -1
    forward = scratch.phase_end[0] - 1
    backward = max(forward, scratch.phase_end[1] - 1)
    for step in range(len(claims.order)):
        task = claims.order[step]
        if rules.strict_phases:
            phase = rules.phase[task]
            if (phase == 1 and step < forward) or (phase == 2 and step < backward):
                return False
        if rules.order_is_given and scratch.first_run[task] == step:
            if task < highest:
                return False
            highest = task
    return True


def accepts_replay(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Whether reads and writes bind to the claimed copies, and these live and the steps hold what is claimed.

    After `accepts_order`.
    """
    if not number_copies(rules, claims, scratch):
        return False
    hand_out(rules, scratch, 0)
    reads = writes = 0
    for step in range(len(claims.order)):
        task = claims.order[step]
        if claims.read_pointer[step] != reads or claims.write_pointer[step] != writes:
            return False
        for entry in range(rules.shape_pointer[task], rules.shape_pointer[task + 1]):
            if scratch.now[rules.shapes[entry]] < 0:
                return False
        for entry in range(rules.read_pointer[task], rules.read_pointer[task + 1]):
            copy = scratch.now[rules.reads[entry]]
            if copy < 0 or reads >= len(claims.read_copy) or claims.read_copy[reads] != copy:
                return False
            scratch.last_read[copy] = step
            reads += 1
        for entry in range(rules.write_pointer[task], rules.write_pointer[task + 1]):
            buffer = rules.writes[entry]
            producer = scratch.producer[buffer]
            if producer != task and (scratch.first_run[producer] < 0 or scratch.first_run[producer] >= step):
                return False
            copy = scratch.upcoming[buffer]
            if writes >= len(claims.write_copy) or claims.write_copy[writes] != copy:
                return False
            scratch.now[buffer] = copy
            scratch.written[copy] = scratch.last_read[copy] = step
            scratch.upcoming[buffer] = copy + 1
            writes += 1
        hand_out(rules, scratch, step + 1)
    steps = len(claims.order)
    if claims.read_pointer[steps] != reads or claims.write_pointer[steps] != writes:
        return False
    if reads != len(claims.read_copy) or writes != len(claims.write_copy):
        return False
    for buffer in range(len(rules.size)):
        if rules.hold[buffer] == TO_THE_END and scratch.now[buffer] >= 0:
            scratch.held[scratch.now[buffer]] = 1
    return accepts_spans(rules, claims, scratch) and accepts_bytes(rules, claims, scratch)


def number_copies(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Number the copies by buffer and write; whether the claimed copies belong to the same buffers.

    `upcoming` receives the next copy of each buffer, `now` the copies that exist from the start.
    """
    count = scratch.upcoming  # copies of each buffer, first
    for buffer in range(len(rules.size)):
        is_initial = scratch.producer[buffer] < 0 or rules.hold[buffer] == RESIDENT
        count[buffer] = 1 if is_initial else 0
        scratch.now[buffer] = 0 if is_initial else -1
    for step in range(len(claims.order)):
        task = claims.order[step]
        for entry in range(rules.write_pointer[task], rules.write_pointer[task + 1]):
            count[rules.writes[entry]] += 1
    copies = 0
    for buffer in range(len(rules.size)):
        end = copies + count[buffer]
        if end > len(claims.buffer):
            return False
        for copy in range(copies, end):
            if claims.buffer[copy] != buffer:
                return False
        count[buffer] = copies
        if scratch.now[buffer] == 0:
            scratch.now[buffer] = copies
            count[buffer] = copies + 1
        copies = end
    return copies == len(claims.buffer)


def hand_out(rules: Rules, scratch: Scratch, step: int) -> None:
    """Hold the current copies that the phases which end before `step` hand out."""
    for phase in range(3):
        if scratch.phase_end[phase] != step:
            continue
        for buffer in range(len(rules.hold)):
            producer = scratch.producer[buffer]
            hands_out = 0 if producer < 0 else rules.phase[producer]
            if rules.hold[buffer] == HANDED_OUT and hands_out == phase and scratch.now[buffer] >= 0:
                scratch.held[scratch.now[buffer]] = 1


def accepts_spans(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Whether the copies are written and live as claimed."""
    steps = len(claims.order)
    for copy in range(len(claims.buffer)):
        written = scratch.written[copy]
        start, stop = max(written, 0), scratch.last_read[copy] + 1
        if rules.hold[claims.buffer[copy]] == RESIDENT:  # one storage, however often it is written
            scratch.held[copy] = 1
            start, stop = 0, steps if written < 0 else 0
        elif scratch.held[copy] == 1:
            stop = steps
        if claims.writer_step[copy] != written or claims.start[copy] != start or claims.stop[copy] != stop:
            return False
    return True


def accepts_bytes(rules: Rules, claims: Claims, scratch: Scratch) -> bool:
    """Whether takeovers, step bytes, peak and cost are as claimed; `held` and `last_read` are final."""
    live = 0
    for copy in range(len(claims.buffer)):
        if scratch.written[copy] < 0 and (scratch.held[copy] == 1 or scratch.last_read[copy] >= 0):
            live += counted_bytes(rules, claims, scratch, copy)
    peak = rules.resident_bytes if not len(claims.order) else 0
    cost = 0
    for step in range(len(claims.order)):
        task = claims.order[step]
        taken = 0
        for entry in range(claims.write_pointer[step], claims.write_pointer[step + 1]):
            copy = claims.write_copy[entry]
            live += counted_bytes(rules, claims, scratch, copy)
            taken += take_over(rules, claims, scratch, step, copy)
        held = live - taken + rules.workspace[task]
        if claims.step_bytes[step] != held:
            return False
        peak, cost = max(peak, held), cost + rules.cost[task]
        for entry in range(claims.read_pointer[step], claims.read_pointer[step + 1]):
            copy = claims.read_copy[entry]
            if ends_with(scratch, copy, step):
                live -= counted_bytes(rules, claims, scratch, copy)
        for entry in range(claims.write_pointer[step], claims.write_pointer[step + 1]):
            copy = claims.write_copy[entry]
            if ends_with(scratch, copy, step):
                live -= counted_bytes(rules, claims, scratch, copy)
    for copy in range(len(claims.buffer)):
        if claims.taken_from[copy] != scratch.taken[copy]:
            return False
    return bool(peak == claims.peak and cost == claims.cost)


def ends_with(scratch: Scratch, copy: int, step: int) -> bool:
    """Whether nothing needs the copy after this step."""
    return bool(scratch.held[copy] != 1 and scratch.last_read[copy] == step)


def counted_bytes(rules: Rules, claims: Claims, scratch: Scratch, copy: int) -> int:
    """Bytes of a copy in device memory; a resident counts once, at the start."""
    buffer = claims.buffer[copy]
    if rules.space[buffer] != DEVICE or (rules.hold[buffer] == RESIDENT and scratch.written[copy] >= 0):
        return 0
    return int(rules.size[buffer])


def take_over(rules: Rules, claims: Claims, scratch: Scratch, step: int, copy: int) -> int:
    """Device bytes that an output saves, by the storage of the first listed input that dies here and is large enough.

    Sets `taken` of the output, and `held` of the input to 2: no other output may take it.
    """
    buffer = claims.buffer[copy]
    if rules.hold[buffer] == RESIDENT:
        return 0
    for listed in range(rules.take_pointer[buffer], rules.take_pointer[buffer + 1]):
        wanted = rules.takes[listed]
        if not 0 < rules.size[buffer] <= rules.size[wanted] or rules.space[buffer] != rules.space[wanted]:
            continue
        for entry in range(claims.read_pointer[step], claims.read_pointer[step + 1]):
            source = claims.read_copy[entry]
            if claims.buffer[source] == wanted and scratch.held[source] < 0 and scratch.last_read[source] == step:
                scratch.taken[copy], scratch.held[source] = source, 2
                return counted_bytes(rules, claims, scratch, copy)
    return 0


class Ranges(NamedTuple):
    """Address ranges of r storages and workspaces, by number, and the rows that hold those in use."""

    low: Column  # r
    high: Column  # r  first byte behind
    begins: Column  # r  numbers by first step
    ends: Column  # r  numbers by the first step without
    first_step: Column  # r
    end_step: Column  # r
    used_low: Row  # r  ascending
    used_high: Row  # r


def accepts_addresses(ranges: Ranges) -> bool:
    """Whether no two ranges that are in use at once share a byte. O(r log r) and the moves of a sorted row."""
    used = ended = 0
    for number in range(len(ranges.begins)):
        begun = ranges.begins[number]
        while ended < len(ranges.ends) and ranges.end_step[ranges.ends[ended]] <= ranges.first_step[begun]:
            at = place_of(ranges.used_low, used, ranges.low[ranges.ends[ended]])
            for row in range(at + 1, used):
                ranges.used_low[row - 1], ranges.used_high[row - 1] = ranges.used_low[row], ranges.used_high[row]
            used, ended = used - 1, ended + 1
        low, high = ranges.low[begun], ranges.high[begun]
        at = place_of(ranges.used_low, used, low)
        if (at > 0 and ranges.used_high[at - 1] > low) or (at < used and ranges.used_low[at] < high):
            return False
        for row in range(used, at, -1):
            ranges.used_low[row], ranges.used_high[row] = ranges.used_low[row - 1], ranges.used_high[row - 1]
        ranges.used_low[at], ranges.used_high[at] = low, high
        used += 1
    return True


def place_of(ascending: Row, count: int, value: int) -> int:
    """Number of entries below `value` among the first `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


KERNELS = Kernels((accepts_order, accepts_replay, accepts_addresses))
