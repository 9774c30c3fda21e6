"""OR-Tools adapter for `LinearModel`: 0/1 solutions by SCIP."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.bounds.solvers.checkmate_model import LinearModel
from planner.problem.monitor import Monitor

#: Seconds between two polls of the monitor, and the minimum time limit of SCIP.
POLL_SECONDS, MIN_SECONDS = 0.02, 0.05
#: Memory limit of SCIP, in megabytes.
MAX_MEGABYTES = 1_000


@dataclass(frozen=True, eq=False, slots=True)
class LinearSolution:
    """Result of `solve_integer`."""

    values: np.ndarray | None  # float64[columns]; None: no solution found
    ended: bool  # `values` are proven optimal, or the model is proven infeasible


def solve_integer(rows: LinearModel, monitor: Monitor, *, share: float = 1.0, parameters: str = "") -> LinearSolution:
    """The optimal 0/1 values, or the best found in a share of the rest of a search; a node counts as an iteration.

    `parameters` are further ones of SCIP, one a line. By the clock it ends with the search, as once a bound proves the
    best order. Two runs may end with different values of the same cost, or after a limit with others.
    Raises SearchCancelled if cancelled while the model is being built.
    """
    from ortools.linear_solver import pywraplp  # heavy: imported where a model is solved

    part = monitor.child(monitor.judge, share)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    columns = _filled(solver, rows, monitor.check)
    # Probing does not pay off on these models.
    parameters += f"limits/memory = {MAX_MEGABYTES}\npropagating/probing/maxprerounds = 0\n"
    if part.iterations is None:
        solver.SetTimeLimit(int(1000 * max(MIN_SECONDS, part.seconds)))
    else:
        parameters += f"limits/nodes = {max(1, part.iterations)}\n"
    solver.SetSolverSpecificParametersAsString(parameters)
    status: list[int] = []
    # In a thread of its own, so that cancellation can interrupt SCIP.
    thread = threading.Thread(target=lambda: status.append(solver.Solve()), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        if monitor.cancelled or (part.iterations is None and monitor.should_stop()):
            solver.InterruptSolve()
    monitor.calls += solver.nodes()
    found = status[0] in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    ended = status[0] in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.INFEASIBLE)
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
