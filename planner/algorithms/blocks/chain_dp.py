"""The chain of plans through all blocks, and the order it describes; see `planner.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.algorithms.blocks.detection import Blocks
from planner.algorithms.blocks.kernels import (
    BACK,
    COLUMNS,
    COST,
    DOMINATED,
    FROM,
    KEPT,
    PLACE,
    PLAN,
    SAVED,
    STATE,
    TICKS,
)
from planner.algorithms.blocks.subproblem import Subproblem, subproblem_of
from planner.problem.jit import Kernels
from planner.problem.plan import Order

#: Sets tried for all distinct parts together, for one at most, and for one by tasks; plans found for one at most.
MAX_TOTAL_SETS, MAX_SETS, SETS_PER_TASK, MAX_PLANS = 600_000, 30_000, 20, 1_500
#: Pairs of a state and a plan looked at in one chain, and by tasks; states in front of a block, and plans of a part.
PAIRS_PER_TASK = 2_000
MAX_PAIRS, STATES, PLANS = 4_000_000, (60, 4_000), (12, 400)
#: Parts of a chain between which a stop is heard.
SLICES = 24
#: Less than any bytes: nothing of the part lies there.
NO_BYTES = -(2**60)
#: Steps of the search for the price of a byte, and what parts of it are tried.
MULTIPLIER_STEPS, MULTIPLIER_FACTORS = 60, (1.0, 0.97)


def _never() -> bool:
    return False


class BlockChainDp:
    """Plans of the distinct parts of one problem, and chains of them."""

    def __init__(self, blocks: Blocks, kernels: Kernels, fast: bool):
        self.blocks, self.fast = blocks, fast
        self.kernels = kernels.compiled() if fast else kernels.interpreted()
        self.parts: list[Subproblem] = []
        self.tables: list[np.ndarray] = []  # per part its plans, int64[plans, COLUMNS], SAVED against the base order
        self.under: list[tuple[np.ndarray, np.ndarray]] = []  # per part its begins, and [begins, 2] bytes under it
        self.known: dict[tuple[int, ...], int] = {}
        self.reached: set[int] = set()

    def reach(self, lengths: Sequence[int], should_stop: Callable[[], bool]) -> bool:
        """Compute the plans of all parts of so many successive blocks; returns whether there are new ones."""
        before = len(self.parts)
        for length in lengths:
            if length in self.reached:
                continue
            self.reached.add(length)
            begins: dict[tuple[int, ...], list[int]] = {}
            kinds = self.blocks.kind.tolist()
            for k in range(len(kinds) - length + 1):
                begins.setdefault(tuple(kinds[k : k + length]), []).append(k)
            limit = min(
                MAX_SETS, SETS_PER_TASK * self.blocks.frame.problem.tasks, MAX_TOTAL_SETS // max(1, len(begins))
            )
            for rows in begins.values():
                if should_stop():
                    break
                self._add(rows, length, limit)
        return len(self.parts) > before

    def _add(self, begins: list[int], length: int, limit: int) -> None:
        part = subproblem_of(self.blocks, begins[0], begins[0] + length, not self.fast)
        if length > 1 and part.kept == part.base:
            return  # no recomputable buffer leads from one of its blocks to the next
        tasks = len(part.task)
        steps, plans = np.zeros(8 * tasks + 64, np.int64), np.zeros((MAX_PLANS, COLUMNS), np.int64)
        count = self.kernels["enumerate_plans"](part.sheet, part.kept, limit, steps, plans)
        plans = plans[:count][plans[:count, DOMINATED] == 0]
        plans[:, SAVED] -= part.step_bytes[part.turn]
        at = np.array(begins)
        frame, blocks = self.blocks.frame, self.blocks
        out = blocks.out[at][:, None] + np.arange(part.turn - 1)
        back = blocks.back[at + length][:, None] + np.arange(tasks - part.turn - 2)
        under = np.full((len(at), 2), NO_BYTES)
        under[:, 0] = (frame.step_bytes[out] - part.step_bytes[: part.turn - 1]).max(axis=1, initial=NO_BYTES)
        under[:, 1] = (frame.step_bytes[back] - part.step_bytes[part.turn + 1 : -1]).max(axis=1, initial=NO_BYTES)
        self.parts.append(part)
        self.tables.append(plans)
        self.under.append((at, under))

    def order(self, budget: int, is_cancelled: Callable[[], bool] = _never) -> Order | None:
        """The base order with the recomputations of the cheapest chain within the budget; None: none found, or
        cancelled.
        """
        price = self._price(budget)
        chains = (self._chained(budget, price * part, is_cancelled) for part in MULTIPLIER_FACTORS)
        found = [chain for chain in chains if chain is not None]
        return min(found, key=lambda chain: chain[0])[1]() if found else None

    def _chained(
        self, budget: int, price: float, is_cancelled: Callable[[], bool] = _never
    ) -> tuple[int, Callable[[], Order]] | None:
        """(ticks, order) of the cheapest chain if a byte is worth `price` ticks."""
        count = len(self.blocks)
        looked = min(MAX_PAIRS, PAIRS_PER_TASK * self.blocks.frame.problem.tasks)
        plans_each = int(np.clip(looked // (count * STATES[0]), *PLANS))
        tables = [_fewer(table, plans_each, price) for table in self.tables]
        first_plan = np.append(0, np.cumsum([len(table) for table in tables]))
        plans = np.concatenate(tables)
        rows = [
            (int(k), part.end - part.begin, int(first_plan[i]), int(first_plan[i + 1]), int(u[0]), int(u[1]))
            for i, (part, (begins, under)) in enumerate(zip(self.parts, self.under, strict=True))
            for k, u in zip(begins, under, strict=True)
        ]
        table = np.array(sorted(rows), np.int64)
        first_item = np.searchsorted(table[:, 0], np.arange(count + 1))
        pairs = int((table[:, 3] - table[:, 2]).sum())
        most = int(np.clip(looked // max(1, pairs), *STATES))
        ring = int(table[:, 1].max()) + 1
        states, counts = np.zeros((count + 1, most, STATE), np.int64), np.zeros(count + 1, np.int64)
        waiting = np.zeros((ring, most * 4 + 4 * int(np.diff(first_plan).max()), STATE), np.int64)
        of_ring, bars = np.zeros(ring, np.int64), np.full(ring, np.inf)
        of_ring[0] = 1
        items, reach = np.ascontiguousarray(table[:, 2:6]), np.ascontiguousarray(table[:, 1])
        aims, slice_of = self._aims(budget, price), -(-(count + 1) // SLICES)
        for begin in range(0, count + 1, slice_of):
            if is_cancelled():
                return None
            self.kernels["run_chain_dp"](
                items,
                first_item,
                reach,
                plans,
                budget,
                most,
                price,
                aims,
                begin,
                min(begin + slice_of, count + 1),
                counts,
                states,
                waiting,
                of_ring,
                bars,
            )
        if not counts[count]:
            return None
        best = int(np.argmin(states[count, : counts[count], COST]))
        taken: dict[int, list[int]] = {}
        place, state = count, best
        while place > 0:
            row = states[place, state]
            place, state = int(row[PLACE]), int(row[FROM])
            taken.setdefault(int(row[PLAN]), []).append(place)
        return int(states[count, best, COST]), lambda: self._stamped(first_plan, plans, taken)

    def _price(self, budget: int) -> float:
        """Ticks per byte at which the best plans save the bytes that the budget requires."""
        single = [i for i, part in enumerate(self.parts) if part.end - part.begin == 1]
        missing = int(self.blocks.frame.step_bytes.max()) - budget
        low, high = 0.0, 1.0
        for step in range(MULTIPLIER_STEPS):
            price = high if step < MULTIPLIER_STEPS // 2 else (low + high) / 2
            saved = 0
            for i in single:
                table = self.tables[i]
                saved -= int(table[np.argmin(table[:, TICKS] + price * table[:, SAVED]), SAVED]) * len(self.under[i][0])
            if saved >= missing:
                high = price
            elif step < MULTIPLIER_STEPS // 2:
                low, high = high, high * 4
            else:
                low = price
        for i in single:  # the slope between the two plans that are equally good there
            table = self.tables[i]
            a, b = (table[np.argmin(table[:, TICKS] + price * table[:, SAVED])] for price in (low, high))
            if a[SAVED] != b[SAVED]:
                return float((b[TICKS] - a[TICKS]) / (a[SAVED] - b[SAVED]))
        return high

    def _aims(self, budget: int, price: float) -> np.ndarray:
        """float64[k + 1]: target bytes against the base order before each block, if all save their share."""
        saved = np.zeros(len(self.blocks) + 1)
        for part, table, (begins, _) in zip(self.parts, self.tables, self.under, strict=True):
            if part.end - part.begin == 1:
                saved[begins + 1] = table[np.argmin(table[:, TICKS] + 1.01 * price * table[:, SAVED]), SAVED]
        saved = np.cumsum(saved)
        missing = budget - int(self.blocks.frame.step_bytes.max())
        return np.asarray(saved * (missing / min(saved[-1], -1.0)))

    def _stamped(self, first_plan: np.ndarray, plans: np.ndarray, taken: dict[int, list[int]]) -> Order:
        """The base order with the recomputations of each plan inserted in all parts that use it."""
        at, task, turn = [], [], []
        for p, begins in sorted(taken.items()):
            part = self.parts[int(np.searchsorted(first_plan, p, side="right")) - 1]
            steps = np.zeros(8 * len(part.task) + 64, np.int64)
            count = self.kernels["write_order"](part.sheet, int(plans[p, KEPT]), steps)
            run, before = _repeats(steps[:count], len(part.task))
            if not len(run):
                continue
            where = np.stack([self._steps(part, begin) for begin in begins])
            at.append(where[:, before].ravel())
            task.append(self.blocks.frame.order[where[:, run]].ravel())
            turn.append(np.tile(np.arange(len(run)), len(begins)))
        if not at:
            return self.blocks.frame.order
        step, what, rank = np.concatenate(at), np.concatenate(task), np.concatenate(turn)
        by = np.lexsort((rank, step))
        return np.insert(self.blocks.frame.order, step[by], what[by])

    def _steps(self, part: Subproblem, begin: int) -> np.ndarray:
        """int64[n]: step of each task of the part placed at block `begin`."""
        blocks, end = self.blocks, begin + part.end - part.begin
        back = int(blocks.back[end])
        return np.concatenate(
            [
                np.arange(blocks.out[begin], blocks.out[end]),
                [back, back],
                np.arange(back, blocks.back[begin]),
                [blocks.back[begin]],
            ]
        )


def _repeats(steps: np.ndarray, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """(recomputed tasks, the task whose first run each of them precedes)."""
    first = np.full(tasks, -1, np.int64)
    first[steps[::-1]] = np.arange(len(steps))[::-1]
    is_first = first[steps] == np.arange(len(steps))
    behind = np.searchsorted(np.flatnonzero(is_first), np.flatnonzero(~is_first))
    return steps[~is_first], steps[is_first][behind]


def _fewer(table: np.ndarray, most: int, price: float) -> np.ndarray:
    """At most `most` plans: those of least cost at the price first, and those of least bytes."""
    by = np.argsort(table[:, TICKS] + price * table[:, SAVED], kind="stable")
    if len(table) > most:
        by = np.append(by[: most - 2], [np.argmin(table[:, SAVED]), np.argmin(table[:, BACK])])
        by = by[np.sort(np.unique(by, return_index=True)[1])]
    return np.asarray(table[by])
