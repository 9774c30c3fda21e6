"""Kernels that enumerate the plans of one part, and chain plans; see `subproblem.py` and `problem/jit.py`.

A plan of a part is a set of kept buffers. All other buffers read in the backward pass are recomputed right before,
with the buffers they depend on, and kept to their last read. Sets are enumerated by flipping one or two bits of those
that are not dominated.
"""

from __future__ import annotations

import numpy as np

from planner.algorithms.blocks.subproblem import SubproblemArrays
from planner.problem.jit import Cube, Kernels, Reals, Row, Table

# Columns of a plan: extra ticks, bytes saved across TURN, peak of the forward and of the backward part, leads that
# are dropped and leads that are needed as bits, the buffers that stay as bits, 1 when another plan beats it.
TICKS, SAVED, OUT, BACK, DROPS, NEEDS, KEPT, DOMINATED = range(8)
COLUMNS = 8
# In `there`: an input whose storage was taken over.
TAKEN = 2


def write_order(sheet: SubproblemArrays, kept: int, steps: Row) -> int:
    """Write the tasks of the part in running order into `steps`; returns their number, or 0 if they do not fit."""
    there, stack, turn, count = sheet.there, sheet.stack, sheet.turn[0], 0
    for b in range(len(there)):
        there[b] = 1 if sheet.bit[b] < 0 or (kept >> sheet.bit[b]) & 1 else 0
    for t in range(turn + 1):
        steps[count] = t
        count += 1
    for t in range(turn + 1, len(sheet.cost)):
        stack[0], depth = t, 1
        while depth > 0:
            task = stack[depth - 1]
            missing = -1
            for entry in range(sheet.read_pointer[task], sheet.read_pointer[task + 1]):
                if not there[sheet.read_index[entry]]:
                    missing = sheet.producer[sheet.read_index[entry]]
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
            for entry in range(sheet.write_pointer[task], sheet.write_pointer[task + 1]):
                there[sheet.write_index[entry]] = 1
    return int(count)


def takeover_bytes(sheet: SubproblemArrays, task: int) -> int:
    """Bytes of outputs that reuse inputs at their last read; marks those inputs in `there`."""
    needed, result = sheet.there, 0
    for entry in range(sheet.write_pointer[task], sheet.write_pointer[task + 1]):
        b = sheet.write_index[entry]
        for take in range(sheet.take_pointer[b], sheet.take_pointer[b + 1]):
            c = sheet.take_index[take]
            if needed[c] == 0:
                needed[c] = TAKEN
                result += sheet.size[b]
                break
    return result


def measure_plan(sheet: SubproblemArrays, steps: Row, count: int, plan: Row) -> None:
    """Fill all columns of the plan but KEPT and BEATEN, from the last step to the first."""
    needed, turn, highest = sheet.there, sheet.turn[0], 0
    for b in range(len(needed)):
        needed[b] = 0
    live, back, plan[DROPS], plan[NEEDS], plan[TICKS] = 0, True, 0, 0, 0
    for i in range(count - 1, -1, -1):
        task = steps[i]
        plan[TICKS] += sheet.cost[task]
        here = live + sheet.workspace[task]
        if task == turn:
            plan[BACK], highest, back = highest, 0, False
            for b in range(len(needed)):
                if sheet.lead_out[b] >= 0 and not needed[b]:
                    plan[DROPS] |= 1 << sheet.lead_out[b]
        for entry in range(sheet.write_pointer[task], sheet.write_pointer[task + 1]):
            b = sheet.write_index[entry]
            if needed[b]:
                live -= sheet.size[b]
                needed[b] = 0
            else:
                here += sheet.size[b]
        if task != turn:
            here -= takeover_bytes(sheet, task)
        for entry in range(sheet.read_pointer[task], sheet.read_pointer[task + 1]):
            b = sheet.read_index[entry]
            if needed[b] == 0 or needed[b] == TAKEN:
                needed[b] = 1
                live += sheet.size[b]
                here += sheet.size[b]
            if back and task < turn and sheet.lead_in[b] >= 0:
                plan[NEEDS] |= 1 << sheet.lead_in[b]
        if task == turn:
            plan[SAVED] = here
        else:
            highest = max(highest, here)
    plan[OUT] = highest
    for t in range(len(sheet.cost)):
        plan[TICKS] -= sheet.cost[t]


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


def add_plan(sheet: SubproblemArrays, kept: int, steps: Row, plans: Table, count: int) -> int:
    """Add the plan that keeps these bits unless one is as good; returns the number of plans."""
    plan = plans[count]
    length = write_order(sheet, kept, steps)
    if length == 0:
        return count
    measure_plan(sheet, steps, length, plan)
    plan[KEPT], plan[DOMINATED] = kept, 0
    for i in range(count):
        if not plans[i][DOMINATED] and dominates(plans[i], plan, sheet.turn[1]):
            return count
    for i in range(count):
        if dominates(plan, plans[i], sheet.turn[1]):
            plans[i][DOMINATED] = 1
    return count + 1


def enumerate_plans(sheet: SubproblemArrays, kept: int, limit: int, steps: Row, plans: Table) -> int:
    """Fill `plans` starting from the one that keeps `kept`, trying about `limit` sets; returns their number."""
    count, looked = add_plan(sheet, kept, steps, plans, 0), 1
    flips, room = len(sheet.flips), len(plans) - 1
    for pairs in range(2):
        i = 0
        while i < count and looked < limit and count < room:
            if not plans[i][DOMINATED]:
                before = plans[i][KEPT]
                for x in range(flips):
                    one = before ^ (1 << sheet.flips[x])
                    if pairs == 0 and count < room:
                        count = add_plan(sheet, one, steps, plans, count)
                        looked += 1
                    for y in range(x + 1, flips if pairs else 0):
                        if count < room and looked < limit:
                            count = add_plan(sheet, one ^ (1 << sheet.flips[y]), steps, plans, count)
                            looked += 1
            i += 1
    return int(count)


# Columns of a state of the chain: bytes saved so far against the base order, ticks, leads that are dropped as bits, the
# state it came from, the plan taken there and the position of that state.
BYTES, COST, LEADS, FROM, PLAN, PLACE = range(6)
STATE = 6
# Worths nearer to one another than this part of all ticks are equal.
EQUAL = 1e-10


def prune_states(states: Table, count: int, most: int, price: float, aim: float) -> int:
    """Keep the non-dominated states, cheapest first, at most `most`; returns their number.

    Above the limit, states of least cost are kept, a byte being worth `price` ticks; ties: nearest to `aim` bytes.
    """
    by = np.argsort(states[:count, BYTES], kind="mergesort")
    by = by[np.argsort(states[:count, COST][by], kind="mergesort")]
    least = np.full(1 << 5, 2**62, np.int64)
    kept = np.zeros((count, STATE), np.int64)
    left = 0
    for i in by:
        leads = states[i, LEADS]
        if states[i, BYTES] < least[leads] and states[i, BYTES] < least[0]:
            least[leads] = states[i, BYTES]
            kept[left] = states[i]
            left += 1
    for part in range(2):
        if left > most:
            worth = np.zeros(left)
            for i in range(left):
                worth[i] = kept[i, COST] + price * kept[i, BYTES] if part == 0 else abs(kept[i, BYTES] - aim)
            bar, some = np.sort(worth)[most - 2], 0
            if part == 0:
                bar += EQUAL * kept[left - 1, COST]
            for i in range(left):
                if (worth[i] <= bar and (part == 0 or some < most - 1)) or i == left - 1:
                    kept[some] = kept[i]
                    some += 1
            left = some
    states[:left] = kept[:left]
    return left


def highest_worth(states: Table, count: int, price: float) -> float:
    """The maximum cost of the states except the last, a byte being worth `price` ticks."""
    highest = -np.inf
    for i in range(count - 1):
        highest = max(highest, states[i, COST] + price * states[i, BYTES])
    return float(highest)


def extend_states(
    states: Table,
    count: int,
    place: int,
    item: Row,
    plans: Table,
    budget: int,
    found: Table,
    begin: int,
    most: int,
    price: float,
    aim: float,
    bars: Reals,
    ring: int,
) -> int:
    """Append every feasible extension of a state by a plan to `found`, from row `begin` on; returns the number of rows.

    `item` has the first plan, the end of the plans, and the bytes live under the part in the forward and backward pass.
    States worth more than `bars[ring]` are skipped, once enough are found.
    """
    for p in range(item[0], item[1]):
        room = budget - max(item[2] + plans[p, OUT], item[3] + plans[p, BACK])
        for s in range(count):
            if states[s, BYTES] > room or states[s, LEADS] & plans[p, NEEDS]:
                continue
            if states[s, COST] + plans[p, TICKS] + price * (states[s, BYTES] + plans[p, SAVED]) > bars[ring]:
                continue
            if begin == len(found):
                begin = prune_states(found, begin, most, price, aim)
                if begin >= most:
                    bars[ring] = highest_worth(found, begin, price)
            row = found[begin]
            row[BYTES], row[COST] = states[s, BYTES] + plans[p, SAVED], states[s, COST] + plans[p, TICKS]
            row[LEADS], row[FROM], row[PLAN], row[PLACE] = plans[p, DROPS], s, p, place
            begin += 1
    return int(begin)


def run_chain_dp(
    items: Table,
    first_item: Row,
    reach: Row,
    plans: Table,
    budget: int,
    most: int,
    price: float,
    aims: Reals,
    begin: int,
    end: int,
    rows: Row,
    states: Cube,
    waiting: Cube,
    counts: Row,
    bars: Reals,
) -> None:
    """Fill `states` with those before the blocks [begin, end) and `rows` with their number, given all earlier blocks.

    Item i spans `reach[i]` blocks; the items at position k are [first_item[k], first_item[k + 1]). `aims` are the
    target bytes against the base order before each block. After the last block there is one more position.
    """
    last, ring = len(first_item) - 1, len(waiting)
    for k in range(begin, end):
        here = k % ring
        rows[k] = prune_states(waiting[here], counts[here], most, price, aims[k])
        states[k, : rows[k]] = waiting[here, : rows[k]]
        counts[here], bars[here] = 0, np.inf
        if k == last:
            break
        for i in range(first_item[k], first_item[k + 1]):
            to = (k + reach[i]) % ring
            counts[to] = extend_states(
                states[k],
                rows[k],
                k,
                items[i],
                plans,
                budget,
                waiting[to],
                counts[to],
                most,
                price,
                aims[k + reach[i]],
                bars,
                to,
            )


KERNELS = Kernels(
    (enumerate_plans, run_chain_dp), allocating=frozenset({"prune_states", "extend_states", "run_chain_dp"})
)
