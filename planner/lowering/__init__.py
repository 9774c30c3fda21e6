"""Lowering: from a graph to the columns of a `Problem`, and from a plan back to a rewritten graph.

May import graph, `planner.problem` and `planner.request`.
Start at `tasks_and_buffers.py`, then `lower.py` and `realize.py`.
"""
