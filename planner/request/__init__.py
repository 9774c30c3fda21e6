"""Request: wire fields parsed into `Request`, `CurveRequest` and `FitRequest`; budgets and target runtimes.

May import `planner.algorithms` (the names of planners) and `planner.errors`, and nothing of graph.
Start at `plan_request.py`.
"""
