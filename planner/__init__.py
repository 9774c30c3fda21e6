"""Memory plans: which tasks run when, which are recomputed, and where every buffer lies.

Imports `graph` in advice, body_plans, formulation, lowering, pipeline and report only; every algorithm sees the numpy
columns of `problem`. Start at `pipeline/solve.py`, which is the data path top to bottom, then `problem/columns.py`.
"""
