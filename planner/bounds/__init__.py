"""Proven lower bounds on peak and cost, one method a file, each with a claim that `planner.verify.certificate` checks.

May import `planner.problem`, `planner.verify`, `graph.cancellation` and, lazily, OR-Tools (adapters in `solvers`).
Start reading at `largest_task.py`, then `claims.py` and `step_cut.py`.
"""
