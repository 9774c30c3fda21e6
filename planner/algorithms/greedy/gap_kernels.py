"""Kernels that price and close idle gaps on a `GapTable`; see `gaps.py` and `problem/jit.py`.

Closing the gap before a read runs the buffer's producer at the boundary before the read. An input of that run that is
dead there is held longer or recomputed too, whichever gives the better price. The gain of a candidate is the sum of
bytes times places over the limit that it frees.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from planner.algorithms.greedy.byte_ledger import LOOPS, NO_LIMIT, Ledger, add, at_place, count_above, count_once
from planner.algorithms.greedy.gaps import CHAIN, GapTable
from planner.algorithms.greedy.use_list_kernels import (
    ADDED,
    EXTRA,
    LOOKED,
    RUNS,
    STOP,
    USES,
    add_use,
    chain_bytes,
    sort_chain,
    use_before,
)
from planner.problem.jit import Kernels, Reals, Row


def add_to_chain(board: GapTable, task: int, token: int) -> None:
    """Append a run of the task to `chain`; its outputs count as written by the candidate `token`."""
    board.chain[board.counters[RUNS]] = task
    board.counters[RUNS] += 1
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        board.stamp[board.write_index[entry]] = token


def bytes_to_hold(board: GapTable, ledger: Ledger, buffer: int, last: int, at: int, limit: int) -> float:
    """Bytes times places over `limit` that holding a dead buffer from its use `last` to boundary place `at` adds."""
    size = board.size[buffer]
    if size == 0:
        return 0.0
    # While all gaps are priced, the places that holding would lift over the limit are left out.
    level = limit if ledger.limit[0] == limit else limit - size
    held = float(size) * count_above(ledger, board.place[last] + 1, at + 1, level)
    if board.taker[last] > 0 and at_place(ledger, board.place[last]) + board.taker[last] > limit:
        held += board.taker[last]
    return held


def price_inputs(
    board: GapTable, ledger: Ledger, task: int, at: int, limit: int, token: int, gain: float, cost: float
) -> tuple[float, float]:
    """(gain, cost) after making the inputs of `task` available at boundary place `at`; extends `chain`."""
    for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
        c = board.read_index[entry]
        if board.resident[c] or board.stamp[c] == token:
            continue
        last = use_before(board, c, at)
        following = board.next[last]
        if following >= 0 and (board.reads[following] == 1 or board.place[following] == at):
            continue  # held across the boundary, or written there already
        board.stamp[c] = token
        producer = board.producer[c]
        held = bytes_to_hold(board, ledger, c, last, at, limit)
        may_run = producer >= 0 and board.latest[producer] >= at // 2 and board.counters[RUNS] < CHAIN
        if may_run and held > 0 and (gain - held) * (cost + board.cost[producer] + 1) < gain * cost:
            cost += board.cost[producer] + 1
            add_to_chain(board, producer, token)
        else:
            gain -= held
    return gain, cost


def seed_chain(board: GapTable, use: int, together: bool) -> int:
    """Start `chain` with the producer for `use`, or `together` with those for all closable gaps that end in its step.

    Returns the length of the chain.
    """
    at = board.place[use] // 2 * 2
    board.counters[LOOKED] += 1
    token = board.counters[LOOKED]
    board.counters[RUNS] = 0
    begin, end = 0, 1
    if together:
        reader = board.order[at // 2]
        begin, end = board.read_pointer[reader], board.read_pointer[reader + 1]
    for entry in range(begin, end):
        b = board.read_index[entry] if together else board.buffer[use]
        producer = board.producer[b]
        if board.resident[b] or producer < 0 or board.stamp[b] == token or board.latest[producer] < at // 2:
            continue
        last = use_before(board, b, at)
        following = board.next[last]
        if following < 0 or board.place[following] != board.place[use] or not board.free[following]:
            continue
        if board.counters[RUNS] < CHAIN and board.size[b] > 0 and board.place[last] + 1 < at:
            add_to_chain(board, producer, token)
    return int(board.counters[RUNS])


def price_chain(board: GapTable, ledger: Ledger, at: int, limit: int) -> float:
    """Bytes times places over `limit` that the runs of `chain` free, per tick; -1 if they cannot run at `at`.

    Dead inputs are recomputed by further runs, which join the chain, or held longer.
    """
    token = board.counters[LOOKED]
    gain, cost = 0.0, 0.0
    for run in range(board.counters[RUNS]):
        cost += board.cost[board.chain[run]] + 1
        gain += output_gain(board, ledger, board.chain[run], at, limit)
    run = 0
    while run < board.counters[RUNS]:
        if gain <= 0:
            return -1.0
        known = board.counters[RUNS]
        gain, cost = price_inputs(board, ledger, board.chain[run], at, limit, token, gain, cost)
        for new in range(known, board.counters[RUNS]):
            gain += output_gain(board, ledger, board.chain[new], at, limit)
        run += 1
    if gain <= 0:
        return -1.0
    sort_chain(board)
    board.counters[EXTRA] = chain_bytes(board, at, token)
    here = at_place(ledger, at) + max(0, board.counters[EXTRA] - board.busy[at // 2])
    if here > limit and here > max(at_place(ledger, at + 1), at_place(ledger, max(at - 1, 0))):
        return -1.0
    return gain / cost


def output_gain(board: GapTable, ledger: Ledger, task: int, at: int, limit: int) -> float:
    """Bytes times places over `limit` in the gaps that a run of the task at `at` closes."""
    gain = 0.0
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b] or board.size[b] == 0:
            continue
        last = use_before(board, b, at)
        following = board.next[last]
        if following >= 0 and board.reads[following] == 1 and board.free[following] and board.place[last] + 1 < at:
            gain += float(board.size[b]) * count_above(ledger, board.place[last] + 1, at, limit)
    return gain


def price(board: GapTable, ledger: Ledger, use: int, limit: int) -> float:
    """The better price of closing the gap before a read, alone or with all gaps that end in its step; -1: not closable.

    Leaves its runs in `chain`; dead inputs that are not in it are held longer.
    """
    place = board.place[use]
    at = place // 2 * 2
    begin = board.place[board.before[use]] + 1
    if begin >= at or count_above(ledger, begin, at, limit) == 0:
        return -1.0
    both = -1.0
    if place > at and at // 2 < len(board.order) and seed_chain(board, use, True) > 1:
        both = price_chain(board, ledger, at, limit)
    alone = -1.0
    if seed_chain(board, use, False) > 0:
        alone = price_chain(board, ledger, at, limit)
    if both > alone:
        seed_chain(board, use, True)
        alone = price_chain(board, ledger, at, limit)
    return alone


def close(board: GapTable, ledger: Ledger, use: int) -> None:
    """Add the runs of the last call of `price`, which must be for the same use."""
    at = board.place[use] // 2 * 2
    boundary = at // 2
    if board.counters[EXTRA] > board.busy[boundary]:
        add(ledger, at, at + 1, board.counters[EXTRA] - board.busy[boundary])
        board.busy[boundary] = board.counters[EXTRA]
    for run in range(board.counters[RUNS]):
        task = board.chain[run]
        board.added_at[board.counters[ADDED]], board.added_task[board.counters[ADDED]] = boundary, task
        board.counters[ADDED] += 1
        add_writes(board, ledger, task, at)
    for run in range(board.counters[RUNS]):
        add_reads(board, ledger, board.chain[run], at)


def add_writes(board: GapTable, ledger: Ledger, task: int, at: int) -> None:
    """Add the writes of a run at boundary place `at`: its outputs are not held in the gaps that it closes."""
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b]:
            continue
        last = use_before(board, b, at)
        following = board.next[last]
        if following >= 0 and board.reads[following] and board.place[last] + 1 < at:
            add(ledger, board.place[last] + 1, at, -board.size[b])
        add_use(board, last, b, at, 0)


def add_reads(board: GapTable, ledger: Ledger, task: int, at: int) -> None:
    """Add the reads of a run at boundary place `at`: dead inputs that no run writes there are held longer."""
    for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
        c = board.read_index[entry]
        if board.resident[c]:
            continue
        last = use_before(board, c, at)
        following = board.next[last]
        if following >= 0 and board.place[following] == at and not board.reads[following]:
            last, following = following, board.next[following]
        if following >= 0 and board.place[following] == at:
            continue  # another run at this boundary reads it
        if (following < 0 or not board.reads[following]) and board.place[last] < at:
            add(ledger, board.place[last] + 1, at + 1, board.size[c])
            if board.taker[last] > 0:
                add(ledger, board.place[last], board.place[last] + 1, board.taker[last])
                board.taker[last] = 0
        add_use(board, last, c, at, 1)


def price_all(board: GapTable, ledger: Ledger, uses: Row, limit: int, prices: Reals) -> None:
    """Fill `prices` for the given uses."""
    count_once(ledger, limit)
    for i in range(len(uses)):
        if board.counters[STOP]:
            break
        prices[i] = price(board, ledger, uses[i], limit)


def close_best(board: GapTable, ledger: Ledger, uses: Row, prices: Reals, limit: int, slack: float, room: int) -> int:
    """Close gaps before `uses`, best price first, while some place exceeds `limit`; returns the number closed.

    Ends early once `board.counters[STOP]` is set. `prices` (float64, one a use) is scratch.
    Each closed gap leaves fewer places over the limit, and all prices fall with them. So the heap holds prices per
    place over the limit; an entry that has fallen below `slack` times the next best is pushed back.
    """
    price_all(board, ledger, uses, limit, prices)
    over = count_above(ledger, 0, len(ledger.bytes), limit)
    ledger.limit[0] = NO_LIMIT
    heap = [(-prices[i] / max(over, 1), uses[i]) for i in range(len(uses)) if prices[i] > 0]
    heapify(heap)
    closed = 0
    while len(heap) and over > 0 and board.counters[USES] + room < len(board.place):
        use = heappop(heap)[1]
        now = price(board, ledger, use, limit) / over
        if board.counters[STOP]:
            break
        if now <= 0:
            continue
        if len(heap) and now < -heap[0][0] * slack:
            heappush(heap, (-now, use))
            continue
        before = board.counters[USES]
        close(board, ledger, use)
        closed += 1
        over = count_above(ledger, 0, len(ledger.bytes), limit)
        for new in range(before, board.counters[USES]):
            if over > 0 and board.free[new]:
                now = price(board, ledger, new, limit) / over
                if now > 0:
                    heappush(heap, (-now, new))
    return closed


KERNELS = Kernels((close_best,), LOOPS, frozenset({"close_best"}))
