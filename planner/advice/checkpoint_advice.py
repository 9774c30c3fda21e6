"""What a user's checkpoints are worth: the best set of the same size, and each one dropped or added.

given  {b, e}   a ── b ── c ── d ── e ── f        exchange: {c, e}, {a, e}, ... the first better one is taken,
                                                  until no exchange of one for another is better

Every set is judged by the one evaluator as the order that keeps it and recomputes the rest just in time.
Few sets are all tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.formulation.metrics import overhead
from planner.problem import TO_LAST_READ, Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from planner.problem.recompute import backward_start, base_order, can_recompute, order_keeping

if TYPE_CHECKING:
    from planner.formulation.formulation import Formulation

MAX_ADDED = 10  # additions told
MAX_EXHAUSTIVE_SETS = 1000  # sets of one size
MAX_EXCHANGES = 1_000_000  # exchanges looked at before one that is better


@dataclass(frozen=True, slots=True)
class CheckpointComparison:
    """Sets of buffers with their scores."""

    given: tuple[int, ...]
    score: Score
    best: tuple[int, ...]  # as many as given
    best_score: Score
    dropped: list[tuple[int, Score]]  # without this one, in the given order
    added: list[tuple[int, Score]]  # with this one too, the best first
    sets: int  # judged
    complete: bool  # nothing dropped, added or exchanged for another was left untried
    all_tried: bool  # `best` is the best of all sets of its size


def compare_checkpoints(problem: Problem, goal: Goal, monitor: Monitor, given: np.ndarray) -> CheckpointComparison:
    """Advice about the buffers `given`; one judgement is O(n + reads), and the monitor ends them."""
    asked = tuple(dict.fromkeys(np.asarray(given).tolist()))
    judge = _SetEvaluator(problem, goal, monitor)
    score = judge.of(asked)
    dropped = [(b, judge.of(tuple(c for c in asked if c != b))) for b in asked if not monitor.should_stop()]
    others = list(dict.fromkeys(candidates(problem, goal)).keys() - set(asked))
    others.sort()
    added = [(b, judge.of((*asked, b))) for b in others if not monitor.should_stop()]
    few = _sets(len(asked) + len(others), len(asked)) <= MAX_EXHAUSTIVE_SETS
    search = _all_of_one_size if few else _exchanged
    best, best_score, complete = search(judge, monitor, asked, score, others)
    complete &= len(added) == len(others) and len(dropped) == len(asked)
    added.sort(key=lambda pair: (pair[1], pair[0]))
    return CheckpointComparison(
        asked, score, best, best_score, dropped, added[:MAX_ADDED], len(judge.scores), complete, few and complete
    )


def checkpoint_section(question: Formulation, advice: CheckpointComparison) -> dict[str, Any]:
    """The advice as the section of a report, in names and counted bytes."""

    def figures(score: Score) -> dict[str, Any]:
        return {
            "peak_bytes": question.count.counted(score.peak_bytes),
            "overhead": overhead(score.cost, question.baseline_cost),
        }

    def worth(one: tuple[int, Score]) -> dict[str, Any]:
        b, score = one
        more = score.peak_bytes - advice.score.peak_bytes
        return {"value": name(b), **figures(score), "peak_bytes_more": more}

    name = question.lowered.name_of_buffer
    return {
        "given": {"checkpoints": [name(b) for b in advice.given], **figures(advice.score)},
        "best": {"checkpoints": [name(b) for b in advice.best], **figures(advice.best_score)},
        "dropping": [worth(one) for one in advice.dropped],
        "adding": [worth(one) for one in advice.added],
        "sets": advice.sets,
        "complete": advice.complete,
        "all_tried": advice.all_tried,
    }


def candidates(problem: Problem, goal: Goal) -> list[int]:
    """Buffers that keeping or dropping makes a difference for: made on the way out, and made again when asked."""
    order = base_order(problem, goal.strict_phases)
    out = order[: backward_start(problem, order)]
    again = can_recompute(problem)
    written = problem.writes.gather(out[again[out]])
    free = (problem.hold[written] == TO_LAST_READ) & (problem.size[written] > 0)
    return list(dict.fromkeys(written[free].tolist()))


@dataclass(slots=True)
class _SetEvaluator:
    """Scores of sets, each judged once."""

    problem: Problem
    goal: Goal
    monitor: Monitor
    scores: dict[frozenset[int], Score] = field(default_factory=dict)

    def of(self, keep: tuple[int, ...]) -> Score:
        key = frozenset(keep)
        if key not in self.scores:
            order = order_keeping(self.problem, np.array(sorted(key), np.int64), self.goal.strict_phases)
            self.scores[key] = self.monitor.judge(order)
        return self.scores[key]


def _sets(buffers: int, chosen: int) -> int:
    """How many sets of so many buffers there are; past what is tried, only that they are more."""
    if not 0 < chosen < buffers:
        return 1
    return math.comb(buffers, chosen) if buffers <= MAX_EXHAUSTIVE_SETS else buffers


def _exchanged(
    judge: _SetEvaluator, monitor: Monitor, start: tuple[int, ...], score: Score, others: list[int]
) -> tuple[tuple[int, ...], Score, bool]:
    """(best set met, its score, whether no exchange of one improves it), from the given set and even ones."""
    everything = sorted((*start, *others))
    best, complete = start, True
    for begin in dict.fromkeys((start, *_even(everything, len(start), judge.problem.size))):
        tried, found, finished = _descent(judge, monitor, begin, everything)
        complete &= finished
        if found < score:
            best, score = tried, found
    return best, score, complete


def _even(everything: list[int], count: int, size: np.ndarray) -> list[tuple[int, ...]]:
    """Sets of `count` at even distances, by number and by bytes."""
    by_number = np.arange(1, len(everything) + 1, dtype=np.float64)
    by_bytes = np.cumsum(size[everything]).astype(np.float64)
    sets = []
    for position in (by_number, by_bytes):
        marks = position[-1] * np.arange(1, count + 1) / (count + 1)
        places = np.unique(np.searchsorted(position, marks))
        if len(places) == count:
            sets.append(tuple(everything[place] for place in places.tolist()))
    return sets


def _descent(
    judge: _SetEvaluator, monitor: Monitor, start: tuple[int, ...], everything: list[int]
) -> tuple[tuple[int, ...], Score, bool]:
    """(set reached by exchanges that are better, its score, whether none is left)."""
    best, score, improved = list(start), judge.of(start), True
    while improved:
        improved = False
        for place, new in _exchanges(best, everything):
            if monitor.should_stop():
                return tuple(best), score, False
            tried = [*best[:place], new, *best[place + 1 :]]
            found = judge.of(tuple(tried))
            if found < score:
                best, score, improved = tried, found, True
                break
    reach = MAX_EXCHANGES // max(1, len(start))
    return tuple(best), score, reach >= len(everything)


def _all_of_one_size(
    judge: _SetEvaluator, monitor: Monitor, start: tuple[int, ...], score: Score, others: list[int]
) -> tuple[tuple[int, ...], Score, bool]:
    """(best of all sets of that size, its score, whether all were tried)."""
    best = start
    for tried in itertools.combinations(sorted((*start, *others)), len(start)):
        if monitor.should_stop():
            return best, score, False
        found = judge.of(tried)
        if found < score:
            best, score = tried, found
    return best, score, True


def _exchanges(inside: list[int], everything: list[int]) -> Iterator[tuple[int, int]]:
    """(place in the set, buffer to put there), buffers made at nearly the same time first; `LOOKED` at most."""
    rank, there, count = {b: i for i, b in enumerate(everything)}, set(inside), len(everything)
    for distance in range(1, min(count, 1 + MAX_EXCHANGES // max(1, len(inside)))):
        for place, b in enumerate(inside):
            for at in (rank[b] - distance, rank[b] + distance):
                if 0 <= at < count and everything[at] not in there:
                    yield place, everything[at]
