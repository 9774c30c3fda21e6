"""Solves `Rows` by OR-Tools: SCIP for whole numbers, GLOP for prices of the rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.bounds.solvers.checkmate_model import LinearModel
from planner.problem.monitor import Monitor

#: Seconds between two looks at whether to stop, and the least SCIP is given.
POLL_SECONDS, MIN_SECONDS = 0.02, 0.05
#: SCIP stops when it holds so many megabytes.
MAX_MEGABYTES = 1_000
#: Of GLOP's own clock, for one row.
SECONDS_PER_ROW = 1e-4


@dataclass(frozen=True, eq=False, slots=True)
class LinearSolution:
    """What came of it."""

    values: np.ndarray | None  # float64[columns]; None: none were found
    ended: bool  # the values are the cheapest there are, or there are none


def solve_integer(rows: LinearModel, monitor: Monitor) -> LinearSolution:
    """The cheapest whole values, or the best found until the monitor says stop; a node is an iteration.

    Raises Cancelled when that comes before anything is solved.
    """
    from ortools.linear_solver import pywraplp  # heavy: imported by those who solve

    part = monitor.beside(monitor.judge)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    columns = _filled(solver, rows, whole=True, check=monitor.check)[0]
    # Probing takes longer than what it finds is worth here.
    parameters = f"limits/memory = {MAX_MEGABYTES}\npropagating/probing/maxprerounds = 0\n"
    if part.iterations is None:
        solver.SetTimeLimit(int(1000 * max(MIN_SECONDS, part.seconds)))
    else:
        parameters += f"limits/nodes = {max(1, part.iterations)}\n"
    solver.SetSolverSpecificParametersAsString(parameters)
    status: list[int] = []
    # In a thread of its own, so that a stop is heard while it works.
    thread = threading.Thread(target=lambda: status.append(solver.Solve()), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        if monitor.cancelled:
            solver.InterruptSolve()
    monitor.calls += solver.nodes()
    found = status[0] in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    ended = status[0] in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.INFEASIBLE)
    return LinearSolution(np.array([column.solution_value() for column in columns]) if found else None, ended)


def dual_values(rows: LinearModel) -> np.ndarray:
    """float64[rows]: ticks one more in `least` of each row would cost, 0 at least; all 0 where GLOP did not end."""
    from ortools.linear_solver import pywraplp  # heavy: imported by those who solve

    solver = pywraplp.Solver.CreateSolver("GLOP")
    constraints = _filled(solver, rows, whole=False)[1]
    solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {SECONDS_PER_ROW * (len(rows.least) + 1)}")
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return np.zeros(len(constraints))
    dual = np.array([constraint.DualValue() for constraint in constraints])
    return np.asarray(np.maximum(0.0, dual) * tick_divisor(rows))


def tick_divisor(rows: LinearModel) -> int:
    """What divides the ticks of every column."""
    return math.gcd(*rows.ticks) or 1


def _filled(
    solver: Any, rows: LinearModel, whole: bool, check: Callable[[], None] = lambda: None
) -> tuple[list[Any], list[Any]]:
    """Columns and rows of the solver, filled in."""
    unit, objective = tick_divisor(rows), solver.Objective()
    columns = [solver.Var(low, high, whole, "") for low, high in zip(rows.low, rows.high, strict=True)]
    for column, ticks in zip(columns, rows.ticks, strict=True):
        objective.SetCoefficient(column, ticks // unit)
    objective.SetMinimization()
    constraints = []
    for (of, factors), least in zip(rows.terms, rows.least, strict=True):
        check()
        constraint = solver.Constraint(least, solver.infinity())
        for column, factor in zip(of, factors, strict=True):
            constraint.SetCoefficient(columns[column], factor)
        constraints.append(constraint)
    return columns, constraints
