"""Exact planners: Dijkstra over execution states, Checkmate's MILP by SCIP, retention intervals by CP-SAT.

May import `planner.bounds`, `planner.problem` and `planner.algorithms.greedy`. Start reading at `states.py`.
"""
