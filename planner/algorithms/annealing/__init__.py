"""Simulated annealing of orders and recomputation on an editable timeline.

May import `planner.problem` and `planner.algorithms.greedy`. Start reading at `parallel.py`, then `search.py`.
"""
