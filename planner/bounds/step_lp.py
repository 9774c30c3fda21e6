"""The inequalities of `certificate.py` at successive steps as a linear program, whose dual values are a proof.

A branch fixes a variable. At 1 that is a bound of the column. At 0 the column gets a cost that no plan is worth, and
bytes over the budget have a price as high, so that the program is feasible under all branches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graph.cancellation import cancellable, check_cancelled, is_cancelled, seconds_left
from planner.bounds.solvers.checkmate_model import LinearModel
from planner.bounds.solvers.interruption import interruptible
from planner.bounds.step_network import UNKNOWN, StepModel

# Maximum bits of a multiplier, and of the parts of a tick.
WEIGHT_BITS, PARTS_BITS = 56, 30
# From so many rows on, GLOP ends once cancelled: it takes more than a tenth of a second.
INTERRUPTED_ROWS = 5_000
# Limit of GLOP's deterministic time, per row.
SECONDS_PER_ROW = 6e-5
# A value in 0..1 nearer to 0 or 1 than this is whole.
WHOLE = 1e-6
# Excess, as a share of the largest buffer, that costs as much as all tasks together.
MIN_EXCESS = 1e-3

Term = tuple[float, int]  # factor, column
Variable = tuple[Any, ...]  # ("L", k, b), ("D", k, t), ("A", j, k, t) as in certificate.py, or ("R", k, t)


@dataclass(slots=True)
class _ProofRows:
    """Rows `sum of terms ≥ least`, and for each the list and the entries to store its multiplier under in a proof."""

    terms: list[list[Term]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    targets: list[tuple[list[list[int]] | None, tuple[int, ...]]] = field(default_factory=list)

    def add(self, terms: list[Term], least: float, target: list[list[int]] | None, *entries: int) -> None:
        check_cancelled()
        self.terms.append(terms)
        self.least.append(least)
        self.targets.append((target, entries))


@dataclass(frozen=True, eq=False, slots=True)
class StepSolution:
    """Optimum of the linear program."""

    ticks: float  # a lower bound, before its proof is rounded
    between: dict[Variable, float]  # values of the variables that are neither 0 nor 1
    ones: list[Variable]  # variables that are 1
    dual: np.ndarray  # float64[rows], at least 0


@dataclass(slots=True)
class _Window:
    """A window from a step to a later one or the end, with the multipliers of its rows."""

    start: int
    stop: int
    read: list[list[int]] = field(default_factory=list)
    carry: list[list[int]] = field(default_factory=list)
    first: list[list[int]] = field(default_factory=list)
    recomputed: list[list[int]] = field(default_factory=list)

    def rows(self) -> tuple[list[list[int]], ...]:
        """The rows that have a multiplier, by kind."""
        return self.read, self.carry, self.first, self.recomputed

    def document(self) -> dict[str, Any]:
        """The window in the JSON form of a proof."""
        weights = zip(("read", "carry", "first", "again"), map(list, self.rows()), strict=True)
        return {"from": self.start, "to": self.stop, **dict(weights)}


class StepLp:
    """Variables in 0..1: L of each step and buffer, A of each window and task, and R and D where they are not known."""

    def __init__(
        self,
        model: StepModel,
        chain: list[int],
        windows: list[tuple[int, int]],
        branches: bool = False,
        grains: Sequence[int] = (1,),
    ):
        """With `branches` the program is solved many times, each from the last basis. Memory fits in all `grains`."""
        self.branches, self.grains = branches, grains
        self.model, self.chain, self.end = model, chain, len(chain)
        self.rows = _ProofRows()
        self.cost: list[float] = []  # of each column
        self.column: dict[Variable, int] = {}
        self.name: list[Variable] = []  # of each column
        self.known = [model.known(w).tolist() for w in chain]
        self.known.append([UNKNOWN if optional else 1 for optional in model.problem.optional.tolist()])
        self.late = [model.late(np.array(row)).tolist() for row in self.known]
        self.recomputable, self.optional = model.recomputable.tolist(), model.problem.optional.tolist()
        self.inputs = [set(model.problem.reads[w].tolist()) for w in chain]
        self.unit = max(1.0, float(model.problem.cost.mean()))
        whole = [model.size // grain for grain in grains]
        self.most = [max(1.0, float(sizes.max(initial=0))) for sizes in whole]
        self.sizes = [(sizes / most).tolist() for sizes, most in zip(whole, self.most, strict=True)]
        self.ticks = (model.problem.cost / self.unit).tolist()
        self.windows = [_Window(j, k) for j, k in windows]
        self.repeats: list[tuple[int, int, int]] = []  # (row "again", step behind which it counts, task)
        self.before: list[list[int]] = []
        self.stays: list[list[int]] = []
        for window in self.windows:
            check_cancelled()
            self._live(window)
            self._run(window)
        self._order()
        self.price = [[self._fit(k, g) for k in range(self.end)] for g in range(len(grains))]  # rows, by grain
        self.worthless = len(self.ticks) * max(1.0, max(self.ticks, default=0.0))  # more than any plan costs, in units
        self.excess = []
        for row in (row for rows in self.price for row in rows):
            self.excess.append(self._of("excess", row, cost=self.worthless / MIN_EXCESS))
            self.rows.terms[row].append((1.0, self.excess[-1]))
        self._repeat_rows = np.array(self.repeats, np.int64).reshape(-1, 3).T
        self._solver: _Solver | None = None

    def _of(self, *variable: Any, cost: float = 0.0) -> int:
        """The column of a variable."""
        if variable not in self.column:
            self.column[variable] = len(self.cost)
            self.name.append(variable)
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
                self.repeats += [(len(self.rows.least), i, t) for i in range(window.start, window.stop)]
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

    def _fit(self, k: int, g: int) -> int:
        """Add the memory row "price" of a step in a grain; returns its number."""
        model, task, inputs, grain = self.model, self.chain[k], self.inputs[k], self.grains[g]
        inside = int(model.own[task] + model.size[[*model.problem.writes[task].tolist(), *inputs]].sum())
        live = [(b, self.column.get(("L", k, b))) for b in range(model.problem.buffers) if b not in inputs]
        terms = [(-self.sizes[g][b], column) for b, column in live if column is not None]
        self.rows.add(terms, -((model.room - inside) // grain) / self.most[g], None, k)
        return len(self.rows.least) - 1

    def solved(self, fixed: Mapping[Variable, int]) -> StepSolution | None:
        """The optimum with the `fixed` variables; None if GLOP did not reach it."""
        if self._solver is None:
            self._solver = _Solver(self.rows, self.cost, set(self.excess), self.branches)
        known = {self.column[variable]: value for variable, value in fixed.items() if variable in self.column}
        found = self._solver.solve(known, self.worthless)
        if found is None:
            return None
        ticks, values, dual = found
        ones = [self.name[c] for c in np.flatnonzero(values >= 1 - WHOLE).tolist()]
        between = np.flatnonzero((values > WHOLE) & (values < 1 - WHOLE)).tolist()
        values_between = {self.name[c]: float(values[c]) for c in between}
        return StepSolution(ticks * self.unit, values_between, ones, dual)

    def integer_model(self, fixed: Mapping[Variable, int], most_ticks: float) -> LinearModel:
        """The program with all variables 0 or 1, within the budget, the `fixed` ones known, and up to `most_ticks`."""
        model, excess = LinearModel(), set(self.excess)
        for name, column in self.column.items():
            model.column(int(self.model.problem.cost[name[2]]) if name[0] == "R" else 0)
            model.high[column] = fixed.get(name, int(column not in excess))
            model.low[column] = fixed.get(name, 0)
        for terms, least in cancellable(zip(self.rows.terms, self.rows.least, strict=True)):
            model.terms.append(([column for _, column in terms], [factor for factor, _ in terms]))
            model.least.append(least)
        costly = [column for column, ticks in enumerate(model.ticks) if ticks]
        model.terms.append((costly, [-model.ticks[column] / most_ticks for column in costly]))
        model.least.append(-1.0)
        return model

    def weights(self, solution: StepSolution) -> dict[str, Any] | None:
        """The proof made of the rows' dual values; None if all are 0."""
        dual = solution.dual
        if not dual.any():
            return None
        for rows in (self.before, self.stays, *(rows for window in self.windows for rows in window.rows())):
            rows.clear()
        ticks = dual * self.unit
        for memory, most in zip(self.price, self.most, strict=True):
            ticks[memory] /= most
        largest = max(float(ticks.max()), self.unit * max(self.ticks))
        parts = 1 << max(0, min(PARTS_BITS, WEIGHT_BITS - math.ceil(math.log2(max(1.0, largest)))))
        integer = np.floor(ticks * parts + 0.5).astype(np.int64)
        self._lower_to_cost(integer, parts)
        positive = np.flatnonzero(integer)
        for row, weight in zip(positive.tolist(), integer[positive].tolist(), strict=True):
            target, entries = self.rows.targets[row]
            if target is not None:
                target.append([*entries, weight])
        prices = [
            {"price": integer[memory].tolist(), "grain": grain}
            for memory, grain in zip(self.price, self.grains, strict=True)
        ]
        windows = [window.document() for window in self.windows]
        proof = {**prices[0], "rounded": prices[1:], "parts": parts, "windows": windows}
        return {**proof, "before": list(self.before), "stays": list(self.stays)}

    def _lower_to_cost(self, integer: np.ndarray, parts: int) -> None:
        """Lower multipliers that rounding raised, in sum, above the cost of a recomputation."""
        rows, steps, tasks = self._repeat_rows
        spent = np.zeros((self.end, len(self.ticks)), np.int64)
        np.add.at(spent, (steps, tasks), integer[rows])
        limit = parts * self.model.problem.cost
        for step, task in np.argwhere(spent > limit).tolist():
            for row in rows[(steps == step) & (tasks == task)].tolist():
                less = min(int(integer[row]), max(0, int(spent[step, task] - limit[task])))
                integer[row] -= less
                spent[steps[rows == row], task] -= less


class _Solver:
    """GLOP on the rows. With `continues` it starts from the last basis, which its preprocessing would lose."""

    def __init__(self, rows: _ProofRows, cost: Sequence[float], unlimited: Collection[int], continues: bool):
        from ortools.linear_solver import linear_solver_pb2, pywraplp  # heavy: imported where a model is solved

        self.solver, self.solution = pywraplp.Solver.CreateSolver("GLOP"), linear_solver_pb2.MPSolutionResponse()
        self.infeasible, self.optimal = pywraplp.Solver.INFEASIBLE, pywraplp.Solver.OPTIMAL
        infinity, self.cost, self.fixed = self.solver.infinity(), cost, dict[int, int]()
        self.columns = [self.solver.NumVar(0.0, infinity if c in unlimited else 1.0, "") for c in range(len(cost))]
        self.objective = self.solver.Objective()
        for column, ticks in cancellable(zip(self.columns, cost, strict=True)):
            if ticks:
                self.objective.SetCoefficient(column, ticks)
        for terms, least in cancellable(zip(rows.terms, rows.least, strict=True)):
            row = self.solver.Constraint(least, infinity)
            for factor, c in terms:
                row.SetCoefficient(self.columns[c], factor)
        limit = SECONDS_PER_ROW * (len(rows.least) + 1)
        # After a change of bounds the last basis is feasible for the dual simplex.
        method = "use_preprocessing: false use_dual_simplex: true" if continues else ""
        self.solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {limit} {method}")

    def solve(self, fixed: Mapping[int, int], worthless: float) -> tuple[float, np.ndarray, np.ndarray] | None:
        """(objective, values of the columns, dual values of the rows, at least 0); None if not solved."""
        if (status := self._status(fixed)) == self.infeasible:
            status = self._status(fixed, worthless)
        if status != self.optimal:
            return None
        self.solver.FillSolutionResponseProto(self.solution)
        values, dual = np.array(self.solution.variable_value), np.array(self.solution.dual_value)
        return self.solution.objective_value, values, np.maximum(0.0, dual)

    def _status(self, fixed: Mapping[int, int], worthless: float | None = None) -> int:
        """How a solve with the fixed columns ends, within the time left."""
        check_cancelled()
        self._fix(fixed, worthless)
        if (left := seconds_left()) < math.inf:
            self.solver.SetTimeLimit(max(1, int(1000 * left)))
        if self.solver.NumConstraints() < INTERRUPTED_ROWS:
            return int(self.solver.Solve())
        status = int(interruptible(self.solver.Solve, self.solver.InterruptSolve, is_cancelled))
        check_cancelled()
        return status

    def _fix(self, fixed: Mapping[int, int], worthless: float | None = None) -> None:
        """Fix columns by their bounds; those at 0 by a `worthless` cost if that is given, so that all is feasible."""
        for c in {*self.fixed, *fixed}:
            value, is_priced = fixed.get(c), worthless is not None and fixed.get(c) == 0
            self.columns[c].SetLb(float(value or 0))
            self.columns[c].SetUb(1.0 if value is None or is_priced else float(value))
            self.objective.SetCoefficient(self.columns[c], worthless if is_priced else self.cost[c])
        self.fixed = dict(fixed)
