"""Goal, Candidate, Score, Lifetimes and Plan: the input and the result of a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.problem.columns import Csr, Problem

#: Task numbers in the sequence they run; a task that appears twice is recomputed. int64[steps]
Order = np.ndarray


@dataclass(frozen=True, slots=True)
class Goal:
    """Objective and limits of a search: a memory budget, or a limit on the overhead."""

    budget_bytes: int | None = None  # limit on the peak; 0 minimises the peak
    max_overhead: float | None = None  # limit on extra time as a share of the baseline, 0.1 = 10%
    order_is_given: bool = False  # first runs keep the task order
    strict_phases: bool = True  # forward first runs, then backward, then update
    seconds: float = 10.0  # search time
    iterations: int | None = None  # search limit in iterations, instead of the clock: reproducible
    seed: int = 0
    host_bytes: int | None = None  # host memory for copies; None: no limit

    def limited(self, seconds: float, iterations: int | None) -> Goal:
        """The goal with other limits; under an iteration limit `seconds` stays, as bounds size their effort by it."""
        if self.iterations is None:
            return replace(self, seconds=seconds)
        return replace(self, iterations=iterations)

    def cost_limit(self, problem: Problem) -> int:
        """Maximum ticks of an order where the lowest peak is the goal: those of `max_overhead`, by default 10%."""
        return int(problem.cost.sum() * (1 + (0.1 if self.max_overhead is None else self.max_overhead)))

    def has_room(self, problem: Problem, score: Score) -> bool:
        """Whether an order with this score fits the budget or, without one, is too slow: more bytes may be kept."""
        if self.budget_bytes is not None:
            return score.bytes_over_budget == 0
        return score.cost > self.cost_limit(problem)


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """An order with the planner that found it."""

    order: Order
    planner: str
    choices: tuple[int, ...] = ()  # of the alternatives of `Problem.choices`


class Score(NamedTuple):
    """Lexicographic score of a plan; lower is better."""

    bytes_over_budget: int
    cost: int  # ticks: the sum of all steps, or the makespan of engines side by side
    peak_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """Live ranges of k instances under an order of s steps, one instance per write of a buffer.

    An instance holds its bytes during steps `start` to `stop - 1`. An instance that exists from the
    start has `writer_step` -1 and `start` 0.
    """

    buffer: np.ndarray  # int64[k]
    writer_step: np.ndarray  # int64[k]  step that writes it; -1: exists from the start
    start: np.ndarray  # int64[k]  first step that counts its bytes
    stop: np.ndarray  # int64[k]  half-open end: last counting step + 1
    taken_from: np.ndarray  # int64[k]  instance whose storage it reuses from `start`; -1: its own storage
    read_instance: Csr  # step -> instances its task reads, in the order of `Problem.reads`
    written_instance: Csr  # step -> instances its task writes, in the order of `Problem.writes`
    workspace_stop: np.ndarray | None = None  # int64[s]  first step without each step's workspace; None: the next one


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """Times and host bytes of the s steps of an order on its engines."""

    start: np.ndarray  # int64[s]  ticks, ascending
    end: np.ndarray  # int64[s]  ticks
    host_bytes: np.ndarray  # int64[s]  bytes in host memory once the step has started


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """An order with its lifetimes, bytes per step and score, and its arena layout if one was requested."""

    order: Order
    lifetimes: Lifetimes
    step_bytes: np.ndarray  # int64[s]
    score: Score
    planner: str
    seed: int
    offsets: np.ndarray | None = (
        None  # int64[k + s]: per instance in its space, then per step's workspace; -1: no bytes
    )
    arena_bytes: int | None = None
    choices: tuple[int, ...] = ()  # alternative of each group of `Problem.choices`; (): the first of each
    host_arena_bytes: int | None = None  # of the addresses in host memory; None: not placed
    schedule: Schedule | None = None  # of engines side by side; None: one step after the other

    @property
    def candidate(self) -> Candidate:
        """The plan's order, as a seed of another search."""
        return Candidate(self.order, self.planner, self.choices)
