"""OR-Tools adapter for `LinearModel`: 0/1 solutions by SCIP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.bounds.solvers.checkmate_model import LinearModel
from planner.bounds.solvers.interruption import interruptible
from planner.problem.monitor import Monitor, SearchCancelled

#: Minimum time limit of SCIP in seconds.
MIN_SECONDS = 0.05
#: Memory limit of SCIP, in megabytes.
MAX_MEGABYTES = 1_000


@dataclass(frozen=True, eq=False, slots=True)
class LinearSolution:
    """Result of `solve_integer`."""

    values: np.ndarray | None  # float64[columns]; None: no solution found
    ended: bool  # `values` are proven optimal to 1e-4 of their cost, or the model is proven infeasible


def solve_integer(rows: LinearModel, monitor: Monitor, *, share: float = 1.0, parameters: str = "") -> LinearSolution:
    """The optimal 0/1 values, or the best found in a share of the rest of a search; a node counts as an iteration.

    `parameters` are further ones of SCIP, one a line. By the clock it ends with the search, as once a bound proves the
    best order. Two runs may end with different values of the same cost, or after a limit with others.
    Raises SearchCancelled if cancelled, or by the clock over, while the model is being built.
    """
    from ortools.linear_solver import pywraplp  # heavy: imported where a model is solved

    def is_over() -> bool:
        return monitor.cancelled or (monitor.iterations is None and monitor.should_stop())

    def check() -> None:
        if is_over():
            raise SearchCancelled

    solver = pywraplp.Solver.CreateSolver("SCIP")
    columns = _filled(solver, rows, check)
    part = monitor.child(monitor.judge, share)
    # Probing does not pay off on these models.
    parameters += f"limits/memory = {MAX_MEGABYTES}\npropagating/probing/maxprerounds = 0\n"
    if part.iterations is None:
        solver.SetTimeLimit(int(1000 * max(MIN_SECONDS, part.seconds)))
    else:
        parameters += f"limits/nodes = {max(1, part.iterations)}\n"
    solver.SetSolverSpecificParametersAsString(parameters)
    status = interruptible(solver.Solve, solver.InterruptSolve, is_over)
    monitor.calls += solver.nodes()
    found = status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    ended = status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.INFEASIBLE)
    return LinearSolution(np.array([column.solution_value() for column in columns]) if found else None, ended)


def _filled(solver: Any, rows: LinearModel, check: Callable[[], None]) -> list[Any]:
    """The columns of the solver, filled from the model. `check` is called between rows and may raise to cancel."""
    unit, objective = math.gcd(*rows.ticks) or 1, solver.Objective()
    columns = [solver.IntVar(low, high, "") for low, high in zip(rows.low, rows.high, strict=True)]
    for column, ticks in zip(columns, rows.ticks, strict=True):
        objective.SetCoefficient(column, ticks // unit)
    objective.SetMinimization()
    for (of, factors), least in zip(rows.terms, rows.least, strict=True):
        check()
        constraint = solver.Constraint(least, solver.infinity())
        for column, factor in zip(of, factors, strict=True):
            constraint.SetCoefficient(columns[column], factor)
    return columns
