"""Kernels that enumerate the plans of one part, and chain plans; see `subproblem.py` and `problem/jit.py`.

A plan of a part is a set of kept buffers. All other buffers read in the backward pass are recomputed right before,
with the buffers they depend on, and kept to their last read. Sets are enumerated by flipping one or two bits of those
that are not dominated. A lead is a buffer that a block writes and the next one reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.algorithms.blocks.state_rows import (
    BYTES,
    COST,
    FROM,
    LEADS,
    LOOPS,
    PLACE,
    PLAN,
    copy_row,
    copy_rows,
    nth_smallest,
    rank_states,
)
from planner.algorithms.blocks.subproblem import SubproblemArrays
from planner.problem.jit import Cube, Kernels, Reals, Row, Table

# Columns of a plan: extra ticks, bytes saved across TURN, peak of the forward and of the backward part, bits of the
# leads that it drops and of those that it needs, bits of the kept buffers, 1 if another plan dominates it.
TICKS, SAVED, OUT, BACK, DROPS, NEEDS, KEPT, DOMINATED = range(8)
COLUMNS = 8
# In `available`: an input whose storage was taken over.
TAKEN = 2


def write_order(part: SubproblemArrays, kept: int, steps: Row) -> int:
    """Write the tasks of the part in running order into `steps`; returns their number, or 0 if they do not fit."""
    available, stack, turn, count = part.available, part.stack, part.turn[0], 0
    for b in range(len(available)):
        available[b] = 1 if part.bit[b] < 0 or (kept >> part.bit[b]) & 1 else 0
    for t in range(turn + 1):
        steps[count] = t
        count += 1
    for t in range(turn + 1, len(part.cost)):
        stack[0], depth = t, 1
        while depth > 0:
            task = stack[depth - 1]
            missing = -1
            for entry in range(part.read_pointer[task], part.read_pointer[task + 1]):
                if not available[part.read_index[entry]]:
                    missing = part.producer[part.read_index[entry]]
                    break
            if missing >= 0:
                stack[depth] = missing
                depth += 1
                continue
            depth -= 1
            if count >= len(steps):
                return 0
            steps[count] = task
            count += 1
            for entry in range(part.write_pointer[task], part.write_pointer[task + 1]):
                available[part.write_index[entry]] = 1
    return int(count)


def takeover_bytes(part: SubproblemArrays, task: int) -> int:
    """Bytes of outputs that reuse inputs at their last read; marks those inputs in `available`."""
    needed, result = part.available, 0
    for entry in range(part.write_pointer[task], part.write_pointer[task + 1]):
        b = part.write_index[entry]
        for take in range(part.take_pointer[b], part.take_pointer[b + 1]):
            c = part.take_index[take]
            if needed[c] == 0:
                needed[c] = TAKEN
                result += part.size[b]
                break
    return result


def dropped_leads(part: SubproblemArrays) -> int:
    """Bits of the leads into the next block that nothing reads after TURN."""
    bits = 0
    for b in range(len(part.available)):
        if part.lead_out[b] >= 0 and not part.available[b]:
            bits |= 1 << part.lead_out[b]
    return bits


def measure_plan(part: SubproblemArrays, steps: Row, count: int, plan: Row) -> None:
    """Fill all columns of the plan but KEPT and DOMINATED, from the last step to the first."""
    needed, turn, highest = part.available, part.turn[0], 0
    for b in range(len(needed)):
        needed[b] = 0
    live, is_backward, plan[DROPS], plan[NEEDS], plan[TICKS] = 0, True, 0, 0, 0
    for i in range(count - 1, -1, -1):
        task = steps[i]
        plan[TICKS] += part.cost[task]
        here = live + part.workspace[task]
        if task == turn:
            plan[BACK], highest, is_backward = highest, 0, False
            plan[DROPS] = dropped_leads(part)
        for entry in range(part.write_pointer[task], part.write_pointer[task + 1]):
            b = part.write_index[entry]
            if needed[b]:
                live -= part.size[b]
                needed[b] = 0
            else:
                here += part.size[b]
        if task != turn:
            here -= takeover_bytes(part, task)
        for entry in range(part.read_pointer[task], part.read_pointer[task + 1]):
            b = part.read_index[entry]
            if needed[b] == 0 or needed[b] == TAKEN:
                needed[b] = 1
                live += part.size[b]
                here += part.size[b]
            if is_backward and task < turn and part.lead_in[b] >= 0:
                plan[NEEDS] |= 1 << part.lead_in[b]
        if task == turn:
            plan[SAVED] = here
        else:
            highest = max(highest, here)
    plan[OUT] = highest
    for t in range(len(part.cost)):
        plan[TICKS] -= part.cost[t]


def dominates(a: Row, b: Row, quantum: int) -> bool:
    """Whether plan a is nowhere worse than plan b; peaks are compared in units of `quantum` bytes."""
    return bool(
        a[TICKS] <= b[TICKS]
        and a[SAVED] <= b[SAVED]
        and a[BACK] // quantum <= b[BACK] // quantum
        and a[OUT] // quantum <= b[OUT] // quantum
        and a[DROPS] | b[DROPS] == b[DROPS]
        and a[NEEDS] | b[NEEDS] == b[NEEDS]
    )


def add_plan(part: SubproblemArrays, kept: int, steps: Row, plans: Table, count: int) -> int:
    """Add the plan that keeps these bits unless it is dominated; returns the number of plans."""
    plan = plans[count]
    length = write_order(part, kept, steps)
    if length == 0:
        return count
    measure_plan(part, steps, length, plan)
    plan[KEPT], plan[DOMINATED] = kept, 0
    for i in range(count):
        if not plans[i][DOMINATED] and dominates(plans[i], plan, part.turn[1]):
            return count
    for i in range(count):
        if dominates(plan, plans[i], part.turn[1]):
            plans[i][DOMINATED] = 1
    return count + 1


def enumerate_plans(part: SubproblemArrays, kept: int, limit: int, steps: Row, plans: Table) -> int:
    """Fill `plans` starting from the one that keeps `kept`, trying about `limit` sets; returns their number.

    Ends early once `part.stop[0]` is set.
    """
    count, tried = add_plan(part, kept, steps, plans, 0), 1
    flips, room = len(part.flips), len(plans) - 1
    for pairs in range(2):
        i = 0
        while i < count and tried < limit and count < room and not part.stop[0]:
            if not plans[i][DOMINATED]:
                base = plans[i][KEPT]
                for x in range(flips):
                    one = base ^ (1 << part.flips[x])
                    if pairs == 0 and count < room:
                        count = add_plan(part, one, steps, plans, count)
                        tried += 1
                    for y in range(x + 1, flips if pairs else 0):
                        if count < room and tried < limit and not part.stop[0]:
                            count = add_plan(part, one ^ (1 << part.flips[y]), steps, plans, count)
                            tried += 1
            i += 1
    return int(count)


class Chain(NamedTuple):
    """What a dynamic program over k blocks, i items and p plans chooses from. An item is a part at one place."""

    items: Table  # i, 4: first plan, end of the plans, bytes live under the part in the forward and the backward pass
    first_item: Row  # k + 1: items at a block are [first_item[k], first_item[k + 1]); after the last block is one more
    spans: Row  # i: blocks that the item spans
    plans: Table  # p, COLUMNS
    targets: Reals  # k + 1: bytes against the base order that the states before each block aim for
    budget: int  # bytes
    max_states: int  # before a block
    price: float  # ticks a byte is worth


class ChainStates(NamedTuple):
    """The states before each of k blocks, and those of the next r blocks under construction in a ring."""

    counts: Row  # k + 1
    states: Cube  # k + 1, max_states, STATE
    ring: Cube  # r, room, STATE
    ring_counts: Row  # r
    thresholds: Reals  # r: states of a higher Lagrangian value are skipped, once enough are found
    kept: Table  # room, STATE: scratch
    rank: Table  # 2, room: scratch
    value: Reals  # room: scratch
    least: Row  # 2 ** leads: scratch


# Lagrangian values that differ by less than this share of all ticks are equal.
EQUAL = 1e-10


def prune_states(chain: Chain, table: ChainStates, states: Table, count: int, target: float) -> int:
    """Keep the non-dominated states, cheapest first, at most `max_states`; returns their number.

    Above the limit, states of the least Lagrangian value are kept, a byte being worth `price` ticks; ties: those
    nearest to `target` bytes.
    """
    rank_states(states, count, table.rank)
    least, kept, left = table.least, table.kept, 0
    for leads in range(len(least)):
        least[leads] = 2**62
    for k in range(count):
        state = states[table.rank[0, k]]
        leads = state[LEADS]
        if state[BYTES] < least[leads] and state[BYTES] < least[0]:
            least[leads] = state[BYTES]
            copy_row(state, kept[left])
            left += 1
    if left > chain.max_states:
        left = keep_least_value(kept, left, chain.max_states, chain.price, table.value)
    if left > chain.max_states:
        left = keep_nearest(kept, left, chain.max_states, target, table.value)
    copy_rows(kept, left, states)
    return left


def keep_least_value(kept: Table, count: int, max_states: int, price: float, value: Reals) -> int:
    """Keep the states of least Lagrangian value, all that tie, and the last one; returns their number."""
    for i in range(count):
        value[i] = kept[i, COST] + price * kept[i, BYTES]
    threshold, left = nth_smallest(value, count, max_states - 2) + EQUAL * kept[count - 1, COST], 0
    for i in range(count):
        if kept[i, COST] + price * kept[i, BYTES] <= threshold or i == count - 1:
            copy_row(kept[i], kept[left])
            left += 1
    return left


def keep_nearest(kept: Table, count: int, max_states: int, target: float, value: Reals) -> int:
    """Keep the states nearest to `target` bytes, and the last one; returns their number, `max_states`."""
    for i in range(count):
        value[i] = abs(kept[i, BYTES] - target)
    threshold, left = nth_smallest(value, count, max_states - 2), 0
    for i in range(count):
        if (abs(kept[i, BYTES] - target) <= threshold and left < max_states - 1) or i == count - 1:
            copy_row(kept[i], kept[left])
            left += 1
    return left


def highest_value(states: Table, count: int, price: float) -> float:
    """The maximum Lagrangian value of the states except the last, a byte being worth `price` ticks."""
    highest = -np.inf
    for i in range(count - 1):
        highest = max(highest, states[i, COST] + price * states[i, BYTES])
    return float(highest)


def extend_states(chain: Chain, table: ChainStates, block: int, item: int) -> None:
    """Append every feasible extension of a state before `block` by a plan of the item to the ring."""
    end = block + chain.spans[item]
    to, target = end % len(table.ring), chain.targets[end]
    states, found, plans = table.states[block], table.ring[to], chain.plans
    count, begin, threshold = table.counts[block], table.ring_counts[to], table.thresholds[to]
    max_states, price, under = chain.max_states, chain.price, chain.items[item]
    for p in range(under[0], under[1]):
        room = chain.budget - max(under[2] + plans[p, OUT], under[3] + plans[p, BACK])
        for s in range(count):
            if states[s, BYTES] > room or states[s, LEADS] & plans[p, NEEDS]:
                continue
            if states[s, COST] + plans[p, TICKS] + price * (states[s, BYTES] + plans[p, SAVED]) > threshold:
                continue
            if begin == len(found):
                begin = prune_states(chain, table, found, begin, target)
                if begin >= max_states:
                    threshold = highest_value(found, begin, price)
            row = found[begin]
            row[BYTES], row[COST] = states[s, BYTES] + plans[p, SAVED], states[s, COST] + plans[p, TICKS]
            row[LEADS], row[FROM], row[PLAN], row[PLACE] = plans[p, DROPS], s, p, block
            begin += 1
    table.ring_counts[to], table.thresholds[to] = begin, threshold


def run_chain_dp(chain: Chain, table: ChainStates, begin: int, end: int) -> None:
    """Fill the states before the blocks [begin, end), given those of all earlier blocks."""
    for block in range(begin, end):
        here = block % len(table.ring)
        found, target = table.ring[here], chain.targets[block]
        count = prune_states(chain, table, found, table.ring_counts[here], target)
        table.counts[block] = count
        copy_rows(found, count, table.states[block])
        table.ring_counts[here], table.thresholds[here] = 0, np.inf
        if block == len(chain.first_item) - 1:
            break
        for item in range(chain.first_item[block], chain.first_item[block + 1]):
            extend_states(chain, table, block, item)


KERNELS = Kernels((write_order, enumerate_plans, run_chain_dp), LOOPS)
