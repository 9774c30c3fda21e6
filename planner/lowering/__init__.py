"""Lowering: from a graph to the columns of a `Problem`, and from a plan back to a rewritten graph.

May import graph, `planner.problem` and `planner.request`. Start at `lower.py`, then `realize.py`.
"""
