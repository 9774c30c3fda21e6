"""Proven bound: lower bounds of a formulation, before, beside and after a search, and those that saved reports claim.

May import planner.bounds, planner.problem, planner.verify and the modules of planner.formulation.
Start at `bound.py`, then `methods.py`.
"""

from planner.formulation.proven_bound.bound import certified, first_of_set_arcs, with_lower_bound, with_multi_step_bound
from planner.formulation.proven_bound.claimed import with_claims
from planner.formulation.proven_bound.methods import tightening_bounds

__all__ = [
    "certified",
    "first_of_set_arcs",
    "tightening_bounds",
    "with_claims",
    "with_lower_bound",
    "with_multi_step_bound",
]
