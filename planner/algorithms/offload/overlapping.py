"""List scheduling of an order with collectives beside compute: collectives earlier, and compute while they run.

    in line    a ── b ── gather c ────── d ── e ── f                 d reads c
    beside     a ── b ─────────── e ── f ── d                        e and f run while c is gathered
                         gather c ──────

Of the runs whose inputs are there, the one that can start first starts first; of several, the one with the longest
chain of runs behind it, which leads to the next collective. A collective may start up to `hoist` steps of the order
before the first run that has not started, compute up to `ahead` steps, if what it adds fits beside the largest bytes of
the order from there to its place. Bytes that are held until a run ends are not counted, so that the best of some limits
is for `schedule.score` to say. Every read keeps the run that it binds to.

Source: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969: list scheduling.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise

import numpy as np

from planner.problem import COMMUNICATION, liveness
from planner.problem.columns import DEVICE, RESIDENT, Problem
from planner.problem.plan import Goal, Order
from planner.problem.recompute import first_run_step

#: Limits to try: `hoist` and `ahead` in steps, and bytes as a share of the budget.
WINDOWS = tuple(
    (hoist, ahead, share)
    for share in (1.0, 0.97, 0.9, math.inf)
    for hoist, ahead in ((64, 64), (16, 16), (1024, 256), (4, 0), (64, 0), (1024, 0))
)
#: Runs that are tried at a step, on each engine; limits the time where none of many fits.
MAX_TRIED = 32
#: Steps between looks whether to stop.
LOOK_EVERY = 256


class ListScheduler:
    """List schedules of one order; an order without collectives, or with one engine, stays as it is."""

    def __init__(self, problem: Problem, goal: Goal, order: Order):
        """`order` is legal. O(n + reads)."""
        self.order, self.bytes = order, _Bytes(problem, order)
        self.cost = problem.cost[order].tolist()
        self.is_beside = (problem.engine[order] == COMMUNICATION).tolist()
        first = first_run_step(problem, order)
        self.written: list[list[int]] = []  # step -> steps that write what it reads
        self.after: list[list[int]] = [[] for _ in order]  # step -> steps that start after it
        self.before = [0] * len(order)  # number of steps that start before it
        for a, b in set(self._precedences(problem, goal, first)):
            self.after[a].append(b)
            self.before[b] += 1
        self.chain = list(self.cost)  # ticks of the longest chain of runs that begins with the step
        for step in range(len(order) - 1, -1, -1):
            for writer in self.written[step]:
                self.chain[writer] = max(self.chain[writer], self.cost[writer] + self.chain[step])
        # Under strict phases: the phase of each step, and for first runs the phase that waits for them.
        self.phase = problem.phase[order].tolist() if goal.strict_phases else [0] * len(order)
        self.is_first = (first[order] == np.arange(len(order))).tolist()

    def _precedences(self, problem: Problem, goal: Goal, first: np.ndarray) -> Iterator[tuple[int, int]]:
        """Pairs of steps of which the first starts before the second."""
        order, steps = self.order, len(self.order)
        runs: list[list[int]] = [[] for _ in range(problem.tasks)]
        for step, task in enumerate(order.tolist()):
            runs[task].append(step)
        for row in runs:
            yield from pairwise(row)
        lives = liveness.bound_instances(problem, order)[0]
        next_run = {a: b for row in runs for a, b in pairwise(row)}
        for step in range(steps):
            writers = {int(lives.writer_step[k]) for k in lives.read_instance[step]} - {-1}
            self.written.append(sorted(writers))
            for writer in writers:
                yield writer, step
                if next_run.get(writer, 0) > step:
                    yield step, next_run[writer]
        for relation, last in ((problem.after_every, True), (problem.after_first, False)):
            for a, b in zip(relation.row_of_entry().tolist(), relation.index.tolist(), strict=True):
                if runs[a] and runs[b]:
                    yield runs[a][-1 if last else 0], runs[b][0]
        producer = problem.producer().tolist()
        shapes = problem.shape_reads
        for task, buffer in zip(shapes.row_of_entry().tolist(), shapes.index.tolist(), strict=True):
            if runs[task] and producer[buffer] >= 0 and problem.hold[buffer] != RESIDENT and producer[buffer] != task:
                yield runs[producer[buffer]][0], runs[task][0]
        yield from self._users_in_order(problem)
        if goal.order_is_given:
            yield from pairwise(np.flatnonzero(first[order] == np.arange(steps)).tolist())

    def _users_in_order(self, problem: Problem) -> Iterator[tuple[int, int]]:
        """The users of a buffer with several writers keep their order."""
        shared = problem.has_several_writers()
        if not shared.any():
            return
        last: dict[int, int] = {}
        for step, task in enumerate(self.order.tolist()):
            for buffer in {*problem.reads[task].tolist(), *problem.writes[task].tolist()}:
                if shared[buffer]:
                    if buffer in last:
                        yield last[buffer], step
                    last[buffer] = step

    def run(
        self, hoist: int, ahead: int, most_bytes: float, should_stop: Callable[[], bool] = lambda: False
    ) -> Order | None:
        """The order under limits in steps, and in bytes for runs that start earlier; None once `should_stop`.

        O(n · min(ahead, MAX_TRIED)) and the maxima of as many ranges of steps.
        """
        live = self.bytes.begin()
        steps = len(self.order)
        before, ends, is_done = list(self.before), [0] * steps, [False] * (steps + 1)
        ready: tuple[list[int], list[int]] = ([], [])  # of compute, and of collectives; ascending
        waiting: list[list[int]] = [[], [], []]  # for the end of earlier phases
        left = [0, 0, 0]  # first runs that have not started, by phase
        for step in range(steps):
            left[self.phase[step]] += self.is_first[step]

        def add(step: int) -> None:
            phase = self.phase[step]
            if any(left[:phase]):
                waiting[phase].append(step)
            else:
                insort(ready[self.is_beside[step]], step)

        for step in range(steps):
            if not before[step]:
                add(step)
        free, now, frontier, result = [0, 0], 0, 0, list[int]()
        while len(result) < steps:
            if len(result) % LOOK_EVERY == 0 and should_stop():
                return None
            while is_done[frontier]:
                frontier += 1
            best: tuple[int, bool, int, int] | None = None
            for engine, limit in ((1, hoist), (0, ahead)):
                for step in islice(ready[engine], MAX_TRIED):
                    if step > frontier + limit:
                        break
                    if step > frontier and not live.fits(frontier, step, most_bytes):
                        continue
                    start = max(now, free[engine], *(ends[writer] for writer in self.written[step]), 0)
                    rank = start, not engine, -self.chain[step], step
                    best = rank if best is None else min(best, rank)
                    if engine:
                        break
            assert best is not None  # all that precedes the frontier has started
            now, *_, step = best
            engine = int(self.is_beside[step])
            ready[engine].remove(step)
            is_done[step], ends[step] = True, now + self.cost[step]
            free[engine] = ends[step]
            result.append(step)
            live.run(step)
            for later in self.after[step]:
                before[later] -= 1
                if not before[later]:
                    add(later)
            phase = self.phase[step]
            left[phase] -= self.is_first[step]
            if self.is_first[step] and not left[phase]:
                held, waiting = waiting, [[], [], []]
                for row in held:
                    for each in row:
                        add(each)
        return self.order[np.array(result, np.int64)]


class _Bytes:
    """Device bytes of an order, and of its steps in another sequence; takeovers are not counted."""

    def __init__(self, problem: Problem, order: Order):
        lives, _, held = liveness.bound_instances(problem, order)
        on_device = (problem.space == DEVICE) & (problem.hold != RESIDENT)
        self.size = np.where(on_device, problem.size, 0)[lives.buffer].tolist()
        self.held = held.tolist()
        self.written, reads = lives.written_instance.lists(), lives.read_instance.lists()
        self.used = [[*written, *read] for written, read in zip(self.written, reads, strict=True)]
        self.users = np.bincount(list(chain.from_iterable(self.used)), minlength=len(self.size)).tolist()
        self.workspace = problem.workspace[order].tolist()
        initial = (lives.writer_step < 0) & (lives.stop > 0)
        self.at_start = sum(self.size[k] for k in np.flatnonzero(initial)) + problem.resident_bytes()
        in_order, before, peak = self.begin(), [], []
        for step in range(len(order)):
            before.append(in_order.live)
            peak.append(in_order.live + self.added(step))
            in_order.run(step)
        self.before, self.peak = before, np.array(peak, np.int64)  # each step, in order

    def added(self, step: int) -> int:
        """Bytes of the outputs and the workspace of a step."""
        return int(sum(self.size[k] for k in self.written[step]) + self.workspace[step])

    def begin(self) -> _Live:
        return _Live(self, self.at_start, list(self.users))


@dataclass(slots=True)
class _Live:
    """Bytes while the steps of an order run in another sequence."""

    known: _Bytes
    live: int
    users: list[int]  # of each instance, those that have not run

    def run(self, step: int) -> None:
        known = self.known
        self.live += sum(known.size[k] for k in known.written[step])
        for k in known.used[step]:
            self.users[k] -= 1
            if not self.users[k] and not known.held[k]:
                self.live -= known.size[k]

    def fits(self, frontier: int, step: int, most_bytes: float) -> bool:
        """Whether `step` may run now and all steps from the frontier to its place still fit."""
        known = self.known
        ahead = int(known.peak[frontier : step + 1].max())
        return self.live - known.before[frontier] + known.added(step) + ahead <= most_bytes
