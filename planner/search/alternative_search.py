"""Choice of alternatives: a steepest descent over choice vectors, then the planners on the most promising vectors.

The descent starts at the first alternative of every group. Each move lowers the peak of the given order most per
tick; it changes one group, or all groups of one kind at the same alternative. The vectors on the path are the
candidates; a vector within the budget is moved back to cheaper alternatives while it still fits. Then the planners run
on the most promising vectors, and the best score wins. Reproducible: moves are compared by integers, ties go to the
smaller group and alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order

ChoiceVector = tuple[int, ...]
#: Limits: moves of the descent, moves measured per step of it, and vectors that the planners run on.
MAX_MOVES, MEASURED_PER_MOVE, MAX_PLANNED = 400, 8, 12
#: Sets of groups moved to cheaper alternatives in the final refinement.
MAX_REFINED = 8


class ScoredCandidate(NamedTuple):
    """An order under a choice vector, with its score."""

    candidate: Candidate
    score: Score


class VectorCost(NamedTuple):
    """Peak and cost of the given order under a choice vector."""

    peak: int
    cost: int


#: search(plain problem, goal, monitor) -> order and planner
SearchFunction = Callable[[Problem, Goal, Monitor], Candidate]
#: judge(problem, goal, order, choices) -> score
ScoreFunction = Callable[[Problem, Goal, Order, ChoiceVector], Score]


def search_choices(
    problem: Problem, goal: Goal, monitor: Monitor, search: SearchFunction, judge: ScoreFunction
) -> Candidate:
    """The best order found over all alternatives, no worse than that of the first alternatives."""
    return _ChoiceSearch(problem, goal, monitor, search, judge).best().candidate


def goal_for_choices(problem: Problem, goal: Goal, vector: ChoiceVector) -> Goal:
    """The goal with its overhead relative to the cost under the first alternatives."""
    if goal.max_overhead is None:
        return goal
    limit = problem.cost.sum() * (1 + goal.max_overhead)
    return replace(goal, max_overhead=float(limit / max(1, resolve_choices(problem, vector).cost.sum()) - 1))


def with_alternative(vector: ChoiceVector, groups: Collection[int], alternative: int) -> ChoiceVector:
    """The vector with the groups at an alternative."""
    return tuple(alternative if group in groups else choice for group, choice in enumerate(vector))


class _ChoiceSearch:
    """One search; caches the measured vectors in `seen`."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, search: SearchFunction, judge: ScoreFunction):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.search, self.judge = search, judge
        self.table, self.count = problem.choices, problem.choices.counts()
        self.first = np.cumsum(self.count) - self.count
        self.order = base_order(problem, goal.strict_phases)
        self.begin, self.end = self.spans()
        self.seen: dict[ChoiceVector, VectorCost] = {}

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """(first, last) step of each buffer in the given order, over the reads of all alternatives; int64[m] each."""
        place, table, reads = np.zeros(self.problem.tasks, np.int64), self.table, self.problem.reads
        place[self.order] = np.arange(len(self.order))
        begin, end = place[self.problem.producer()], np.full(self.problem.buffers, -1)
        np.maximum.at(end, reads.index, place[reads.row_of_entry()])
        np.maximum.at(end, table.reads.index, place[table.tasks.index[table.reads.row_of_entry()]])
        return begin, end

    def best(self) -> ScoredCandidate:
        """The planners' best result over the candidates, refined."""
        found: ScoredCandidate | None = None
        for vector in self.candidates():
            found = self.better(found, vector)
            if self.monitor.should_stop():
                break
        assert found is not None  # the first of each group is always a candidate
        return self.refined(found)

    def better(self, found: ScoredCandidate | None, vector: ChoiceVector) -> ScoredCandidate:
        """The better of `found` and the planners' result under `vector`, which is reported to the monitor if better."""
        here = self.planned(vector)
        if found is not None and found.score <= here.score:
            return found
        self.monitor.record_best(here.candidate.order, here.score)
        return here

    def refined(self, found: ScoredCandidate) -> ScoredCandidate:
        """The result with groups moved to their cheapest alternatives that still improve the score, by bisection."""
        for groups in self.together(found.candidate.choices)[:MAX_REFINED]:
            _, more = self.estimates(found.candidate.choices)
            ticks = more[self.first[groups[0]] : self.first[groups[0]] + self.count[groups[0]]]
            less = np.flatnonzero(ticks < ticks[found.candidate.choices[groups[0]]])
            cheaper = less[np.argsort(ticks[less], kind="stable")].tolist()
            low, high = 0, len(cheaper)
            while low < high and not self.monitor.should_stop():
                middle, before = (low + high) // 2, found
                found = self.better(found, with_alternative(found.candidate.choices, groups, cheaper[middle]))
                low, high = (low, middle) if found is not before else (middle + 1, high)
        return found

    def planned(self, vector: ChoiceVector) -> ScoredCandidate:
        """The planners' result under one vector."""
        plain, goal = resolve_choices(self.problem, vector), goal_for_choices(self.problem, self.goal, vector)
        monitor = self.monitor.child(lambda order: self.judge(self.problem, self.goal, order, vector))
        found = replace(self.search(plain, goal, monitor), choices=vector)
        self.monitor.absorb(monitor)
        return ScoredCandidate(found, self.judge(self.problem, self.goal, found.order, vector))

    def candidates(self) -> Iterator[ChoiceVector]:
        """Choice vectors to plan, without duplicates, most promising first."""
        start: ChoiceVector = (0,) * len(self.table)
        if self.goal.budget_bytes is not None and self.reaches(self.measured(start)):
            yield self.back(start)  # the budget is met without a move
            return
        path = [start, *self.down(start)]
        fits = [self.reaches(self.measured(vector)) for vector in path]
        if self.goal.budget_bytes is None:  # lowest peak within a time limit: the last vector within it
            at = max(i for i, fine in enumerate(fits) if fine) if any(fits) else 0
        else:
            at = fits.index(True) if any(fits) else len(path) - 1
        cheapened = self.back(path[at]) if fits[at] and self.goal.budget_bytes is not None else path[at]
        near = [cheapened, start, *path[at : max(0, at - 3) : -1], path[at // 2], *path[at + 1 : at + 2], path[-1]]
        yield from list(dict.fromkeys([*near, *self.front()]))[:MAX_PLANNED]

    def front(self) -> list[ChoiceVector]:
        """Evenly spread vectors of the Pareto front of peak and cost, over all measured vectors."""
        rows = sorted((m.peak, m.cost, vector) for vector, m in self.seen.items())
        least = np.minimum.accumulate([cost for _, cost, _ in rows]).tolist()
        front = [row for i, row in enumerate(rows) if not i or row[1] < least[i - 1]]
        return [vector for _, _, vector in front[:: max(1, len(front) // MAX_PLANNED)]]

    def reaches(self, measured: VectorCost) -> bool:
        """Whether the given order meets the goal."""
        if self.goal.budget_bytes is not None:
            return measured.peak <= self.goal.budget_bytes
        return self.affords(measured)

    def affords(self, measured: VectorCost) -> bool:
        """Whether the cost is within `max_overhead`."""
        if self.goal.max_overhead is None:
            return True
        return measured.cost <= int(self.problem.cost.sum() * (1 + self.goal.max_overhead))

    def measured(self, vector: ChoiceVector) -> VectorCost:
        """Peak and cost of the given order under the vector, cached."""
        if vector not in self.seen:
            plain = resolve_choices(self.problem, vector)
            self.seen[vector] = VectorCost(liveness.peak(plain, self.order), liveness.cost(plain, self.order))
        return self.seen[vector]

    def down(self, vector: ChoiceVector) -> Iterator[ChoiceVector]:
        """Vectors of falling peak; each move frees the most bytes per tick."""
        lowest = self.goal.budget_bytes
        for _ in range(MAX_MOVES):
            now = self.measured(vector)
            if lowest is not None and now.peak <= lowest:
                return
            moves = [(self.measured(there), there) for there in self.moves(vector)]
            lower = [(there, to) for there, to in moves if there.peak < now.peak and self.affords(there)]
            if not lower or self.monitor.should_stop():
                return
            _, vector = min(lower, key=lambda move: (self.price(now, move[0]), move[1]))
            yield vector

    @staticmethod
    def price(now: VectorCost, there: VectorCost) -> tuple[float, int]:
        """Sort key of a move: ticks per byte freed; moves without cost first, by bytes."""
        more, freed = there.cost - now.cost, now.peak - there.peak
        return (more / freed if more > 0 else -1.0, -freed)

    def moves(self, vector: ChoiceVector) -> list[ChoiceVector]:
        """The few best moves by estimated bytes freed at the peak step per tick."""
        freed, more = self.estimates(vector)
        groups = self.table.group
        current = self.first + np.array(vector, np.int64)
        freed, more = freed - freed[current][groups], more - more[current][groups]
        rows: list[tuple[float, int, list[int]]] = []
        for group_set in self.together(vector):
            for alternative in range(int(self.count[group_set[0]])):
                at = self.first[group_set] + alternative
                gain, price = int(freed[at].sum()), int(more[at].sum())
                if gain > 0:
                    rows.append((-gain / max(price, 1), alternative, group_set))
        rows.sort()
        return [with_alternative(vector, groups, alternative) for _, alternative, groups in rows[:MEASURED_PER_MOVE]]

    def together(self, vector: ChoiceVector) -> list[list[int]]:
        """Sets of groups to move together: single groups, and groups of a kind at the same alternative."""
        alike: dict[tuple[int, int], list[int]] = {}
        for group, kind in enumerate(self.table.kind.tolist()):
            alike.setdefault((kind, vector[group]), []).append(group)
        return [row for row in alike.values() if len(row) > 1] + [[group] for group in range(len(vector))]

    def estimates(self, vector: ChoiceVector) -> tuple[np.ndarray, np.ndarray]:
        """int64[a] each: bytes freed at the peak step and extra ticks, against the first alternative of the group."""
        table, plain = self.table, resolve_choices(self.problem, vector)
        profile = liveness.profile(plain, self.order, liveness.lifetimes(plain, self.order))
        step = int(np.argmax(profile)) if len(profile) else 0
        freed, more = np.zeros(len(table.group), np.int64), np.zeros(len(table.group), np.int64)
        alternative, buffer, task = table.buffers.row_of_entry(), table.buffers.index, table.tasks.index
        live = (self.begin[buffer] <= step) & (step <= self.end[buffer])
        np.add.at(freed, alternative, np.where(live, self.problem.size[buffer] - table.size, 0))
        at_peak = np.isin(task, self.order[step : step + 1])
        np.add.at(
            freed, table.tasks.row_of_entry(), np.where(at_peak, self.problem.workspace[task] - table.workspace, 0)
        )
        np.add.at(more, table.tasks.row_of_entry(), table.cost - self.problem.cost[task])
        return freed, more

    def back(self, vector: ChoiceVector) -> ChoiceVector:
        """The vector with groups moved to cheaper alternatives while it still fits, most ticks saved per byte first."""
        while not self.monitor.should_stop():
            now = self.measured(vector)
            rows = []
            for to in self.cheaper(vector):
                there = self.measured(to)
                if there.cost < now.cost and self.reaches(there):
                    rows.append(((there.cost - now.cost) / max(1, there.peak - now.peak), to))
            if not rows:
                break
            _, vector = min(rows)
        return vector

    def cheaper(self, vector: ChoiceVector) -> list[ChoiceVector]:
        """Vectors with one group at a cheaper alternative, for one group of each kind and current alternative."""
        _, more = self.estimates(vector)
        alike = {(kind, vector[group]): group for group, kind in enumerate(self.table.kind.tolist())}
        result: list[ChoiceVector] = []
        for (_, now), group in alike.items():
            ticks = more[self.first[group] : self.first[group] + self.count[group]]
            less = np.flatnonzero(ticks < ticks[now]).tolist()
            result.extend((*vector[:group], alternative, *vector[group + 1 :]) for alternative in less)
        return result
