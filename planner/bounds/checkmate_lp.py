"""Checkmate's relaxation: least time of any sequence whose first runs keep the given order, within a budget.

The linear programme of the frontier form in `stages.py`, with rows for bytes at first runs only. GLOP gives each
row a price in ticks, 0 at least; whatever the prices, with y the price of row a·x ≥ l,

    Σ ticks · x  ≥  Σ y·l  +  Σ over columns of min(0, ticks − Σ y·a)          for every x between 0 and 1

which is added up in whole numbers here, so nothing of the proof rests on floats. Valid for the given order alone,
for any number of repeats in any order between two first runs.

Source: Jain et al., "Checkmate", MLSys 2020, section 4.7; weak duality as in Geoffrion, "Lagrangean relaxation for
integer programming", 1974.
"""

from __future__ import annotations

import numpy as np

from planner.bounds.solvers.checkmate_model import MAX_TICKS, CheckmateModel, LinearModel
from planner.bounds.solvers.linear import dual_values
from planner.problem import Problem
from planner.problem.recompute import base_order

#: Tasks, and repeats in the programme, up to which it is solved.
MAX_TASKS, MAX_REPEATS = 400, 20_000
#: Parts of a tick that prices are told in.
TICK_SCALE = 1 << 40


def bound(problem: Problem, budget_bytes: int, strict_phases: bool, most_ticks: int = MAX_TICKS) -> int:
    """Ticks that repeats take at least; `most_ticks` where nothing takes less. 0 where it says nothing.

    It says nothing about problems with optional tasks, or too large ones. What is known to be possible
    as `most_ticks` makes the programme smaller and the bound better.
    """
    if problem.optional.any() or not 0 < problem.tasks <= MAX_TASKS or most_ticks <= 0:
        return 0
    stages = CheckmateModel(problem, base_order(problem, strict_phases), budget_bytes, most_ticks)
    if not 0 < stages.repeats <= MAX_REPEATS:
        return 0
    rows = stages.build()
    price = dual_values(rows)
    if most_ticks < MAX_TICKS and not price.any():  # nothing takes less, but there is no price that shows it
        return bound(problem, budget_bytes, strict_phases)
    return max(0, min(most_ticks, certified_ticks(rows, price)))


def certified_ticks(rows: LinearModel, price: np.ndarray) -> int:
    """The ticks that prices prove, whatever they are; rounded up, as ticks are whole."""
    whole = [round(each * TICK_SCALE) for each in price.tolist()]
    left = [ticks * TICK_SCALE for ticks in rows.ticks]
    total = 0
    for (columns, factors), least, y in zip(rows.terms, rows.least, whole, strict=True):
        if y > 0:
            total += y * least
            for column, factor in zip(columns, factors, strict=True):
                left[column] -= y * factor
    for reduced, low, high in zip(left, rows.low, rows.high, strict=True):
        total += reduced * (low if reduced > 0 else high)
    return -(-total // TICK_SCALE)
