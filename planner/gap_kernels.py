"""Kernels that price and close idle gaps on a `Board`; see `gaps.py` and `kernels.py`.

Closing the gap before a read runs the buffer's producer again at the boundary before it. An input of
that run which is dead there is held longer or made again too, whichever leaves the better price.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from planner.gaps import CHAIN
from planner.ledger import add, at_place, count_above, highest, highest_in

# In `Board.reads`: a use that was taken out; its `before` still leads back to one that is there.
GONE = 2

USES, ADDED, LOOKED, RUNS = 0, 1, 2, 3


def use_before(board: Any, buffer: int, place: int) -> int:
    """The last use of the buffer before `place`, -1 when there is none."""
    low, high = board.first_use[buffer], board.first_use[buffer + 1]
    if low == high or board.place[low] >= place:
        return -1
    while high - low > 1:
        middle = (low + high) // 2
        if board.place[middle] < place:
            low = middle
        else:
            high = middle
    while board.reads[low] == GONE:
        low = board.before[low]
    while board.next[low] >= 0 and board.place[board.next[low]] < place:
        low = board.next[low]
    return int(low)


def price_inputs(board: Any, ledger: Any, task: int, at: int, limit: int, token: int, gain: float, cost: float) -> Any:
    """(gain, cost) once the inputs of `task` are there at boundary place `at`; adds to `chain`."""
    for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
        c = board.read_index[entry]
        if board.resident[c] or board.stamp[c] == token:
            continue
        last = use_before(board, c, at)
        following = board.next[last]
        if following >= 0 and (board.reads[following] == 1 or board.place[following] == at):
            continue  # held across the boundary, or made there already
        board.stamp[c] = token
        producer = board.producer[c]
        keep = 0.0
        if board.size[c] > 0:
            keep = float(board.size[c]) * count_above(ledger, board.place[last] + 1, at + 1, limit - board.size[c])
            if board.taker[last] > 0 and at_place(ledger, board.place[last]) + board.taker[last] > limit:
                keep += board.taker[last]
        again = producer >= 0 and board.latest[producer] >= at // 2 and board.count[RUNS] < CHAIN
        if again and keep > 0 and (gain - keep) * (cost + board.cost[producer] + 1) < gain * cost:
            board.chain[board.count[RUNS]] = producer
            board.count[RUNS] += 1
            cost += board.cost[producer] + 1
            for written in range(board.write_pointer[producer], board.write_pointer[producer + 1]):
                board.stamp[board.write_index[written]] = token
        else:
            gain -= keep
    return gain, cost


def seed_chain(board: Any, ledger: Any, use: int, limit: int, together: bool) -> int:
    """Begin `chain` with the producer of what `use` reads, and of all else its step reads from closable gaps.

    The length of the chain.
    """
    at = board.place[use] // 2 * 2
    board.count[LOOKED] += 1
    token = board.count[LOOKED]
    board.count[RUNS] = 0
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
        if board.count[RUNS] < CHAIN and board.size[b] > 0 and board.place[last] + 1 < at:
            board.chain[board.count[RUNS]] = producer
            board.count[RUNS] += 1
            for written in range(board.write_pointer[producer], board.write_pointer[producer + 1]):
                board.stamp[board.write_index[written]] = token
    return int(board.count[RUNS])


def price_chain(board: Any, ledger: Any, at: int, limit: int) -> float:
    """Bytes times places over `limit` that the runs of `chain` free, per tick; -1 when they cannot run at `at`.

    Inputs that are dead there are made by further runs, which join the chain, or are held longer.
    """
    token = board.count[LOOKED]
    gain, cost, extra, busy = 0.0, 0.0, 0, board.busy[at // 2]
    for run in range(board.count[RUNS]):
        cost += board.cost[board.chain[run]] + 1
        gain += output_gain(board, ledger, board.chain[run], at, limit)
    run = 0
    while run < board.count[RUNS]:
        task = board.chain[run]
        if gain <= 0:
            return -1.0
        known = board.count[RUNS]
        gain, cost = price_inputs(board, ledger, task, at, limit, token, gain, cost)
        for new in range(known, board.count[RUNS]):
            gain += output_gain(board, ledger, board.chain[new], at, limit)
        busy = max(busy, board.workspace[task])
        for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
            b = board.write_index[entry]
            if not board.resident[b]:
                following = board.next[use_before(board, b, at)]
                if following < 0 or board.reads[following] != 1:
                    extra += board.size[b]
        run += 1
    here = at_place(ledger, at) + extra + busy - board.busy[at // 2]
    if gain <= 0 or (here > limit and here > max(at_place(ledger, at + 1), at_place(ledger, max(at - 1, 0)))):
        return -1.0
    return gain / cost


def output_gain(board: Any, ledger: Any, task: int, at: int, limit: int) -> float:
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


def price(board: Any, ledger: Any, use: int, limit: int) -> float:
    """The better price of closing the gap before a read alone or with all gaps that end in its step; else -1.

    Leaves the runs it takes in `chain`; inputs that are dead and not in it are held longer.
    """
    place = board.place[use]
    at = place // 2 * 2
    both = -1.0
    if place > at and at // 2 < len(board.order) and seed_chain(board, ledger, use, limit, True) > 1:
        both = price_chain(board, ledger, at, limit)
    alone = -1.0
    if seed_chain(board, ledger, use, limit, False) > 0:
        alone = price_chain(board, ledger, at, limit)
    if both > alone:
        seed_chain(board, ledger, use, limit, True)
        alone = price_chain(board, ledger, at, limit)
    return alone


def add_use(board: Any, last: int, buffer: int, place: int, reads: int) -> int:
    """Put a use into the buffer's list behind `last`."""
    new = board.count[USES]
    board.count[USES] += 1
    following = board.next[last]
    board.place[new], board.buffer[new], board.reads[new], board.taker[new] = place, buffer, reads, 0
    board.next[new], board.before[new], board.next[last] = following, last, new
    if following >= 0:
        board.before[following] = new
    # A read splits a gap and leaves to both parts what may be done with it; a dead buffer may be made anew.
    if reads and following >= 0 and board.reads[following]:
        board.free[new] = board.free[following]
    else:
        board.free[new] = 1 if reads and board.producer[buffer] >= 0 else 0
    return int(new)


def close(board: Any, ledger: Any, use: int) -> None:
    """Add the runs of the last call of `price`, which was for this use."""
    at = board.place[use] // 2 * 2
    boundary = at // 2
    for run in range(board.count[RUNS]):
        task = board.chain[run]
        board.added_at[board.count[ADDED]], board.added_task[board.count[ADDED]] = boundary, task
        board.count[ADDED] += 1
        if board.workspace[task] > board.busy[boundary]:
            add(ledger, at, at + 1, board.workspace[task] - board.busy[boundary])
            board.busy[boundary] = board.workspace[task]
        for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
            b = board.write_index[entry]
            if board.resident[b]:
                continue
            last = use_before(board, b, at)
            following = board.next[last]
            if following < 0 or not board.reads[following]:
                add(ledger, at, at + 1, board.size[b])
            elif board.place[last] + 1 < at:
                add(ledger, board.place[last] + 1, at, -board.size[b])
            add_use(board, last, b, at, 0)
    for run in range(board.count[RUNS]):
        task = board.chain[run]
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


def price_all(board: Any, ledger: Any, uses: Any, limit: int, prices: Any) -> None:
    """Fill `prices` for the given uses."""
    for i in range(len(uses)):
        prices[i] = price(board, ledger, uses[i], limit)


def close_best(board: Any, ledger: Any, uses: Any, prices: Any, limit: int, slack: float, room: int) -> int:
    """Close gaps, the best price first, while some place is over `limit`; the number closed.

    Prices only grow stale: one that has fallen below `slack` of the next best goes back into the heap.
    """
    heap = [(-prices[i], uses[i]) for i in range(len(uses))]
    heapify(heap)
    closed = 0
    while len(heap) and highest(ledger) > limit and board.count[USES] + room < len(board.place):
        use = heappop(heap)[1]
        now = price(board, ledger, use, limit)
        if now <= 0:
            continue
        if len(heap) and now < -heap[0][0] * slack:
            heappush(heap, (-now, use))
            continue
        before = board.count[USES]
        close(board, ledger, use)
        closed += 1
        for new in range(before, board.count[USES]):
            if board.free[new]:
                now = price(board, ledger, new, limit)
                if now > 0:
                    heappush(heap, (-now, new))
    return closed


def remove_use(board: Any, use: int) -> None:
    """Take a use out of its buffer's list."""
    last, following = board.before[use], board.next[use]
    board.next[last] = following
    if following >= 0:
        board.before[following] = last
    board.reads[use] = GONE


def hold_instead(board: Any, ledger: Any, task: int, place: int, sign: int) -> None:
    """Hold what the run at `place` writes from its last use before instead, or with sign -1 no longer."""
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b]:
            continue
        last = use_before(board, b, place)
        following = board.next[board.next[last]]
        if following >= 0 and board.reads[following] == 1:
            add(ledger, board.place[last] + 1, place, board.size[b] * sign)
            if board.taker[last] > 0:
                add(ledger, board.place[last], board.place[last] + 1, board.taker[last] * sign)


def is_within(board: Any, ledger: Any, task: int, place: int, limit: int) -> bool:
    """Whether no place between the run at `place` and the last use of what it writes is over `limit`."""
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b]:
            continue
        last = use_before(board, b, place)
        if highest_in(ledger, max(board.place[last], 0), place) > limit:
            return False
    return True


def drop_runs(board: Any, ledger: Any, steps: Any, tasks: Any, limit: int, dropped: Any) -> None:
    """Take out the runs at the given steps that `limit` does not need, in that order; mark them in `dropped`."""
    for i in range(len(steps)):
        task, place = tasks[i], 2 * steps[i] + 1
        hold_instead(board, ledger, task, place, 1)
        if not is_within(board, ledger, task, place, limit):
            hold_instead(board, ledger, task, place, -1)
            continue
        dropped[i] = 1
        for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
            b = board.write_index[entry]
            if board.resident[b]:
                continue
            last = use_before(board, b, place)
            board.taker[last] = 0
            remove_use(board, board.next[last])
        for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
            c = board.read_index[entry]
            if board.resident[c]:
                continue
            last = use_before(board, c, place)
            read = board.next[last]
            following = board.next[read]
            if following < 0 or board.reads[following] != 1:
                add(ledger, max(board.place[last] + 1, 0), place + 1, -board.size[c])
            remove_use(board, read)


KERNELS = (
    add, count_above, at_place, highest, highest_in,
    use_before, remove_use, hold_instead, is_within, drop_runs,
    output_gain, seed_chain, price_inputs, price_chain, price, add_use, close, price_all, close_best,
)  # fmt: skip


def signatures() -> tuple[Any, ...]:
    """The numba signatures of KERNELS: one board of int64 arrays, one ledger."""
    import numba
    import numpy as np

    from planner.gaps import Board
    from planner.ledger import Ledger

    row, real = numba.int64[::1], numba.float64
    board = numba.types.NamedUniTuple(row, len(Board._fields), Board)
    ledger = numba.types.NamedTuple((row, row, row, row, numba.int64), Ledger)
    whole = numba.int64
    prices = numba.float64[::1]
    return (
        numba.void(ledger, whole, whole, whole),
        whole(ledger, whole, whole, whole),
        whole(ledger, whole),
        whole(ledger),
        whole(ledger, whole, whole),
        whole(board, whole, whole),
        numba.void(board, whole),
        numba.void(board, ledger, whole, whole, whole),
        numba.boolean(board, ledger, whole, whole, whole),
        numba.void(board, ledger, row, row, whole, row),
        real(board, ledger, whole, whole, whole),
        whole(board, ledger, whole, whole, numba.boolean),
        numba.types.UniTuple(real, 2)(board, ledger, whole, whole, whole, whole, real, real),
        real(board, ledger, whole, whole),
        real(board, ledger, whole, whole),
        whole(board, whole, whole, whole, whole),
        numba.void(board, ledger, whole),
        numba.void(board, ledger, row, whole, prices),
        whole(board, ledger, row, prices, whole, real, whole),
    )
