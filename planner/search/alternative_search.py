"""Which alternatives hold: down from the first of every group, then the planners on the vectors worth it.

Each step takes the move that lowers the peak of the given order most per tick: one group to another
alternative, or all groups of one kind that stand at the same one. On the way are the candidates; what
fits the budget is moved back to cheaper alternatives while it still fits. Then the planners run on the
most promising vectors, and the best score of all is the answer. Reproducible: moves are compared by
integers, ties go to the smaller group and alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order

ChoiceVector = tuple[int, ...]
#: Steps down at most, moves measured a step, vectors the planners are run on.
MAX_MOVES, MEASURED_PER_MOVE, MAX_PLANNED = 400, 8, 12
#: Sets of groups that are moved to cheaper alternatives in the end.
MAX_REFINED = 8


@dataclass(frozen=True, eq=False, slots=True)
class ChoiceResult:
    """An order under a vector of choices."""

    order: Order
    planner: str
    choices: ChoiceVector
    score: Score


@dataclass(frozen=True, slots=True)
class VectorCost:
    """What the given order takes under a vector."""

    peak: int
    cost: int


#: search(plain problem, goal, monitor) -> (order, planner's name)
SearchFunction = Callable[[Problem, Goal, Monitor], tuple[Order, str]]
#: judge(problem, goal, order, choices) -> score
ScoreFunction = Callable[[Problem, Goal, Order, ChoiceVector], Score]


def search_choices(
    problem: Problem, goal: Goal, monitor: Monitor, search: SearchFunction, judge: ScoreFunction
) -> ChoiceResult:
    """The best order over all alternatives that the time allows, at least what the first of each gives."""
    return _ChoiceSearch(problem, goal, monitor, search, judge).best()


def goal_for_choices(problem: Problem, goal: Goal, vector: ChoiceVector) -> Goal:
    """The goal with its overhead counted from what the first alternatives cost."""
    if goal.max_overhead is None:
        return goal
    limit = problem.cost.sum() * (1 + goal.max_overhead)
    return replace(goal, max_overhead=float(limit / max(1, resolve_choices(problem, vector).cost.sum()) - 1))


def with_alternative(vector: ChoiceVector, groups: Collection[int], alternative: int) -> ChoiceVector:
    """The vector with these groups at an alternative."""
    return tuple(alternative if group in groups else choice for group, choice in enumerate(vector))


class _ChoiceSearch:
    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, search: SearchFunction, judge: ScoreFunction):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.search, self.judge = search, judge
        self.table, self.count = problem.choices, problem.choices.counts()
        self.first = np.cumsum(self.count) - self.count
        self.order = base_order(problem, goal.strict_phases)
        self.begin, self.end = self.spans()
        self.seen: dict[ChoiceVector, VectorCost] = {}

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """int64[m] each: the steps of the given order that write a buffer and that read it last under any choice."""
        place, table, reads = np.zeros(self.problem.tasks, np.int64), self.table, self.problem.reads
        place[self.order] = np.arange(len(self.order))
        begin, end = place[self.problem.producer()], np.full(self.problem.buffers, -1)
        np.maximum.at(end, reads.index, place[reads.row_of_entry()])
        np.maximum.at(end, table.reads.index, place[table.tasks.index[table.reads.row_of_entry()]])
        return begin, end

    def best(self) -> ChoiceResult:
        """The planners' best over the candidates."""
        found: ChoiceResult | None = None
        for vector in self.candidates():
            found = self.better(found, vector)
            if self.monitor.should_stop():
                break
        assert found is not None  # the first of each group is always a candidate
        return self.refined(found)

    def better(self, found: ChoiceResult | None, vector: ChoiceVector) -> ChoiceResult:
        """What was found, or what the planners make of a vector where that is better."""
        here = self.planned(vector)
        if found is not None and found.score <= here.score:
            return found
        self.monitor.tell(here.order, here.score)
        return here

    def refined(self, found: ChoiceResult) -> ChoiceResult:
        """The best with groups at the cheapest alternatives with which the planners still do better, by bisection."""
        for groups in self.together(found.choices)[:MAX_REFINED]:
            _, more = self.estimates(found.choices)
            ticks = more[self.first[groups[0]] : self.first[groups[0]] + self.count[groups[0]]]
            less = np.flatnonzero(ticks < ticks[found.choices[groups[0]]])
            cheaper = less[np.argsort(ticks[less], kind="stable")].tolist()
            low, high = 0, len(cheaper)
            while low < high and not self.monitor.should_stop():
                middle, before = (low + high) // 2, found
                found = self.better(found, with_alternative(found.choices, groups, cheaper[middle]))
                low, high = (low, middle) if found is not before else (middle + 1, high)
        return found

    def planned(self, vector: ChoiceVector) -> ChoiceResult:
        """What the planners make of one vector."""
        plain, goal = resolve_choices(self.problem, vector), goal_for_choices(self.problem, self.goal, vector)
        monitor = self.monitor.beside(lambda order: self.judge(self.problem, self.goal, order, vector))
        order, planner = self.search(plain, goal, monitor)
        self.monitor.spent(monitor)
        return ChoiceResult(order, planner, vector, self.judge(self.problem, self.goal, order, vector))

    def candidates(self) -> Iterator[ChoiceVector]:
        """Vectors worth the planners' time, the most promising first, each once."""
        start: ChoiceVector = (0,) * len(self.table)
        if self.goal.budget_bytes is not None and self.reaches(self.measured(start)):
            yield self.back(start)  # nothing has to be saved
            return
        path = [start, *self.down(start)]
        fits = [self.reaches(self.measured(vector)) for vector in path]
        if self.goal.budget_bytes is None:  # lowest peak within a time: the last that takes no longer
            at = max(i for i, fine in enumerate(fits) if fine) if any(fits) else 0
        else:
            at = fits.index(True) if any(fits) else len(path) - 1
        turned = self.back(path[at]) if fits[at] and self.goal.budget_bytes is not None else path[at]
        near = [turned, start, *path[at : max(0, at - 3) : -1], path[at // 2], *path[at + 1 : at + 2], path[-1]]
        yield from list(dict.fromkeys([*near, *self.front()]))[:MAX_PLANNED]

    def front(self) -> list[ChoiceVector]:
        """Of all vectors measured those that none beats in both peak and cost, some of them, spread evenly."""
        rows = sorted((m.peak, m.cost, vector) for vector, m in self.seen.items())
        least = np.minimum.accumulate([cost for _, cost, _ in rows]).tolist()
        front = [row for i, row in enumerate(rows) if not i or row[1] < least[i - 1]]
        return [vector for _, _, vector in front[:: max(1, len(front) // MAX_PLANNED)]]

    def reaches(self, measured: VectorCost) -> bool:
        """Whether the given order is already within what is asked."""
        if self.goal.budget_bytes is not None:
            return measured.peak <= self.goal.budget_bytes
        return self.affords(measured)

    def affords(self, measured: VectorCost) -> bool:
        """Whether that much time may be taken."""
        if self.goal.max_overhead is None:
            return True
        return measured.cost <= int(self.problem.cost.sum() * (1 + self.goal.max_overhead))

    def measured(self, vector: ChoiceVector) -> VectorCost:
        if vector not in self.seen:
            plain = resolve_choices(self.problem, vector)
            self.seen[vector] = VectorCost(liveness.peak(plain, self.order), liveness.cost(plain, self.order))
        return self.seen[vector]

    def down(self, vector: ChoiceVector) -> Iterator[ChoiceVector]:
        """Vectors of falling peak, each by the move from the last that frees most per tick."""
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
        """Ticks for each byte freed; what costs nothing goes first, by bytes."""
        more, freed = there.cost - now.cost, now.peak - there.peak
        return (more / freed if more > 0 else -1.0, -freed)

    def moves(self, vector: ChoiceVector) -> list[ChoiceVector]:
        """The few moves that free most at the peak step per tick, as far as sizes and workspaces tell."""
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
        """Sets of groups that move as one: each alone, and those of a kind that stand at the same alternative."""
        alike: dict[tuple[int, int], list[int]] = {}
        for group, kind in enumerate(self.table.kind.tolist()):
            alike.setdefault((kind, vector[group]), []).append(group)
        return [row for row in alike.values() if len(row) > 1] + [[group] for group in range(len(vector))]

    def estimates(self, vector: ChoiceVector) -> tuple[np.ndarray, np.ndarray]:
        """int64[a] each: bytes an alternative frees at the peak step against the first of its group, and its ticks."""
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
        """The vector with groups moved to cheaper alternatives while it still fits, the most ticks per byte first."""
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
        """The vector with one group at a cheaper alternative, for one group of each kind and place it stands at."""
        _, more = self.estimates(vector)
        alike = {(kind, vector[group]): group for group, kind in enumerate(self.table.kind.tolist())}
        result: list[ChoiceVector] = []
        for (_, now), group in alike.items():
            ticks = more[self.first[group] : self.first[group] + self.count[group]]
            less = np.flatnonzero(ticks < ticks[now]).tolist()
            result.extend((*vector[:group], alternative, *vector[group + 1 :]) for alternative in less)
        return result
