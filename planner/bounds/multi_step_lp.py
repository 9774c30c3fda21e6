"""Several moments together: what repeats cost when the bytes fit at each of them, each run counted once.

The inequalities of `certificate.py` at moments one after the other, as a linear programme over windows from each moment
to the next and from each to the end. The shadow prices of its rows, rounded to integers, are the weights of a proof:
what floats get wrong makes the bound smaller, never false. One moment alone is `moment_cut.py`, and cheaper.

Source: the project's own; with a moment at every first run it is the relaxation of Jain et al., "Checkmate", MLSys
2020, section 4.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.bounds.claims import Claim, cost_claim, problem_columns
from planner.bounds.step_network import FULL_SECONDS, UNKNOWN, StepModel
from planner.problem import Problem
from planner.problem.plan import Goal
from planner.verify import certificate

# Moments to begin with and up to which more are added, as far as about so many rows allow.
MIN_STEPS, MAX_STEPS, MAX_ROWS = 4, 32, 26_000
# Weights have at most so many bits, and parts of a tick at most so many.
WEIGHT_BITS, PARTS_BITS = 56, 30
# Of GLOP's own clock, for one row.
SECONDS_PER_ROW = 6e-5

Term = tuple[float, int]  # factor, column


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """What moments around that of `task` prove together; None where the problem is too large or nothing is proven.

    Twice as many moments each time join those that had a price, as long as the programme is solved; a goal of fewer
    seconds has smaller programmes.
    """
    moments, best = StepModel(problem, goal, budget_bytes), None
    rows = 2 * (len(moments.read) + problem.buffers + problem.tasks // 2)
    allowed = int(MAX_ROWS * min(1.0, goal.seconds / FULL_SECONDS))
    most, size, chain = min(MAX_STEPS, allowed // max(1, rows)), MIN_STEPS, [task]
    while size < 2 * most and most >= MIN_STEPS:
        before, chain = chain, choose_steps(moments, chain, min(size, most))
        claim = (
            prove_bound(moments, chain, step_windows(len(chain))) if len(chain) <= most and chain != before else None
        )
        if claim is None:
            break
        if best is None or claim["value"] > best["value"]:
            best = claim
        chain = [w for w, price in zip(chain, claim["proof"]["price"], strict=True) if price] or [task]
        size *= 2
    return best


def step_windows(end: int) -> list[tuple[int, int]]:
    """Windows from each moment to the next, and from each to the end."""
    return [(k, k + 1) for k in range(end)] + [(k, end) for k in range(end - 1)]


def choose_steps(moments: StepModel, tasks: list[int], most: int) -> list[int]:
    """The tasks, which come one after the other, and others that do in every order, spread over the fullest steps."""
    over = moments.tried()
    over = over[np.argsort(moments.place[over], kind="stable")]
    spread = np.linspace(0, len(over) - 1, max(0, min(most - len(tasks), len(over)))).astype(np.int64)
    chain, known = list(tasks), [moments.known(task) for task in tasks]
    for other in over[spread].tolist():
        if other not in chain and all(row[other] != UNKNOWN for row in known):
            at = sum(int(row[other] == 0) for row in known)  # those that run before it
            chain.insert(at, other)
            known.insert(at, moments.known(other))
    return chain


def prove_bound(moments: StepModel, chain: list[int], windows: list[tuple[int, int]]) -> Claim | None:
    """The claim that these moments and windows prove; None where it says no more than that every task runs once."""
    programme = _StepLp(moments, chain, windows)
    weights = programme.weights()
    if weights is None:
        return None
    claim = cost_claim(moments.goal, moments.budget_bytes, 0, "several-moments", chain, weights)
    value = certificate.proven_value(problem_columns(moments.problem), claim)
    return {**claim, "value": value} if value > moments.problem.cost[~moments.problem.optional].sum() else None


@dataclass(slots=True)
class _ProofRows:
    """Rows `sum of terms ≥ least`, and what each weighs in a proof: the list it is told in and its entries."""

    terms: list[list[Term]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    weighs: list[tuple[list[list[int]] | None, tuple[int, ...]]] = field(default_factory=list)

    def add(self, terms: list[Term], least: float, told: list[list[int]] | None, *entries: int) -> None:
        self.terms.append(terms)
        self.least.append(least)
        self.weighs.append((told, entries))


@dataclass(slots=True)
class _Window:
    """From a moment to a later one or the end, and what its rows weigh, as the proof tells it."""

    start: int
    stop: int
    read: list[list[int]] = field(default_factory=list)
    carry: list[list[int]] = field(default_factory=list)
    first: list[list[int]] = field(default_factory=list)
    again: list[list[int]] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        weights = {"read": self.read, "carry": self.carry, "first": self.first, "again": self.again}
        return {"from": self.start, "to": self.stop, **weights}


class _StepLp:
    """Columns 0 to 1: L of each moment and buffer, A of each window and task, R and D where they are not known."""

    def __init__(self, moments: StepModel, chain: list[int], windows: list[tuple[int, int]]):
        self.moments, self.chain, self.end = moments, chain, len(chain)
        self.rows = _ProofRows()
        self.cost: list[float] = []  # of each column
        self.column: dict[tuple[Any, ...], int] = {}
        self.known = [moments.known(w).tolist() for w in chain]
        self.known.append([UNKNOWN if optional else 1 for optional in moments.problem.optional.tolist()])
        self.late = [moments.late(np.array(row)).tolist() for row in self.known]
        self.again, self.optional = moments.again.tolist(), moments.problem.optional.tolist()
        self.inputs = [set(moments.problem.reads[w].tolist()) for w in chain]
        self.unit = max(1.0, float(moments.problem.cost.mean()))
        self.bytes = max(1.0, float(moments.size.max(initial=0)))
        self.size, self.ticks = (moments.size / self.bytes).tolist(), (moments.problem.cost / self.unit).tolist()
        self.windows = [_Window(j, k) for j, k in windows]
        self.before: list[list[int]] = []
        self.stays: list[list[int]] = []
        for window in self.windows:
            self._live(window)
            self._run(window)
        self._order()
        self.price = [len(self.rows.least) + k for k in range(self.end)]
        for k in range(self.end):
            self._fit(k)

    def _of(self, *number: Any, cost: float = 0.0) -> int:
        """The column of a number."""
        if number not in self.column:
            self.column[number] = len(self.cost)
            self.cost.append(cost)
        return int(self.column[number])

    def _done(self, k: int, t: int, factor: float) -> tuple[list[Term], float]:
        """D(k, t) as terms and a constant."""
        known = self.known[k][t]
        return ([(factor, self._of("D", k, t))], 0.0) if known == UNKNOWN else ([], factor * known)

    def _ran(self, j: int, k: int, t: int) -> int | None:
        """A(j, k, t): 0 or 1 where that is certain, else None."""
        before, after = self.known[j][t], self.known[k][t]
        if before == 0 and after == 1:
            return 1
        return 0 if after == 0 or self.late[j][t] or (before == 1 and not self.again[t]) else None

    def _live(self, window: _Window) -> None:
        """Rows read and carry of a window."""
        j, k, moments = window.start, window.stop, self.moments
        maker = moments.maker.tolist()

        def need(b: int, terms: list[Term], least: float, told: list[list[int]], *entries: int) -> None:
            made = self._ran(j, k, maker[b]) if maker[b] >= 0 else 0
            if b in self.inputs[j] or made == 1:
                return
            terms.append((1.0, self._of("L", j, b)))
            if made is None:
                terms.append((1.0, self._of("A", j, k, maker[b])))
            self.rows.add(terms, least, told, *entries)

        for t, b in zip(moments.reader.tolist(), moments.read.tolist(), strict=True):
            ran = self._ran(j, k, t)
            if ran != 0:
                need(b, [] if ran else [(-1.0, self._of("A", j, k, t))], float(ran or 0), window.read, t, b)
        if k == self.end:
            for b in moments.held.tolist():
                need(b, [], 1.0, window.carry, b)
            return
        for b in np.flatnonzero(moments.counted).tolist():
            if b in self.inputs[k]:
                need(b, [], 1.0, window.carry, b)
            elif ("L", k, b) in self.column or k == j + 1:
                need(b, [(-1.0, self._of("L", k, b))], 0.0, window.carry, b)

    def _run(self, window: _Window) -> None:
        """Rows first and again of a window, for the columns A there are."""
        for t in np.flatnonzero(~self.moments.problem.optional).tolist():
            a = self.column.get(("A", window.start, window.stop, t))
            if a is None:
                continue
            (started, known), (ended, known_too) = self._done(window.start, t, 1.0), self._done(window.stop, t, -1.0)
            if started or ended:
                self.rows.add([(1.0, a), *started, *ended], -known - known_too, window.first, t)
            repeats = [(-1.0, a), *((-factor, column) for factor, column in (*started, *ended))]
            if self.again[t]:
                there = [i for i in range(window.start, window.stop) if self._ran(i, i + 1, t) != 0]
                repeats += [(1.0, self._of("R", i, t, cost=self.ticks[t])) for i in there]
            self.rows.add(repeats, known + known_too, window.again, t)

    def _order(self) -> None:
        """Rows before and stays, between columns D."""
        for k in range(self.end):
            for t, u in self.moments.first.T.tolist():
                if UNKNOWN in (self.known[k][t], self.known[k][u]):
                    (earlier, known), (later, known_too) = self._done(k, t, 1.0), self._done(k, u, -1.0)
                    self.rows.add([*earlier, *later], -known - known_too, self.before, k, t, u)
            for t in range(self.moments.problem.tasks) if k + 1 < self.end else ():
                if self.known[k][t] == UNKNOWN == self.known[k + 1][t]:
                    self.rows.add([*self._done(k + 1, t, 1.0)[0], *self._done(k, t, -1.0)[0]], 0.0, self.stays, k, t)

    def _fit(self, k: int) -> None:
        """The row price of a moment."""
        moments, task, inputs = self.moments, self.chain[k], self.inputs[k]
        there = int(moments.own[task] + moments.size[[*moments.problem.writes[task].tolist(), *inputs]].sum())
        live = [(b, self.column.get(("L", k, b))) for b in range(moments.problem.buffers) if b not in inputs]
        terms = [(-self.size[b], column) for b, column in live if column is not None]
        self.rows.add(terms, (there - moments.room) / self.bytes, None, k)

    def weights(self) -> dict[str, Any] | None:
        """The proof that the rows' shadow prices make; None where GLOP did not end."""
        dual = _prices(self.rows, self.cost)
        if dual is None or not dual.any():
            return None
        ticks = dual * self.unit
        ticks[self.price] /= self.bytes
        largest = max(float(ticks.max()), self.unit * max(self.ticks))
        parts = 1 << max(0, min(PARTS_BITS, WEIGHT_BITS - math.ceil(math.log2(max(1.0, largest)))))
        integer = np.floor(ticks * parts + 0.5).astype(np.int64).tolist()
        for weight, (told, entries) in zip(integer, self.rows.weighs, strict=True):
            if weight and told is not None:
                told.append([*entries, weight])
        self._within_cost(parts)
        proof = {
            "price": [integer[row] for row in self.price],
            "parts": parts,
            "windows": [window.told() for window in self.windows],
        }
        return {**proof, "before": self.before, "stays": self.stays}

    def _within_cost(self, parts: int) -> None:
        """Take the rounding of prices off the rows again, where they come to more than a repeat costs."""
        spent: dict[tuple[int, int], int] = {}
        for window in self.windows:
            kept = []
            for t, weight in window.again:
                if self.again[t]:
                    inside = range(window.start, window.stop)
                    left = min(parts * int(self.moments.problem.cost[t]) - spent.get((i, t), 0) for i in inside)
                    weight = min(weight, left)
                    spent |= {(i, t): spent.get((i, t), 0) + weight for i in inside}
                if weight > 0:
                    kept.append([t, weight])
            window.again = kept


def _prices(rows: _ProofRows, cost: list[float]) -> np.ndarray | None:
    """float64[rows]: what one more in `least` of each row would cost, 0 at least."""
    from ortools.linear_solver import pywraplp  # heavy: imported by those who solve

    solver = pywraplp.Solver.CreateSolver("GLOP")
    numbers = [solver.NumVar(0.0, 1.0, "") for _ in cost]
    objective, infinity = solver.Objective(), solver.infinity()
    for number, ticks in zip(numbers, cost, strict=True):
        if ticks:
            objective.SetCoefficient(number, ticks)
    constraints = []
    for terms, least in zip(rows.terms, rows.least, strict=True):
        constraint = solver.Constraint(least, infinity)
        for factor, column in terms:
            constraint.SetCoefficient(numbers[column], factor)
        constraints.append(constraint)
    solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {SECONDS_PER_ROW * (len(rows.least) + 1)}")
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return np.asarray(np.maximum(0.0, np.array([constraint.DualValue() for constraint in constraints])))
