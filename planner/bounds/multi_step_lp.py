"""Multi-step LP bound: least cost of recomputation if memory fits at each of several steps, each run counted once.

The inequalities of `certificate.py` at successive steps, as a linear program over windows from each step to the next
and from each step to the end. Its dual values, rounded to integers, are the multipliers of a proof: rounding errors
make the bound weaker, never false. The cut at a single step is `step_cut.py`, which is cheaper.

Source: the project's own; with a step at every first run it is the relaxation of Jain et al., "Checkmate", MLSys
2020, section 4.7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph.cancellation import check_cancelled, seconds_left
from planner.bounds.claims import Claim, cost_claim, problem_columns
from planner.bounds.step_network import FULL_SECONDS, UNKNOWN, StepModel
from planner.problem import Problem
from planner.problem.plan import Goal
from planner.verify import certificate

# Steps to start with, the maximum of steps, and the maximum of rows.
MIN_STEPS, MAX_STEPS, MAX_ROWS = 4, 32, 26_000
# Maximum bits of a multiplier, and of the parts of a tick.
WEIGHT_BITS, PARTS_BITS = 56, 30
# Limit of GLOP's deterministic time, per row.
SECONDS_PER_ROW = 6e-5

Term = tuple[float, int]  # factor, column


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """The best claim from steps around the first run of `task`; None: too large a problem, or nothing is proven.

    Each round doubles the steps: those with a non-zero multiplier are kept and others added, until the linear
    program is not solved. Shorter goals (in seconds) get smaller programs.
    """
    model, best = StepModel(problem, goal, budget_bytes), None
    rows = 2 * (len(model.read) + problem.buffers + problem.tasks // 2)
    allowed = int(MAX_ROWS * min(1.0, goal.seconds / FULL_SECONDS))
    max_steps, size, chain = min(MAX_STEPS, allowed // max(1, rows)), MIN_STEPS, [task]
    while size < 2 * max_steps and max_steps >= MIN_STEPS:
        before, chain = chain, choose_steps(model, chain, min(size, max_steps))
        if len(chain) > max_steps or chain == before:
            break
        claim = prove_bound(model, chain, step_windows(len(chain)))
        if claim is None:
            break
        if best is None or claim["value"] > best["value"]:
            best = claim
        chain = [w for w, price in zip(chain, claim["proof"]["price"], strict=True) if price] or [task]
        size *= 2
    return best


def step_windows(end: int) -> list[tuple[int, int]]:
    """Windows from each step to the next, and from each step to the end."""
    return [(k, k + 1) for k in range(end)] + [(k, end) for k in range(end - 1)]


def choose_steps(model: StepModel, tasks: list[int], most: int) -> list[int]:
    """The tasks, totally ordered, and others comparable to all of them, spread over the steps of highest memory."""
    over = model.candidate_tasks()
    over = over[np.argsort(model.place[over], kind="stable")]
    spread = np.linspace(0, len(over) - 1, max(0, min(most - len(tasks), len(over)))).astype(np.int64)
    chain, known = list(tasks), [model.known(task) for task in tasks]
    for other in over[spread].tolist():
        if other not in chain and all(row[other] != UNKNOWN for row in known):
            at = sum(int(row[other] == 0) for row in known)  # tasks of the chain that run before it
            chain.insert(at, other)
            known.insert(at, model.known(other))
    return chain


def prove_bound(model: StepModel, chain: list[int], windows: list[tuple[int, int]]) -> Claim | None:
    """The claim that these steps and windows prove; None if it does not exceed one run of every task."""
    lp = _StepLp(model, chain, windows)
    weights = lp.weights()
    if weights is None:
        return None
    claim = cost_claim(model.goal, model.budget_bytes, 0, "several-moments", chain, weights)
    value = certificate.proven_value(problem_columns(model.problem), claim)
    return {**claim, "value": value} if value > model.problem.single_run_ticks() else None


@dataclass(slots=True)
class _ProofRows:
    """Rows `sum of terms ≥ least`, and for each the list and the entries to store its multiplier under in a proof."""

    terms: list[list[Term]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    targets: list[tuple[list[list[int]] | None, tuple[int, ...]]] = field(default_factory=list)

    def add(self, terms: list[Term], least: float, target: list[list[int]] | None, *entries: int) -> None:
        self.terms.append(terms)
        self.least.append(least)
        self.targets.append((target, entries))


@dataclass(slots=True)
class _Window:
    """A window from a step to a later one or the end, with the multipliers of its rows."""

    start: int
    stop: int
    read: list[list[int]] = field(default_factory=list)
    carry: list[list[int]] = field(default_factory=list)
    first: list[list[int]] = field(default_factory=list)
    recomputed: list[list[int]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The window in the JSON form of a proof."""
        weights = {"read": self.read, "carry": self.carry, "first": self.first, "again": self.recomputed}
        return {"from": self.start, "to": self.stop, **weights}


class _StepLp:
    """Variables in 0..1: L of each step and buffer, A of each window and task, and R and D where they are not known."""

    def __init__(self, model: StepModel, chain: list[int], windows: list[tuple[int, int]]):
        self.model, self.chain, self.end = model, chain, len(chain)
        self.rows = _ProofRows()
        self.cost: list[float] = []  # of each column
        self.column: dict[tuple[Any, ...], int] = {}
        self.known = [model.known(w).tolist() for w in chain]
        self.known.append([UNKNOWN if optional else 1 for optional in model.problem.optional.tolist()])
        self.late = [model.late(np.array(row)).tolist() for row in self.known]
        self.recomputable, self.optional = model.recomputable.tolist(), model.problem.optional.tolist()
        self.inputs = [set(model.problem.reads[w].tolist()) for w in chain]
        self.unit = max(1.0, float(model.problem.cost.mean()))
        self.bytes = max(1.0, float(model.size.max(initial=0)))
        self.size, self.ticks = (model.size / self.bytes).tolist(), (model.problem.cost / self.unit).tolist()
        self.windows = [_Window(j, k) for j, k in windows]
        self.before: list[list[int]] = []
        self.stays: list[list[int]] = []
        for window in self.windows:
            check_cancelled()
            self._live(window)
            self._run(window)
        self._order()
        self.price = [len(self.rows.least) + k for k in range(self.end)]
        for k in range(self.end):
            self._fit(k)

    def _of(self, *variable: Any, cost: float = 0.0) -> int:
        """The column of a variable."""
        if variable not in self.column:
            self.column[variable] = len(self.cost)
            self.cost.append(cost)
        return int(self.column[variable])

    def _done(self, k: int, t: int, factor: float) -> tuple[list[Term], float]:
        """D(k, t) as terms and a constant."""
        known = self.known[k][t]
        return ([(factor, self._of("D", k, t))], 0.0) if known == UNKNOWN else ([], factor * known)

    def _ran(self, j: int, k: int, t: int) -> int | None:
        """A(j, k, t): 0 or 1 if certain, else None."""
        before, after = self.known[j][t], self.known[k][t]
        if before == 0 and after == 1:
            return 1
        return 0 if after == 0 or self.late[j][t] or (before == 1 and not self.recomputable[t]) else None

    def _live(self, window: _Window) -> None:
        """Add the rows "read" and "carry" of a window."""
        j, k, model = window.start, window.stop, self.model
        producer = model.producer.tolist()

        def need(b: int, terms: list[Term], least: float, target: list[list[int]], *entries: int) -> None:
            made = self._ran(j, k, producer[b]) if producer[b] >= 0 else 0
            if b in self.inputs[j] or made == 1:
                return
            terms.append((1.0, self._of("L", j, b)))
            if made is None:
                terms.append((1.0, self._of("A", j, k, producer[b])))
            self.rows.add(terms, least, target, *entries)

        for t, b in zip(model.reader.tolist(), model.read.tolist(), strict=True):
            ran = self._ran(j, k, t)
            if ran != 0:
                need(b, [] if ran else [(-1.0, self._of("A", j, k, t))], float(ran or 0), window.read, t, b)
        if k == self.end:
            for b in model.held.tolist():
                need(b, [], 1.0, window.carry, b)
            return
        for b in np.flatnonzero(model.counted).tolist():
            if b in self.inputs[k]:
                need(b, [], 1.0, window.carry, b)
            elif ("L", k, b) in self.column or k == j + 1:
                need(b, [(-1.0, self._of("L", k, b))], 0.0, window.carry, b)

    def _run(self, window: _Window) -> None:
        """Add the rows "first" and "again" of a window, for the existing columns A."""
        for t in np.flatnonzero(~self.model.problem.optional).tolist():
            a = self.column.get(("A", window.start, window.stop, t))
            if a is None:
                continue
            (started, known), (ended, known_too) = self._done(window.start, t, 1.0), self._done(window.stop, t, -1.0)
            if started or ended:
                self.rows.add([(1.0, a), *started, *ended], -known - known_too, window.first, t)
            repeats = [(-1.0, a), *((-factor, column) for factor, column in (*started, *ended))]
            if self.recomputable[t]:
                inside = [i for i in range(window.start, window.stop) if self._ran(i, i + 1, t) != 0]
                repeats += [(1.0, self._of("R", i, t, cost=self.ticks[t])) for i in inside]
            self.rows.add(repeats, known + known_too, window.recomputed, t)

    def _order(self) -> None:
        """Add the rows "before" and "stays", between columns D."""
        for k in range(self.end):
            for t, u in self.model.first.T.tolist():
                if UNKNOWN in (self.known[k][t], self.known[k][u]):
                    (earlier, known), (later, known_too) = self._done(k, t, 1.0), self._done(k, u, -1.0)
                    self.rows.add([*earlier, *later], -known - known_too, self.before, k, t, u)
            for t in range(self.model.problem.tasks) if k + 1 < self.end else ():
                if self.known[k][t] == UNKNOWN == self.known[k + 1][t]:
                    self.rows.add([*self._done(k + 1, t, 1.0)[0], *self._done(k, t, -1.0)[0]], 0.0, self.stays, k, t)

    def _fit(self, k: int) -> None:
        """Add the memory row "price" of a step."""
        model, task, inputs = self.model, self.chain[k], self.inputs[k]
        inside = int(model.own[task] + model.size[[*model.problem.writes[task].tolist(), *inputs]].sum())
        live = [(b, self.column.get(("L", k, b))) for b in range(model.problem.buffers) if b not in inputs]
        terms = [(-self.size[b], column) for b, column in live if column is not None]
        self.rows.add(terms, (inside - model.room) / self.bytes, None, k)

    def weights(self) -> dict[str, Any] | None:
        """The proof made of the rows' dual values; None if GLOP did not reach the optimum."""
        dual = _prices(self.rows, self.cost)
        if dual is None or not dual.any():
            return None
        ticks = dual * self.unit
        ticks[self.price] /= self.bytes
        largest = max(float(ticks.max()), self.unit * max(self.ticks))
        parts = 1 << max(0, min(PARTS_BITS, WEIGHT_BITS - math.ceil(math.log2(max(1.0, largest)))))
        integer = np.floor(ticks * parts + 0.5).astype(np.int64).tolist()
        for weight, (target, entries) in zip(integer, self.rows.targets, strict=True):
            if weight and target is not None:
                target.append([*entries, weight])
        self._within_cost(parts)
        proof = {
            "price": [integer[row] for row in self.price],
            "parts": parts,
            "windows": [window.document() for window in self.windows],
        }
        return {**proof, "before": self.before, "stays": self.stays}

    def _within_cost(self, parts: int) -> None:
        """Reduce multipliers that rounding raised, in sum, above the cost of a recomputation."""
        spent: dict[tuple[int, int], int] = {}
        for window in self.windows:
            kept = []
            for t, weight in window.recomputed:
                if self.recomputable[t]:
                    inside = range(window.start, window.stop)
                    left = min(parts * int(self.model.problem.cost[t]) - spent.get((i, t), 0) for i in inside)
                    weight = min(weight, left)
                    spent |= {(i, t): spent.get((i, t), 0) + weight for i in inside}
                if weight > 0:
                    kept.append([t, weight])
            window.recomputed = kept


def _prices(rows: _ProofRows, cost: list[float]) -> np.ndarray | None:
    """float64[rows]: dual values, at least 0; None if GLOP did not reach the optimum."""
    from ortools.linear_solver import pywraplp  # heavy: imported where a model is solved

    solver = pywraplp.Solver.CreateSolver("GLOP")
    variables = [solver.NumVar(0.0, 1.0, "") for _ in cost]
    objective, infinity = solver.Objective(), solver.infinity()
    for variable, ticks in zip(variables, cost, strict=True):
        if ticks:
            objective.SetCoefficient(variable, ticks)
    constraints = []
    for terms, least in zip(rows.terms, rows.least, strict=True):
        constraint = solver.Constraint(least, infinity)
        for factor, column in terms:
            constraint.SetCoefficient(variables[column], factor)
        constraints.append(constraint)
    solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {SECONDS_PER_ROW * (len(rows.least) + 1)}")
    check_cancelled()
    if (left := seconds_left()) < math.inf:
        solver.SetTimeLimit(max(1, int(1000 * left)))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return np.asarray(np.maximum(0.0, np.array([constraint.DualValue() for constraint in constraints])))
