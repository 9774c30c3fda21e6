"""The minimum cut of one moment: what is live, done and made again when a task first runs.

    later(v) ──∞──▶ needed(b) ──λ·size(b)──▶ later(maker of b) ──cost──▶ open(maker) ──∞──▶ open(its readers)

`later` is "runs after the moment" and `open` "not done"; in a given order what is done is known. The flow on an arc
is the weight of one inequality of `certificate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.cancellation import check_cancelled
from planner.bounds.largest_task import takeover_credit
from planner.problem import DEVICE, FREE, RESIDENT, SAME_ORDER, TO_LAST_READ, Csr, Problem, liveness
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order, can_recompute

# Parts of a tick that prices are told in.
TICK_SCALE = 1 << 10
# A goal of so many seconds or more has all the effort there is put into its bound.
FULL_SECONDS = 10.0
# Largest sum of capacities of a network.
MAX_CAPACITY = 1 << 60
# In a column of ticks: an arc that is not cut.
UNCUTTABLE = -1
# What the flow on an arc weighs, and of which (task, buffer), (buffer,) or (task,); NOTHING: that follows from others.
NOTHING, READ, CARRY, FIRST, RECOMPUTE, BEFORE, LIVE = range(7)
# Of a task that may have run at a moment, or not.
UNKNOWN = -1
# Networks solved for one problem; in large problems as many as this many arcs allow.
MAX_CUTS, MAX_ARCS = 60, 2_000_000


@dataclass(frozen=True, slots=True)
class CutPoint:
    """One choice at a moment: the cost of its repeats, and its bytes over the budget (less than 0: under it)."""

    ticks: int
    bytes: int
    live: tuple[int, ...] = ()  # buffers that lie there, beside the inputs of the moment's task

    def at(self, price: int) -> int:
        """In parts of a tick, with a price in parts a byte."""
        return TICK_SCALE * self.ticks + price * self.bytes


class StepModel:
    """The moments of one problem under a budget; of `firsts` the one whose moment it is runs first.

    A given order is the document's, or `order`, which proves nothing of any other.
    """

    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        budget_bytes: int,
        repeats: bool = True,
        firsts: Sequence[int] = (),
        order: Order | None = None,
    ):
        self.problem, self.goal, self.budget_bytes, self.repeats = problem, goal, budget_bytes, repeats
        self.size = np.where((problem.space == DEVICE) & (problem.hold != RESIDENT), problem.size, 0)
        self.room = budget_bytes - int(problem.size[(problem.hold == RESIDENT) & (problem.space == DEVICE)].sum())
        self.own = problem.workspace - takeover_credit(problem, self.size)
        self.order = base_order(problem, goal.strict_phases) if order is None else order
        self.place = np.full(problem.tasks, len(self.order), np.int64)
        self.place[self.order] = np.arange(len(self.order))
        # Ranks can agree to repeat what they do in the same order, so a bound reckons with it.
        self.again = can_recompute(
            replace(problem, repeat=np.where(problem.repeat == SAME_ORDER, FREE, problem.repeat))
        )
        self.again &= repeats
        self.maker = problem.producer()
        # What several tasks write, or an optional one, is left out: that only weakens the bound.
        several = np.bincount(problem.writes.index, minlength=problem.buffers) > 1
        optional = (self.maker >= 0) & problem.optional[np.maximum(self.maker, 0)]
        self.counted = (problem.hold != RESIDENT) & ~several & ~optional
        reader, read = problem.reads.row_of_entry(), problem.reads.index
        kept = self.counted[read] & ~problem.optional[reader]
        self.reader, self.read = reader[kept], read[kept]
        self.held = np.flatnonzero(self.counted & (problem.hold != TO_LAST_READ))
        self.first = self._precedence()
        self.after, self.ahead = (
            Csr.of_pairs(problem.tasks, *self.first),
            Csr.of_pairs(problem.tasks, *self.first[::-1]),
        )
        self.done = np.zeros(problem.tasks, bool)  # whoever asks may say of more tasks whether they have run
        self.undone = reachable_from(self.after, *firsts)
        self.max_multiplier = MAX_CAPACITY // 2 // max(1, int(self.size.sum()))
        self.left = min(MAX_CUTS, MAX_ARCS // max(3 * len(self.read) + 4 * problem.tasks, 1) + 2)

    def known(self, task: int) -> np.ndarray:
        """int8[n]: when the task first runs, 1: each task has run; 0: it has not; UNKNOWN."""
        problem, goal = self.problem, self.goal
        if goal.order_is_given:
            return np.asarray(self.place < self.place[task]).astype(np.int8)
        done, undone = reachable_from(self.ahead, task), reachable_from(self.after, task)
        if goal.strict_phases:
            done |= (problem.phase < problem.phase[task]) & ~problem.optional
            undone |= problem.phase > problem.phase[task]
        result = np.where(done | self.done, 1, UNKNOWN).astype(np.int8)
        result[undone | self.undone] = 0
        return result

    def late(self, known: np.ndarray) -> np.ndarray:
        """bool[n]: a task that all runs of this one precede has run, so this one does not run again."""
        rows = self.problem.after_every
        result = np.zeros(self.problem.tasks, bool)
        result[rows.row_of_entry()[known[rows.index] == 1]] = True
        return result

    def tried(self) -> np.ndarray:
        """Tasks whose moments may lie above the budget, those of the baseline's fullest steps first."""
        profile = liveness.profile(self.problem, self.order) - self.budget_bytes
        if not len(profile) or profile.max() <= 0:
            return self.order[:0]
        fullest = np.argsort(-profile, kind="stable")
        return np.asarray(self.order[fullest[profile[fullest] > 0] if self.goal.order_is_given else fullest])

    def largest_tasks(self) -> np.ndarray:
        """Tasks that have to run, those that need most first."""
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
        return reachable_from(self.after, *np.unique(self.after.gather(tasks)))

    def _precedence(self) -> np.ndarray:
        """int64[2, pairs]: the first run of the first stands before that of the second, in every order."""
        problem, maker = self.problem, self.maker
        read = np.concatenate([problem.reads.index, problem.shape_reads.index])
        reader = np.concatenate([problem.reads.row_of_entry(), problem.shape_reads.row_of_entry()])
        made = (maker[read] >= 0) & (problem.hold[read] != RESIDENT) & (maker[read] != reader)
        pairs = [np.stack([maker[read[made]], reader[made]])]
        for rows in (problem.after_first, problem.after_every):
            pair = np.stack([rows.row_of_entry(), rows.index])
            pairs.append(pair[:, ~problem.optional[pair[0]]])  # one that never runs holds nobody up
        return np.concatenate(pairs, axis=1)


class StepNetwork:
    """The cut of one moment. Node 0 runs later for sure, node 1 does not."""

    def __init__(self, moments: StepModel, task: int, fixed: Mapping[int, int] | None = None):
        """`fixed`: buffers that are certain to lie there, 1, or not, 0."""
        check_cancelled()
        self.moments, self.task, problem = moments, task, moments.problem
        count, known = problem.tasks, moments.known(task)
        later, open_ = np.arange(2, count + 2), np.arange(count + 2, 2 * count + 2)
        later[known == 0], open_[known == 0], open_[known == 1] = 0, 0, 1
        self.open = open_
        free = np.flatnonzero((known == UNKNOWN) & ~problem.optional)
        inputs = np.zeros(problem.buffers, bool)
        inputs[problem.reads[task]] = True
        self.constant = int(
            moments.own[task] + moments.size[problem.reads[task]].sum() + moments.size[problem.writes[task]].sum()
        )
        needed = 2 + 2 * problem.tasks + np.arange(problem.buffers)
        reader, read, held, (first, then) = moments.reader, moments.read, moments.held, moments.first
        arcs = [_arcs(later[reader], needed[read], UNCUTTABLE, of=(READ, reader, read))]
        arcs.append(_arcs(np.zeros(len(held), np.int64), needed[held], UNCUTTABLE, of=(CARRY, held, 0)))
        arcs.append(_arcs(open_[free], later[free], UNCUTTABLE, of=(FIRST, free, 0)))
        arcs.append(_arcs(open_[first], open_[then], UNCUTTABLE, of=(BEFORE, first, then)))
        made = np.flatnonzero(moments.counted & ~inputs)
        maker = np.where(moments.maker[made] >= 0, later[moments.maker[made]], 1)
        live, gone = (np.isin(made, [b for b, there in (fixed or {}).items() if there == value]) for value in (1, 0))
        self.constant += int(moments.size[made[live]].sum())
        size = np.where(live | gone, 0, moments.size[made])
        arcs.append(_arcs(needed[made], maker, np.where(gone, UNCUTTABLE, 0), size, (LIVE, made, 0)))
        done = np.flatnonzero(later != 0)
        late = moments.late(known)[done]
        cost = np.where(moments.again[done] & ~late, problem.cost[done], UNCUTTABLE)
        arcs.append(_arcs(later[done], open_[done], cost, of=(np.where(late, NOTHING, RECOMPUTE), done, 0)))
        table = np.concatenate(arcs, axis=1)
        tail, head = table[0], table[1]
        # Into node 0, out of node 1 and around a node nothing has to be cut.
        table = table[:, (head != 0) & (tail != 1) & (head != tail)]
        self.tail, self.head, self.cost, self.size, *self.of = table
        self.bytes_of = np.zeros(2 + 2 * problem.tasks + problem.buffers, np.int64)
        self.bytes_of[needed] = np.where(inputs, 0, moments.size)
        self.bytes_of[needed[made[gone]]] = UNCUTTABLE

    def line(self, price: int) -> CutPoint:
        """The best choice at a price in parts of a tick for a byte over the budget."""
        return self._cut(TICK_SCALE, price)

    def done(self, price: int) -> np.ndarray:
        """bool[n]: tasks that have run at the moment, in the best choice at a price."""
        return ~self._side(self._flow(TICK_SCALE, price))[self.open]

    def min_excess_bytes(self) -> int:
        """Bytes over the budget of the choice that frees most, whatever its repeats cost."""
        return self._cut(0, 1).bytes

    def weights(self, parts: int, price: int) -> dict[str, Any]:
        """The flow on each arc as weights of a proof: those of its one window, and of what weighs no window."""
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
        """The largest flow, as OR-Tools has it."""
        from ortools.graph.python import max_flow  # heavy: imported by those who solve

        check_cancelled()
        self.moments.left -= 1
        uncut = self.cost == UNCUTTABLE
        capacity = parts * np.where(uncut, 0, self.cost) + price * self.size
        capacity[uncut] = 2 * MAX_CAPACITY
        first = uncut & (self.tail == 0)  # what follows such an arc is cut instead, for no more than this
        follows = self.bytes_of[self.head[first]]
        capacity[first] = np.where(follows == UNCUTTABLE, 2 * MAX_CAPACITY, price * follows + 1)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.tail, self.head, capacity)
        status = flow.solve(0, 1)
        assert status == flow.OPTIMAL, status
        return flow

    def _side(self, flow: Any) -> np.ndarray:
        """bool[nodes]: on the side of node 0."""
        side = np.zeros(len(self.bytes_of), bool)
        side[flow.get_source_side_min_cut()] = True
        side[0] = True
        return side

    def _cut(self, parts: int, price: int) -> CutPoint:
        side = self._side(self._flow(parts, price))
        cut = side[self.tail] & ~side[self.head]
        over = self.constant + int(self.size[cut].sum()) - self.moments.room
        return CutPoint(int(self.cost[cut].sum()), over, tuple(self.of[1][cut & (self.of[0] == LIVE)].tolist()))


def _arcs(
    tail: np.ndarray,
    head: np.ndarray,
    cost: np.ndarray | int = 0,
    size: np.ndarray | int = 0,
    of: tuple[np.ndarray | int, np.ndarray | int, np.ndarray | int] = (NOTHING, 0, 0),
) -> np.ndarray:
    """int64[7, arcs]: tail, head, ticks and bytes that cutting costs, what it weighs; NEVER ticks: it is not cut."""
    zero = np.zeros(len(tail), np.int64)
    return np.stack([tail, head, zero + cost, zero + size, *(zero + each for each in of)])


def reachable_from(rows: Csr, *tasks: int) -> np.ndarray:
    """bool[n]: reached from the tasks along the rows, themselves included."""
    found = np.zeros(len(rows), bool)
    layer = np.array(tasks, np.int64)
    found[layer] = True
    while len(layer):
        check_cancelled()
        layer = np.unique(rows.gather(layer))
        layer = layer[~found[layer]]
        found[layer] = True
    return found
