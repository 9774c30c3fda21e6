"""The chain of plans through all blocks, and the order it describes; see `planner.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.algorithms.blocks.detection import Blocks
from planner.algorithms.blocks.kernels import BACK, COLUMNS, DOMINATED, KEPT, SAVED, TICKS, Chain, ChainStates
from planner.algorithms.blocks.state_rows import COST, FROM, PLACE, PLAN, STATE
from planner.algorithms.blocks.subproblem import MAX_LEADS, Subproblem, subproblem_of
from planner.problem.jit import Kernels
from planner.problem.monitor import flagged_when_cancelled
from planner.problem.plan import Order

#: Sets tried: for all distinct parts together, for one part, and for one part per task. Plans kept of one part.
MAX_TOTAL_SETS, MAX_SETS, SETS_PER_TASK, MAX_PLANS = 600_000, 30_000, 20, 1_500
#: Pairs of a state and a plan examined in one chain, and per task; range of the states before a block, and of the plans
#: of a part.
PAIRS_PER_TASK = 2_000
MAX_PAIRS, STATES, PLANS = 4_000_000, (60, 4_000), (12, 400)
#: Slices of a chain; cancellation is polled between them.
SLICES = 24
#: Below any number of bytes: the maximum over no steps.
NO_BYTES = -(2**60)
#: Steps of the search for the price of a byte, and the multiples of it that are tried.
MULTIPLIER_STEPS, MULTIPLIER_FACTORS = 60, (1.0, 0.97)


def _never() -> bool:
    return False


class BlockChainDp:
    """Plans of the distinct parts of one problem, and chains of them."""

    def __init__(self, blocks: Blocks, kernels: Kernels, fast: bool):
        self.blocks, self.fast = blocks, fast
        self.kernels = kernels.compiled() if fast else kernels.interpreted()
        self.parts: list[Subproblem] = []
        self.plans: list[np.ndarray] = []  # per part int64[plans, COLUMNS], SAVED relative to the base order
        self.places: list[np.ndarray] = []  # per part the blocks at which it begins
        self.under: list[np.ndarray] = []  # per part [places, 2] bytes live under its forward and its backward part
        self.lengths: set[int] = set()

    def add_parts(
        self, lengths: Sequence[int], should_stop: Callable[[], bool], check: Callable[[], None] = lambda: None
    ) -> bool:
        """Compute the plans of all parts of so many successive blocks; returns whether there are new ones.

        `check` may raise to cancel.
        """
        before = len(self.parts)
        for length in lengths:
            if length in self.lengths:
                continue
            self.lengths.add(length)
            places: dict[tuple[int, ...], list[int]] = {}
            kinds = self.blocks.kind.tolist()
            for k in range(len(kinds) - length + 1):
                places.setdefault(tuple(kinds[k : k + length]), []).append(k)
            limit = min(MAX_SETS, SETS_PER_TASK * self.blocks.base.problem.tasks, MAX_TOTAL_SETS // max(1, len(places)))
            for equal in places.values():
                if should_stop():
                    break
                self._add(np.array(equal), length, limit, check)
        return len(self.parts) > before

    def _add(self, places: np.ndarray, length: int, limit: int, check: Callable[[], None]) -> None:
        """Add the part of `length` blocks that begins at each of `places`."""
        part = subproblem_of(self.blocks, int(places[0]), int(places[0]) + length, not self.fast)
        if length > 1 and part.kept == part.read_backward:
            return  # no recomputable buffer connects one of its blocks to the next
        tasks = len(part.task)
        steps, plans = np.zeros(8 * tasks + 64, np.int64), np.zeros((MAX_PLANS, COLUMNS), np.int64)
        with flagged_when_cancelled(self.blocks.base.problem.tasks, part.arrays.stop, 0, check):
            count = self.kernels["enumerate_plans"](part.arrays, part.kept, limit, steps, plans)
        check()
        plans = plans[:count][plans[:count, DOMINATED] == 0]
        plans[:, SAVED] -= part.step_bytes[part.turn]
        base, blocks = self.blocks.base, self.blocks
        out = blocks.out[places][:, None] + np.arange(part.turn - 1)
        back = blocks.back[places + length][:, None] + np.arange(tasks - part.turn - 2)
        under = np.full((len(places), 2), NO_BYTES)
        under[:, 0] = (base.step_bytes[out] - part.step_bytes[: part.turn - 1]).max(axis=1, initial=NO_BYTES)
        under[:, 1] = (base.step_bytes[back] - part.step_bytes[part.turn + 1 : -1]).max(axis=1, initial=NO_BYTES)
        self.parts.append(part)
        self.plans.append(plans)
        self.places.append(places)
        self.under.append(under)

    def order(self, budget: int, is_cancelled: Callable[[], bool] = _never) -> Order | None:
        """The base order with the recomputations of the cheapest chain within the budget; None if there is none."""
        price = self._price(budget)
        chains = (self._cheapest(budget, price * factor, is_cancelled) for factor in MULTIPLIER_FACTORS)
        found = [chain for chain in chains if chain is not None]
        return min(found, key=lambda chain: chain[0])[1]() if found else None

    def _cheapest(
        self, budget: int, price: float, is_cancelled: Callable[[], bool] = _never
    ) -> tuple[int, Callable[[], Order]] | None:
        """(ticks, order) of the cheapest chain if a byte is worth `price` ticks."""
        if is_cancelled():
            return None
        count, first_plan, chain = len(self.blocks), *self._chain(budget, price)
        table = self._states(chain, first_plan)
        per_slice = -(-(count + 1) // SLICES)
        for begin in range(0, count + 1, per_slice):
            if is_cancelled():
                return None
            self.kernels["run_chain_dp"](chain, table, begin, min(begin + per_slice, count + 1))
        if not table.counts[count]:
            return None
        states = table.states
        best = int(np.argmin(states[count, : table.counts[count], COST]))
        chosen: dict[int, list[int]] = {}  # plan -> blocks at which it is taken
        place, state = count, best
        while place > 0:
            row = states[place, state]
            place, state = int(row[PLACE]), int(row[FROM])
            chosen.setdefault(int(row[PLAN]), []).append(place)
        return int(states[count, best, COST]), lambda: self._with_plans(first_plan, chain.plans, chosen)

    def _chain(self, budget: int, price: float) -> tuple[np.ndarray, Chain]:
        """(first plan of each part, the choices of the dynamic program)."""
        count, max_pairs = len(self.blocks), min(MAX_PAIRS, PAIRS_PER_TASK * self.blocks.base.problem.tasks)
        plans_each = int(np.clip(max_pairs // (count * STATES[0]), *PLANS))
        plans = [_cheapest_plans(plans, plans_each, price) for plans in self.plans]
        first_plan = np.append(0, np.cumsum([len(rows) for rows in plans]))
        rows = [
            (int(place), part.end - part.begin, int(first_plan[i]), int(first_plan[i + 1]), int(u[0]), int(u[1]))
            for i, (part, places, under) in enumerate(zip(self.parts, self.places, self.under, strict=True))
            for place, u in zip(places, under, strict=True)
        ]
        table = np.array(sorted(rows), np.int64)
        pairs = int((table[:, 3] - table[:, 2]).sum())
        chain = Chain(
            np.ascontiguousarray(table[:, 2:6]),
            np.searchsorted(table[:, 0], np.arange(count + 1)),
            np.ascontiguousarray(table[:, 1]),
            np.concatenate(plans),
            self._targets(budget, price),
            budget,
            int(np.clip(max_pairs // max(1, pairs), *STATES)),
            price,
        )
        return first_plan, chain

    def _states(self, chain: Chain, first_plan: np.ndarray) -> ChainStates:
        """Empty states of the dynamic program, with the initial state in the ring."""
        positions, ring, most = len(self.blocks) + 1, int(chain.spans.max()) + 1, chain.max_states
        room = most * 4 + 4 * int(np.diff(first_plan).max())
        ring_counts = np.zeros(ring, np.int64)
        ring_counts[0] = 1
        return ChainStates(
            np.zeros(positions, np.int64),
            np.zeros((positions, most, STATE), np.int64),
            np.zeros((ring, room, STATE), np.int64),
            ring_counts,
            np.full(ring, np.inf),
            np.zeros((room, STATE), np.int64),
            np.zeros((2, room), np.int64),
            np.zeros(room),
            np.zeros(2**MAX_LEADS, np.int64),
        )

    def _price(self, budget: int) -> float:
        """Ticks per byte at which the best plans save the bytes that the budget requires."""
        single = [i for i, part in enumerate(self.parts) if part.end - part.begin == 1]
        missing = int(self.blocks.base.step_bytes.max()) - budget
        low, high = 0.0, 1.0
        for step in range(MULTIPLIER_STEPS):
            price = high if step < MULTIPLIER_STEPS // 2 else (low + high) / 2
            saved = 0
            for i in single:
                saved -= int(_cheapest_plan(self.plans[i], price)[SAVED]) * len(self.places[i])
            if saved >= missing:
                high = price
            elif step < MULTIPLIER_STEPS // 2:
                low, high = high, high * 4
            else:
                low = price
        for i in single:  # the slope between the two plans that are equally good there
            a, b = (_cheapest_plan(self.plans[i], price) for price in (low, high))
            if a[SAVED] != b[SAVED]:
                return float((b[TICKS] - a[TICKS]) / (a[SAVED] - b[SAVED]))
        return high

    def _targets(self, budget: int, price: float) -> np.ndarray:
        """float64[k + 1]: target bytes against the base order before each block, if all save their share."""
        saved = np.zeros(len(self.blocks) + 1)
        for part, plans, places in zip(self.parts, self.plans, self.places, strict=True):
            if part.end - part.begin == 1:
                saved[places + 1] = _cheapest_plan(plans, 1.01 * price)[SAVED]
        saved = np.cumsum(saved)
        missing = budget - int(self.blocks.base.step_bytes.max())
        return np.asarray(saved * (missing / min(saved[-1], -1.0)))

    def _with_plans(self, first_plan: np.ndarray, plans: np.ndarray, chosen: dict[int, list[int]]) -> Order:
        """The base order with the recomputations of each chosen plan inserted in all parts that use it."""
        step, task, rank = [], [], []
        for p, places in sorted(chosen.items()):
            part = self.parts[int(np.searchsorted(first_plan, p, side="right")) - 1]
            steps = np.zeros(8 * len(part.task) + 64, np.int64)
            count = self.kernels["write_order"](part.arrays, int(plans[p, KEPT]), steps)
            recomputed, before = _recomputations(steps[:count], len(part.task))
            if not len(recomputed):
                continue
            where = np.stack([self._steps(part, place) for place in places])
            step.append(where[:, before].ravel())
            task.append(self.blocks.base.order[where[:, recomputed]].ravel())
            rank.append(np.tile(np.arange(len(recomputed)), len(places)))
        order = self.blocks.base.order
        if not step:
            return order
        at, inserted = np.concatenate(step), np.concatenate(task)
        by = np.lexsort((np.concatenate(rank), at))
        return np.insert(order, at[by], inserted[by])

    def _steps(self, part: Subproblem, place: int) -> np.ndarray:
        """int64[n]: step of each task of the part placed at block `place`."""
        blocks, end = self.blocks, place + part.end - part.begin
        back = int(blocks.back[end])
        return np.concatenate(
            [
                np.arange(blocks.out[place], blocks.out[end]),
                [back, back],
                np.arange(back, blocks.back[place]),
                [blocks.back[place]],
            ]
        )


def _recomputations(steps: np.ndarray, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """(recomputed tasks, the task whose first run each of them precedes)."""
    first = np.full(tasks, -1, np.int64)
    first[steps[::-1]] = np.arange(len(steps))[::-1]
    is_first = first[steps] == np.arange(len(steps))
    following = np.searchsorted(np.flatnonzero(is_first), np.flatnonzero(~is_first))
    return steps[~is_first], steps[is_first][following]


def _cheapest_plan(plans: np.ndarray, price: float) -> np.ndarray:
    """The plan of least cost if a byte is worth `price` ticks."""
    return np.asarray(plans[np.argmin(plans[:, TICKS] + price * plans[:, SAVED])])


def _cheapest_plans(plans: np.ndarray, limit: int, price: float) -> np.ndarray:
    """At most `limit` plans: those of least cost at the price first, and those of least bytes."""
    by = np.argsort(plans[:, TICKS] + price * plans[:, SAVED], kind="stable")
    if len(plans) > limit:
        by = np.append(by[: limit - 2], [np.argmin(plans[:, SAVED]), np.argmin(plans[:, BACK])])
        by = by[np.sort(np.unique(by, return_index=True)[1])]
    return np.asarray(plans[by])
