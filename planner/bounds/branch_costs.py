"""Pseudocosts: what a branch on a variable is expected to cost, from what earlier branches on it have cost.

    x = 0.25 ─┬─ x = 0: 3 ticks more     12 ticks per unit down
              └─ x = 1: 6 ticks more      8 ticks per unit up         x = 0.5 is expected to cost 6 and 4

A variable without branches so far costs as much per unit, in proportion to its bytes or ticks, as the others of its
kind on average. The product of both sides decides.

Source: Benichou et al., "Experiments in mixed-integer linear programming", 1971; the product is that of Achterberg,
Koch and Martin, "Branching rules revisited", 2005.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.bounds.step_lp import Variable
from planner.bounds.step_network import StepModel

# Order in which kinds of variables are branched on; those of other kinds are not.
KINDS = ("L", "D", "A")
# Least expected cost of a side, as a share of the largest: a side that costs nothing does not hide the other.
MIN_SHARE = 1e-6


class BranchCosts:
    """Costs of branches on variables, in ticks per unit."""

    def __init__(self, model: StepModel):
        self._model = model
        self._of: dict[tuple[Variable, int], tuple[float, int]] = {}  # (variable, side) -> (sum of costs, branches)
        self._sum = {(kind, side): (0.0, 0.0) for kind in KINDS for side in (0, 1)}  # (costs per unit, weights)

    def learn(self, variable: Variable, value: float, side: int, ticks: float) -> None:
        """Note that the branch of a `variable` to 0 or 1 (`side`) from `value` raised the bound by so many ticks."""
        cost = max(0.0, ticks) / (value if side == 0 else 1 - value)
        spent, branches = self._of.get((variable, side), (0.0, 0))
        self._of[variable, side] = spent + cost, branches + 1
        costs, weights = self._sum[variable[0], side]
        self._sum[variable[0], side] = costs + cost, weights + self._weight(variable)

    def best(self, between: Mapping[Variable, float]) -> Variable | None:
        """The variable to branch on, of those with values `between` 0 and 1: of the first kind there is; None: none."""
        for kind in KINDS:
            if of_kind := [name for name in between if name[0] == kind]:
                sides = {name: self._expected(name, between[name]) for name in of_kind}
                least = MIN_SHARE * max(max(costs) for costs in sides.values())
                return max(
                    of_kind, key=lambda name: (max(least, sides[name][0]) * max(least, sides[name][1]), name[1:])
                )
        return None

    def _weight(self, variable: Variable) -> float:
        of = self._model.size if variable[0] == "L" else self._model.problem.cost
        return max(1.0, float(of[variable[-1]]))

    def _expected(self, variable: Variable, value: float) -> tuple[float, float]:
        """Ticks by which the sides 0 and 1 are expected to raise the bound."""
        return self._per_unit(variable, 0) * value, self._per_unit(variable, 1) * (1 - value)

    def _per_unit(self, variable: Variable, side: int) -> float:
        spent, branches = self._of.get((variable, side), (0.0, 0))
        if branches:
            return spent / branches
        costs, weights = self._sum[variable[0], side]
        return (costs / weights if weights else 1.0) * self._weight(variable)
