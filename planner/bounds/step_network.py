"""Minimum cut of one step: the live, done and recomputed sets at the first run of a task.

    later(v) ──∞──▶ needed(b) ──λ·size(b)──▶ later(producer of b) ──cost──▶ open(producer) ──∞──▶ open(its readers)

`later` means "runs after the step" and `open` "not done"; in a given order the done tasks are known. The flow on an arc
is the multiplier of one inequality of `certificate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from graph.cancellation import check_cancelled
from planner.bounds.largest_task import takeover_credit
from planner.bounds.solvers import max_flow
from planner.problem import FREE, RESIDENT, SAME_ORDER, TO_LAST_READ, Csr, Problem, liveness
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order, can_recompute, first_run_step

# Parts per tick, the unit of multipliers.
TICK_SCALE = 1 << 10
# Goals with at least this many seconds get the full effort for their bound.
FULL_SECONDS = 10.0
# Largest sum of capacities of a network.
MAX_CAPACITY = 1 << 60
# In a column of ticks: an arc of infinite capacity.
UNCUTTABLE = -1
# The inequality whose multiplier is the flow on an arc, of a (task, buffer), (buffer,) or (task,); NOTHING: implied.
NOTHING, READ, CARRY, FIRST, RECOMPUTE, BEFORE, LIVE = range(7)
# State of a task at a step that is not the same in all orders.
UNKNOWN = -1
# Tasks whose reachable tasks are remembered: branches at one step have the same.
MAX_AROUND = 32
# Limits on the networks solved for one problem: their number, and their arcs in total.
MAX_CUTS, MAX_ARCS = 60, 2_000_000


def effort_share(goal: Goal) -> float:
    """Share of the full effort for a bound that the seconds of the goal allow."""
    return min(1.0, goal.seconds / FULL_SECONDS)


class Multiplier(NamedTuple):
    """Parts of a tick, and the price of a byte (or of a grain of bytes) over the budget in these parts."""

    parts: int
    price: int


@dataclass(frozen=True, slots=True)
class CutPoint:
    """One choice at a step: the cost of its recomputations, and its bytes over the budget (negative: under it)."""

    ticks: int
    bytes: int  # in grains of the network
    live: tuple[int, ...] = ()  # live buffers, without the inputs of the step's task

    def at(self, price: int) -> int:
        """Lagrangian value in parts of a tick, with a multiplier in parts per byte."""
        return TICK_SCALE * self.ticks + price * self.bytes

    def value(self, multiplier: Multiplier) -> Fraction:
        """Lagrangian value in ticks."""
        return self.ticks + Fraction(multiplier.price * self.bytes, multiplier.parts)


class StepModel:
    """The steps of one problem under a budget. `firsts`: none of these tasks has run yet at any of the steps.

    A given order is that of the document, or `order`; a bound from the latter holds for that order only. So does one
    with buffers that are `always_live`, in bool[m]: room is kept for them, and no task is recomputed for them.
    """

    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        budget_bytes: int,
        repeats: bool = True,
        firsts: Sequence[int] = (),
        order: Order | None = None,
        always_live: np.ndarray | None = None,
    ):
        check_cancelled()
        self.problem, self.goal, self.budget_bytes, self.repeats = problem, goal, budget_bytes, repeats
        self.size, self.room = problem.planned_size(), budget_bytes - problem.resident_bytes()
        self.own = problem.workspace - takeover_credit(problem, self.size)
        self.order = base_order(problem, goal.strict_phases) if order is None else order
        self.place = first_run_step(problem, self.order)
        # Ranks can agree to recompute SAME_ORDER tasks in the same order, so the bound must allow it.
        self.recomputable = can_recompute(
            replace(problem, repeat=np.where(problem.repeat == SAME_ORDER, FREE, problem.repeat))
        )
        self.recomputable &= repeats
        self.producer = problem.producer()
        # Buffers written by several tasks or by an optional one are left out, which only weakens the bound.
        optional = self.producer >= 0
        optional[optional] = problem.optional[self.producer[optional]]
        self.counted = (problem.hold != RESIDENT) & ~problem.has_several_writers() & ~optional
        if always_live is not None:
            self.room -= int(self.size[always_live & self.counted].sum())
            self.counted &= ~always_live
        reader, read = problem.reads.row_of_entry(), problem.reads.index
        kept = self.counted[read] & ~problem.optional[reader]
        self.reader, self.read = reader[kept], read[kept]
        self.held = np.flatnonzero(self.counted & (problem.hold != TO_LAST_READ))
        self.first = self._precedence()
        self.after, self.ahead = (
            Csr.of_pairs(problem.tasks, *self.first),
            Csr.of_pairs(problem.tasks, *self.first[::-1]),
        )
        self.done = np.zeros(problem.tasks, bool)  # further tasks that a caller assumes to have run at every step
        self._after, self._ahead = self.after.lists(), self.ahead.lists()
        self.undone = reachable_from(self._after, firsts)
        self._around: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # task -> tasks before it and after it, of a few
        #: All sizes are multiples of so many bytes.
        self.grain = math.gcd(*problem.size.tolist(), *problem.workspace.tolist()) or 1
        self.max_multiplier = MAX_CAPACITY // 2 // max(1, int(self.size.sum()))
        self.cuts_left = min(MAX_CUTS, MAX_ARCS // max(3 * len(self.read) + 4 * problem.tasks, 1) + 2)

    def known(self, task: int) -> np.ndarray:
        """int8[n]: at the first run of `task`, 1: the task has run; 0: it has not; UNKNOWN."""
        problem, goal = self.problem, self.goal
        if goal.order_is_given:
            return np.asarray(self.place < self.place[task]).astype(np.int8)
        if task not in self._around:
            if len(self._around) >= MAX_AROUND:
                self._around.clear()
            self._around[task] = reachable_from(self._ahead, [task]), reachable_from(self._after, [task])
        done, undone = self._around[task]
        if goal.strict_phases:
            done = done | ((problem.phase < problem.phase[task]) & ~problem.optional)
            undone = undone | (problem.phase > problem.phase[task])
        result = np.where(done | self.done, 1, UNKNOWN).astype(np.int8)
        result[undone | self.undone] = 0
        return result

    def late(self, known: np.ndarray) -> np.ndarray:
        """bool[n]: cannot be recomputed, because a task that every run of this one precedes (`after_every`) has run."""
        rows = self.problem.after_every
        result = np.zeros(self.problem.tasks, bool)
        result[rows.row_of_entry()[known[rows.index] == 1]] = True
        return result

    def candidate_tasks(self) -> np.ndarray:
        """Tasks whose steps may exceed the budget, by the baseline's memory, highest first."""
        profile = liveness.profile(self.problem, self.order) - self.budget_bytes
        if not len(profile) or profile.max() <= 0:
            return self.order[:0]
        fullest = np.argsort(-profile, kind="stable")
        return np.asarray(self.order[fullest[profile[fullest] > 0] if self.goal.order_is_given else fullest])

    def largest_tasks(self) -> np.ndarray:
        """Tasks of the base order by memory need, largest first."""
        return np.asarray(self.order[np.argsort(-self.need()[self.order], kind="stable")])

    def need(self) -> np.ndarray:
        """float64[n]: bytes of a task's inputs, outputs and workspace."""
        reads, writes = self.problem.reads, self.problem.writes
        need = self.own.astype(np.float64)
        need += np.bincount(reads.row_of_entry(), self.size[reads.index], self.problem.tasks)
        need += np.bincount(writes.row_of_entry(), self.size[writes.index], self.problem.tasks)
        return np.asarray(need)

    def behind(self, tasks: np.ndarray) -> np.ndarray:
        """bool[n]: the first run of one of the tasks precedes that of this one in every order."""
        return reachable_from(self._after, self.after.gather(tasks).tolist())

    def _precedence(self) -> np.ndarray:
        """int64[2, pairs]: (earlier, later) tasks by first runs, in every order."""
        problem, producer = self.problem, self.producer
        read = np.concatenate([problem.reads.index, problem.shape_reads.index])
        reader = np.concatenate([problem.reads.row_of_entry(), problem.shape_reads.row_of_entry()])
        produced = (producer[read] >= 0) & (problem.hold[read] != RESIDENT) & (producer[read] != reader)
        pairs = [np.stack([producer[read[produced]], reader[produced]])]
        for rows in (problem.after_first, problem.after_every):
            pair = np.stack([rows.row_of_entry(), rows.index])
            pairs.append(pair[:, ~problem.optional[pair[0]]])  # an optional task may never run and delay no other
        return np.concatenate(pairs, axis=1)


class StepNetwork:
    """Flow network of one step. Node 0 stands for "runs later" (source), node 1 for "does not" (sink)."""

    def __init__(self, model: StepModel, task: int, fixed: Mapping[int, int] | None = None, grain: int = 1):
        """`fixed`: buffers forced to be live (1) or not live (0) at the step. Bytes are counted in `grain`s."""
        check_cancelled()
        self.model, self.task, problem = model, task, model.problem
        count, known = problem.tasks, model.known(task)
        later, open_ = np.arange(2, count + 2), np.arange(count + 2, 2 * count + 2)
        later[known == 0], open_[known == 0], open_[known == 1] = 0, 0, 1
        self.open = open_
        free = np.flatnonzero((known == UNKNOWN) & ~problem.optional)
        inputs = np.zeros(problem.buffers, bool)
        inputs[problem.reads[task]] = True
        certain = int(model.own[task] + model.size[problem.reads[task]].sum() + model.size[problem.writes[task]].sum())
        needed = 2 + 2 * problem.tasks + np.arange(problem.buffers)
        reader, read, held, (first, then) = model.reader, model.read, model.held, model.first
        arcs = [_arcs(later[reader], needed[read], UNCUTTABLE, of=(READ, reader, read))]
        arcs.append(_arcs(np.zeros(len(held), np.int64), needed[held], UNCUTTABLE, of=(CARRY, held, 0)))
        arcs.append(_arcs(open_[free], later[free], UNCUTTABLE, of=(FIRST, free, 0)))
        arcs.append(_arcs(open_[first], open_[then], UNCUTTABLE, of=(BEFORE, first, then)))
        evictable = np.flatnonzero(model.counted & ~inputs)
        producer = np.where(model.producer[evictable] >= 0, later[model.producer[evictable]], 1)
        live, evicted = (
            np.isin(evictable, [b for b, state in (fixed or {}).items() if state == value]) for value in (1, 0)
        )
        certain += int(model.size[evictable[live]].sum())
        size = np.where(live | evicted, 0, model.size[evictable])
        arcs.append(_arcs(needed[evictable], producer, np.where(evicted, UNCUTTABLE, 0), size, (LIVE, evictable, 0)))
        done = np.flatnonzero(later != 0)
        late = model.late(known)[done]
        cost = np.where(model.recomputable[done] & ~late, problem.cost[done], UNCUTTABLE)
        arcs.append(_arcs(later[done], open_[done], cost, of=(np.where(late, NOTHING, RECOMPUTE), done, 0)))
        table = np.concatenate(arcs, axis=1)
        tail, head = table[0], table[1]
        # Arcs into node 0, out of node 1 and loops are never cut.
        table = table[:, (head != 0) & (tail != 1) & (head != tail)]
        self.tail, self.head, self.cost, self.size, *self.of = table
        self.bytes_of = np.zeros(2 + 2 * problem.tasks + problem.buffers, np.int64)
        self.bytes_of[needed] = np.where(inputs, 0, model.size)
        self.room = (model.room - certain) // grain
        self.total_ticks = int(self.cost[self.cost != UNCUTTABLE].sum())
        self.size //= grain
        self.bytes_of //= grain
        self.bytes_of[needed[evictable[evicted]]] = UNCUTTABLE

    def best_at(self, price: int) -> CutPoint:
        """The best choice at a multiplier, in parts of a tick per byte over the budget."""
        return self._cut(TICK_SCALE, price)

    def choice_at(self, multiplier: Multiplier) -> CutPoint:
        """The best choice at a multiplier, which prices grains."""
        return self._cut(*multiplier)

    def highest_multiplier(self) -> Multiplier:
        """The highest price of a grain in whole ticks that capacities allow."""
        total = int(self.size.sum()) + int(self.bytes_of[self.bytes_of != UNCUTTABLE].sum())
        return Multiplier(1, (MAX_CAPACITY - self.total_ticks) // max(1, total))

    def multiplier_near(self, price: Fraction) -> Multiplier:
        """The price in ticks of a grain, rounded as little as capacities allow."""
        total = Fraction(self.total_ticks) + price * int(self.size.sum())
        near = price.limit_denominator(max(1, int(MAX_CAPACITY // 2 / max(total, Fraction(1)))))
        return Multiplier(near.denominator, near.numerator)

    def done(self, price: int) -> np.ndarray:
        """bool[n]: tasks that have run at the step, in the best choice at a multiplier."""
        return ~max_flow.source_side(len(self.bytes_of), self._flow(TICK_SCALE, price))[self.open]

    def min_excess_bytes(self) -> int:
        """Least bytes over the budget of any choice, at any cost of recomputation."""
        return self._cut(0, 1).bytes

    def weights(self, parts: int, price: int) -> dict[str, Any]:
        """The flow on each arc as multipliers of a proof: those of its one window, and those outside windows."""
        flow = self._flow(parts, price)
        amount = np.asarray(flow.flows(np.arange(len(self.tail))), np.int64)
        kind, one, other = self.of

        def rows(of: int, *entries: np.ndarray) -> list[list[int]]:
            used = (kind == of) & (amount > 0)
            return [list(row) for row in zip(*(entry[used].tolist() for entry in (*entries, amount)), strict=True)]

        window = {
            "from": 0,
            "to": 1,
            "read": rows(READ, one, other),
            "carry": rows(CARRY, one),
            "first": rows(FIRST, one),
            "again": rows(RECOMPUTE, one),
        }
        return {"windows": [window], "before": rows(BEFORE, np.zeros_like(one), one, other)}

    def _flow(self, parts: int, price: int) -> Any:
        """The solved maximum flow, as the OR-Tools object."""
        check_cancelled()
        self.model.cuts_left -= 1
        uncut = self.cost == UNCUTTABLE
        capacity = parts * np.where(uncut, 0, self.cost) + price * self.size
        capacity[uncut] = 2 * MAX_CAPACITY
        first = uncut & (self.tail == 0)  # the arcs after such an arc are cut instead, for no more than this
        follows = self.bytes_of[self.head[first]]
        capacity[first] = np.where(follows == UNCUTTABLE, 2 * MAX_CAPACITY, price * follows + 1)
        return max_flow.solve(self.tail, self.head, capacity)

    def _cut(self, parts: int, price: int) -> CutPoint:
        """The minimum cut at capacities of `parts` per tick and `price` per byte."""
        side = max_flow.source_side(len(self.bytes_of), self._flow(parts, price))
        cut = side[self.tail] & ~side[self.head]
        over = int(self.size[cut].sum()) - self.room
        return CutPoint(int(self.cost[cut].sum()), over, tuple(self.of[1][cut & (self.of[0] == LIVE)].tolist()))


def _arcs(
    tail: np.ndarray,
    head: np.ndarray,
    cost: np.ndarray | int = 0,
    size: np.ndarray | int = 0,
    of: tuple[np.ndarray | int, np.ndarray | int, np.ndarray | int] = (NOTHING, 0, 0),
) -> np.ndarray:
    """int64[7, arcs]: tail, head, ticks (UNCUTTABLE: infinite) and bytes of cutting, three columns for the proof."""
    zero = np.zeros(len(tail), np.int64)
    return np.stack([tail, head, zero + cost, zero + size, *(zero + each for each in of)])


def reachable_from(rows: Sequence[Sequence[int]], tasks: Sequence[int]) -> np.ndarray:
    """bool[n]: reachable from the tasks along the rows, themselves included; O(entries)."""
    reached, waiting = set(tasks), list(tasks)
    while waiting:
        for task in rows[waiting.pop()]:
            if task not in reached:
                reached.add(task)
                waiting.append(task)
    result = np.zeros(len(rows), bool)
    result[list(reached)] = True
    return result
