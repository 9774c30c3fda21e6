"""Request: the table of request fields, wire fields parsed into `Request`, `CurveRequest` and `FitRequest`, budgets,
target runtimes.

May import `planner.algorithms` (the names of planners) and `planner.errors`, and nothing of graph.
Start at `plan_request.py`, which holds the table.
"""
