"""What is asked, what comes out, and how one result compares with another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.problem.columns import Csr

#: Task numbers in the sequence they run; a task that appears twice is recomputed. int64[steps]
Order = np.ndarray


@dataclass(frozen=True, slots=True)
class Goal:
    """What a planner is to reach. Give a budget, or an overhead to stay within, or neither for 10%."""

    budget_bytes: int | None = None  # limit on the peak; 0 asks for the lowest peak there is
    max_overhead: float | None = None  # extra time over the baseline, 0.1 = 10%
    order_is_given: bool = False  # first runs keep the task order
    strict_phases: bool = True  # forward first runs, then backward, then update
    seconds: float = 10.0  # search time
    iterations: int | None = None  # instead of the clock: reproducible
    seed: int = 0


class Score(NamedTuple):
    """Compares plans; lower is better, first field first."""

    bytes_over_budget: int
    cost: int  # ticks
    peak_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Lifetimes:
    """What a sequence of s steps makes live: k instances, one a write of a buffer.

    An instance holds its bytes from the end of nothing before `start` to the end of step
    `stop - 1`. One that is there from the start has `writer_step` -1 and starts at 0.
    """

    buffer: np.ndarray  # int64[k]
    writer_step: np.ndarray  # int64[k]  step that writes it; -1: there from the start
    start: np.ndarray  # int64[k]  first step that counts its bytes
    stop: np.ndarray  # int64[k]  half-open end: last counting step + 1
    taken_from: np.ndarray  # int64[k]  instance whose storage it takes at `start`; -1: its own storage
    read_instance: Csr  # step -> instances its task reads, in the order of `Problem.reads`
    written_instance: Csr  # step -> instances its task writes, in the order of `Problem.writes`


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """An order that was judged, with where its bytes lie when a layout was asked for."""

    order: Order
    lifetimes: Lifetimes
    step_bytes: np.ndarray  # int64[s]
    score: Score
    planner: str
    seed: int
    offsets: np.ndarray | None = None  # int64[k + s]: per instance, then per step's workspace; -1: no bytes
    arena_bytes: int | None = None
    choices: tuple[int, ...] = ()  # per group of `Problem.choices` its alternative; (): the first of each
