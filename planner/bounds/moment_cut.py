"""Moment cuts: at the moment a task first runs, what is needed later is live or has to be made again.

Take the first run of a task w. Every other task has run already (it is *done*) or has not. Whatever runs later,
a task that is not done or one that is done and repeated, needs each input live at the moment or made again later.
Live bytes, with those of w itself, fit the budget. The least cost of repeats over all such choices bounds the
extra time of every order with any number of repeats; the moment that costs most decides.

With a price λ on the bytes over the budget the choice is a minimum cut, solved exactly in integers:

    later(v) ──∞──▶ needed(b) ──λ·size(b)──▶ later(maker of b) ──cost──▶ open(maker) ──∞──▶ open(its readers)

where `later` is "runs after the moment" and `open` is "not done"; in a given order what is done is known. Any λ ≥ 0
gives a bound (Lagrangian relaxation), and a feasible flow of that value proves it.

Source: the project's own; the relaxation is that of Everett, "Generalized Lagrange Multiplier Method", 1963, and
the cut that of Picard, "Maximal Closure of a Graph", 1976.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner import liveness
from planner.bounds.largest_task import takeover_credit
from planner.plan import Goal
from planner.problem import DEVICE, RESIDENT, TO_LAST_READ, Csr, Problem
from planner.recompute import base_order, may_repeat

# Parts of a tick that prices are told in.
PARTS = 1 << 10
# Largest sum of capacities of a network.
LARGEST = 1 << 60
# In a column of ticks: an arc that is not cut.
NEVER = -1
# Networks solved, for one problem and for one moment; in large problems as many as this many arcs allow.
CUTS, CUTS_A_MOMENT, ARCS = 60, 24, 2_000_000


@dataclass(frozen=True, slots=True)
class MomentCut:
    """Lower bound on the cost of repeats, in ticks, and the moment and price that prove it."""

    ticks: int
    task: int  # -1 when no moment asks for repeats
    price: float  # ticks per byte over the budget
    reachable: bool = True  # False: at the moment of `task` no repeats free enough


def bound(problem: Problem, goal: Goal, budget_bytes: int) -> MomentCut:
    """The best bound found for that budget. The number of cuts is limited by the size of the problem alone.

    A moment that no repeats can bring within the budget proves that it is out of reach; of time it says nothing.
    """
    best = MomentCut(0, -1, 0.0)
    if not problem.tasks:
        return best
    moments = _Moments(problem, goal, budget_bytes)
    for task in moments.tried().tolist():
        best = moments.best_price(task, best)
        if moments.left <= 0 or not best.reachable:
            break
    return best


@dataclass(frozen=True, slots=True)
class _Line:
    """One choice at a moment: the cost of its repeats, and its bytes over the budget (less than 0: under it)."""

    ticks: int
    bytes: int

    def at(self, price: int) -> int:
        """In parts of a tick, with a price in parts a byte."""
        return PARTS * self.ticks + price * self.bytes


class _Moments:
    """The moments of one problem under a budget."""

    def __init__(self, problem: Problem, goal: Goal, budget_bytes: int):
        self.problem, self.goal, self.budget_bytes = problem, goal, budget_bytes
        self.size = np.where((problem.space == DEVICE) & (problem.hold != RESIDENT), problem.size, 0)
        self.room = budget_bytes - int(problem.size[(problem.hold == RESIDENT) & (problem.space == DEVICE)].sum())
        self.own = problem.workspace - takeover_credit(problem, self.size)
        self.order = base_order(problem, goal.strict_phases)
        self.place = np.full(problem.tasks, len(self.order), np.int64)
        self.place[self.order] = np.arange(len(self.order))
        self.again = may_repeat(problem)
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
        self.dearest = LARGEST // 2 // max(1, int(self.size.sum()))
        self.left = min(CUTS, ARCS // max(3 * len(self.read) + 4 * problem.tasks, 1) + 2)

    def _precedence(self) -> np.ndarray:
        """int64[2, pairs]: the first run of the first stands before that of the second, in every order."""
        problem, maker = self.problem, self.maker
        read = np.concatenate([problem.reads.index, problem.shape_reads.index])
        reader = np.concatenate([problem.reads.row_of_entry(), problem.shape_reads.row_of_entry()])
        made = (maker[read] >= 0) & (problem.hold[read] != RESIDENT) & (maker[read] != reader)
        pairs = [np.stack([maker[read[made]], reader[made]])]
        pairs += [np.stack([rows.row_of_entry(), rows.index]) for rows in (problem.after_first, problem.after_every)]
        return np.concatenate(pairs, axis=1)

    def tried(self) -> np.ndarray:
        """Tasks whose moments may ask for repeats, those of the baseline's fullest steps first."""
        profile = liveness.profile(self.problem, self.order) - self.budget_bytes
        if not len(profile) or profile.max() <= 0:
            return self.order[:0]
        fullest = np.argsort(-profile, kind="stable")
        return np.asarray(self.order[fullest[profile[fullest] > 0] if self.goal.order_is_given else fullest])

    def best_price(self, task: int, known: MomentCut) -> MomentCut:
        """The better of the known bound and what this moment gives at its best price."""
        network = _Network(self, task)
        if known.task >= 0:
            price = max(1, round(known.price * PARTS))
            if network.line(price).at(price) <= known.ticks * PARTS:
                return known
        cheap, dear = network.line(1), network.line(self.dearest)
        best = known
        if dear.bytes > 0 and network.least_bytes() > 0:
            return MomentCut(0, task, 0.0, reachable=False)
        for _ in range(CUTS_A_MOMENT):
            if cheap.bytes <= 0:
                break
            fair = PARTS * (dear.ticks - cheap.ticks) // max(1, cheap.bytes - dear.bytes)
            price = self.dearest if dear.bytes > 0 else min(self.dearest, max(1, fair))
            line = network.line(price)
            ticks = -(-line.at(price) // PARTS)
            if ticks > best.ticks:
                best = MomentCut(ticks, task, price / PARTS)
            if line.at(price) >= min(cheap.at(price), dear.at(price)) or self.left <= 0:
                break
            cheap, dear = (line, dear) if line.bytes > 0 else (cheap, line)
        return best


class _Network:
    """The cut of one moment. Node 0 runs later for sure, node 1 does not."""

    def __init__(self, moments: _Moments, task: int):
        self.moments, problem = moments, moments.problem
        later, open_, free = self._nodes(moments, task)
        inputs = np.zeros(problem.buffers, bool)
        inputs[problem.reads[task]] = True
        self.constant = int(
            moments.own[task] + moments.size[problem.reads[task]].sum() + moments.size[problem.writes[task]].sum()
        )
        needed = 2 + 2 * problem.tasks + np.arange(problem.buffers)
        arcs = [_arcs(later[moments.reader], needed[moments.read], NEVER)]
        arcs.append(_arcs(np.zeros(len(moments.held), np.int64), needed[moments.held], NEVER))
        arcs.append(_arcs(open_[free], later[free], NEVER))
        arcs.append(_arcs(open_[moments.first[0]], open_[moments.first[1]], NEVER))
        made = np.flatnonzero(moments.counted & ~inputs)
        maker = np.where(moments.maker[made] >= 0, later[moments.maker[made]], 1)
        arcs.append(_arcs(needed[made], maker, size=moments.size[made]))
        done = np.flatnonzero(later != 0)
        again = moments.again[done] & ~self._overwritten(moments, open_)[done]
        arcs.append(_arcs(later[done[again]], open_[done[again]], cost=problem.cost[done[again]]))
        arcs.append(_arcs(later[done[~again]], open_[done[~again]], NEVER))
        table = np.concatenate(arcs, axis=1)
        tail, head = table[0], table[1]
        # Into node 0, out of node 1 and around a node nothing has to be cut.
        self.tail, self.head, self.cost, self.size = table[:, (head != 0) & (tail != 1) & (head != tail)]
        self.bytes_of = np.zeros(2 + 2 * problem.tasks + problem.buffers, np.int64)
        self.bytes_of[needed] = np.where(inputs, 0, moments.size)

    @staticmethod
    def _nodes(moments: _Moments, task: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(node of `later`, node of `open`, tasks that may be done or not) of each task at the moment of `task`."""
        count = moments.problem.tasks
        later, open_ = np.arange(2, count + 2), np.arange(count + 2, 2 * count + 2)
        if moments.goal.order_is_given:
            done = moments.place < moments.place[task]
            undone = ~done
        else:
            done, undone = _reached(moments.ahead, task), _reached(moments.after, task)
            if moments.goal.strict_phases:
                done |= moments.problem.phase < moments.problem.phase[task]
                undone |= moments.problem.phase > moments.problem.phase[task]
            done[task] = False
            undone[task] = True
        later[undone], open_[undone] = 0, 0
        open_[done] = 1
        return later, open_, np.flatnonzero(~done & ~undone)

    @staticmethod
    def _overwritten(moments: _Moments, open_: np.ndarray) -> np.ndarray:
        """bool[n]: a task that all runs of this one precede is done, so this one does not run again."""
        rows = moments.problem.after_every
        result = np.zeros(moments.problem.tasks, bool)
        result[rows.row_of_entry()[open_[rows.index] == 1]] = True
        return result

    def line(self, price: int) -> _Line:
        """The best choice at a price in parts of a tick for a byte over the budget."""
        return self._cut(PARTS, price)

    def least_bytes(self) -> int:
        """Bytes over the budget of the choice that frees most, whatever its repeats cost."""
        return self._cut(0, 1).bytes

    def _cut(self, parts: int, price: int) -> _Line:
        from ortools.graph.python import max_flow

        self.moments.left -= 1
        uncut = self.cost == NEVER
        capacity = parts * np.where(uncut, 0, self.cost) + price * self.size
        capacity[uncut] = 2 * LARGEST
        first = uncut & (self.tail == 0)  # what follows such an arc is cut instead, for no more than this
        capacity[first] = price * self.bytes_of[self.head[first]] + 1
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.tail, self.head, capacity)
        status = flow.solve(0, 1)
        assert status == flow.OPTIMAL, status
        side = np.zeros(len(self.bytes_of), bool)
        side[flow.get_source_side_min_cut()] = True
        side[0] = True
        cut = side[self.tail] & ~side[self.head]
        over = self.constant + int(self.size[cut].sum()) - self.moments.room
        return _Line(int(self.cost[cut].sum()), over)


def _arcs(tail: np.ndarray, head: np.ndarray, cost: np.ndarray | int = 0, size: np.ndarray | int = 0) -> np.ndarray:
    """int64[4, arcs]: tail, head, ticks and bytes that cutting it costs; NEVER ticks: it is not cut."""
    zero = np.zeros(len(tail), np.int64)
    return np.stack([tail, head, zero + cost, zero + size])


def _reached(rows: Csr, task: int) -> np.ndarray:
    """bool[n]: reached from the task along the rows, itself included."""
    reached = np.zeros(len(rows), bool)
    reached[task] = True
    layer = np.array([task])
    while len(layer):
        layer = np.unique(rows.gather(layer))
        layer = layer[~reached[layer]]
        reached[layer] = True
    return reached
