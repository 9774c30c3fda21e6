"""Checkpoint advice: worth of each checkpoint, worth of additional ones, and the best set of the same size.

given  {b, e}   a ── b ── c ── d ── e ── f        exchange: {c, e}, {a, e}, ... take the first better one,
                                                  until no exchange of one checkpoint is better

The score of a set is that of the order that keeps it and recomputes the rest just in time. Up to MAX_EXHAUSTIVE_SETS
sets are tried exhaustively.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.problem import TO_LAST_READ, Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from planner.problem.recompute import backward_start, base_order, can_recompute, order_keeping

if TYPE_CHECKING:
    from planner.formulation.formulation import Formulation

MAX_ADDED = 10  # additions reported
MAX_EXHAUSTIVE_SETS = 1000  # sets of one size tried exhaustively
MAX_EXCHANGES = 1_000_000  # exchanges tried before a better one


@dataclass(frozen=True, slots=True)
class CheckpointComparison:
    """Sets of checkpoints (buffers) with their scores."""

    given: tuple[int, ...]
    score: Score
    best: tuple[int, ...]  # as many as given
    best_score: Score
    dropped: list[tuple[int, Score]]  # given set without this buffer, in the given order
    added: list[tuple[int, Score]]  # given set with this buffer, best first
    sets: int  # sets evaluated
    complete: bool  # every drop, addition and exchange was tried
    all_tried: bool  # `best` is the best of all sets of its size


def compare_checkpoints(problem: Problem, goal: Goal, monitor: Monitor, given: np.ndarray) -> CheckpointComparison:
    """Compare the buffers `given` with other sets until the monitor stops. One evaluation is O(n + reads)."""
    checkpoints = tuple(dict.fromkeys(np.asarray(given).tolist()))
    judge = _SetEvaluator(problem, goal, monitor)
    score = judge.of(checkpoints)
    dropped = [(b, judge.of(tuple(c for c in checkpoints if c != b))) for b in checkpoints if not monitor.should_stop()]
    others = list(dict.fromkeys(candidates(problem, goal)).keys() - set(checkpoints))
    others.sort()
    added = [(b, judge.of((*checkpoints, b))) for b in others if not monitor.should_stop()]
    few = _set_count(len(checkpoints) + len(others), len(checkpoints)) <= MAX_EXHAUSTIVE_SETS
    search = _all_of_one_size if few else _by_exchanges
    best, best_score, complete = search(judge, monitor, checkpoints, score, others)
    complete &= len(added) == len(others) and len(dropped) == len(checkpoints)
    added.sort(key=lambda pair: (pair[1], pair[0]))
    return CheckpointComparison(
        checkpoints, score, best, best_score, dropped, added[:MAX_ADDED], len(judge.scores), complete, few and complete
    )


def checkpoint_section(formulation: Formulation, advice: CheckpointComparison) -> dict[str, Any]:
    """Section `checkpoint_advice` of a report, with names and counted bytes."""

    def figures(score: Score) -> dict[str, Any]:
        return {"peak_bytes": formulation.count.counted(score.peak_bytes), "overhead": formulation.overhead(score.cost)}

    def worth(one: tuple[int, Score]) -> dict[str, Any]:
        b, score = one
        more = score.peak_bytes - advice.score.peak_bytes
        return {"value": name(b), **figures(score), "peak_bytes_more": more}

    name = formulation.lowered.name_of_buffer
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
    """Buffers that may be checkpoints: written in the forward pass by tasks that can be recomputed."""
    order = base_order(problem, goal.strict_phases)
    forward = order[: backward_start(problem, order)]
    recomputable = can_recompute(problem)
    written = problem.writes.gather(forward[recomputable[forward]])
    free = (problem.hold[written] == TO_LAST_READ) & (problem.size[written] > 0)
    return list(dict.fromkeys(written[free].tolist()))


@dataclass(slots=True)
class _SetEvaluator:
    """Evaluates sets, each once."""

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


def _set_count(buffers: int, chosen: int) -> int:
    """Number of sets of `chosen` among `buffers`; only a number above MAX_EXHAUSTIVE_SETS if there are many buffers."""
    if not 0 < chosen < buffers:
        return 1
    return math.comb(buffers, chosen) if buffers <= MAX_EXHAUSTIVE_SETS else buffers


def _by_exchanges(
    judge: _SetEvaluator, monitor: Monitor, start: tuple[int, ...], score: Score, others: list[int]
) -> tuple[tuple[int, ...], Score, bool]:
    """(best set, its score, whether no exchange improves it); starts from the given set and evenly spaced sets."""
    everything = sorted((*start, *others))
    best, complete = start, True
    for begin in dict.fromkeys((start, *_evenly_spaced(everything, len(start), judge.problem.size))):
        tried, found, finished = _descent(judge, monitor, begin, everything)
        complete &= finished
        if found < score:
            best, score = tried, found
    return best, score, complete


def _evenly_spaced(everything: list[int], count: int, size: np.ndarray) -> list[tuple[int, ...]]:
    """Sets of `count` buffers, evenly spaced by number and by bytes."""
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
    """(set reached by improving exchanges, its score, whether every exchange was tried)."""
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
    """(best set of that size, its score, whether all sets were tried)."""
    best = start
    for tried in itertools.combinations(sorted((*start, *others)), len(start)):
        if monitor.should_stop():
            return best, score, False
        found = judge.of(tried)
        if found < score:
            best, score = tried, found
    return best, score, True


def _exchanges(inside: list[int], everything: list[int]) -> Iterator[tuple[int, int]]:
    """(index in the set, replacement), replacements close in program order first; about MAX_EXCHANGES at most."""
    rank, members, count = {b: i for i, b in enumerate(everything)}, set(inside), len(everything)
    for distance in range(1, min(count, 1 + MAX_EXCHANGES // max(1, len(inside)))):
        for place, b in enumerate(inside):
            for at in (rank[b] - distance, rank[b] + distance):
                if 0 <= at < count and everything[at] not in members:
                    yield place, everything[at]
