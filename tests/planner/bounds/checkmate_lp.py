"""Checkmate LP relaxation, which other bounds are compared with: least time of orders within a budget whose first
runs keep the given order.

The linear program of `solvers.checkmate_model`, with memory rows at first runs only. GLOP returns a multiplier y ≥ 0
for each row a·x ≥ l, in ticks. For any multipliers and all 0 ≤ x ≤ 1, by weak duality,

    Σ ticks · x  ≥  Σ y·l  +  Σ over columns of min(0, ticks − Σ y·a)

The right side is computed in integers, so the proof does not depend on floating point. Valid for the given order of
first runs only, with any number of recomputations in any order between two first runs.

Source: Jain et al., "Checkmate", MLSys 2020, section 4.7; weak duality as in Geoffrion, "Lagrangean relaxation for
integer programming", 1974.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from planner.bounds.solvers.checkmate_model import MAX_TICKS, CheckmateModel, LinearModel
from planner.problem import Problem
from planner.problem.recompute import base_order

#: Limits on the linear program: tasks, and recomputations in it.
MAX_TASKS, MAX_REPEATS = 400, 20_000
#: Limit of GLOP's deterministic time, per row.
SECONDS_PER_ROW = 1e-4
#: Parts per tick, the unit of multipliers.
TICK_SCALE = 1 << 40


def bound(problem: Problem, budget_bytes: int, strict_phases: bool, most_ticks: int = MAX_TICKS) -> int:
    """Lower bound on the ticks of recomputation, at most `most_ticks`; 0 if the bound is trivial.

    0 for problems with optional tasks or above MAX_TASKS and MAX_REPEATS. A known solution with `most_ticks` makes the
    program smaller and the bound tighter.
    """
    if problem.optional.any() or not 0 < problem.tasks <= MAX_TASKS or most_ticks <= 0:
        return 0
    checkmate = CheckmateModel(problem, base_order(problem, strict_phases), budget_bytes, most_ticks)
    if not 0 < checkmate.repeats <= MAX_REPEATS:
        return 0
    rows = checkmate.build()
    price = dual_values(rows)
    if most_ticks < MAX_TICKS and not price.any():  # `most_ticks` is optimal, but no multiplier proves it
        return bound(problem, budget_bytes, strict_phases)
    return max(0, min(most_ticks, certified_ticks(rows, price)))


def certified_ticks(rows: LinearModel, price: np.ndarray) -> int:
    """The ticks that the multipliers `price` prove, for any multipliers; rounded up to whole ticks."""
    multipliers = [round(each * TICK_SCALE) for each in price.tolist()]
    reduced_costs = [ticks * TICK_SCALE for ticks in rows.ticks]
    total = 0
    for (columns, factors), least, y in zip(rows.terms, rows.least, multipliers, strict=True):
        if y > 0:
            total += y * least
            for column, factor in zip(columns, factors, strict=True):
                reduced_costs[column] -= y * factor
    for reduced, low, high in zip(reduced_costs, rows.low, rows.high, strict=True):
        total += reduced * (low if reduced > 0 else high)
    return -(-total // TICK_SCALE)


def dual_values(rows: LinearModel) -> np.ndarray:
    """float64[rows]: dual value of each row in ticks, at least 0; all 0 if GLOP did not reach the optimum."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    columns, objective = (
        [solver.NumVar(*ends, "") for ends in zip(rows.low, rows.high, strict=True)],
        solver.Objective(),
    )
    for column, ticks in zip(columns, rows.ticks, strict=True):
        objective.SetCoefficient(column, ticks)
    constraints = []
    for (of, factors), least in zip(rows.terms, rows.least, strict=True):
        constraints.append(solver.Constraint(least, solver.infinity()))
        for column, factor in zip(of, factors, strict=True):
            constraints[-1].SetCoefficient(columns[column], factor)
    solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {SECONDS_PER_ROW * (len(rows.least) + 1)}")
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return np.zeros(len(constraints))
    return np.maximum(0.0, np.array([constraint.DualValue() for constraint in constraints]))
