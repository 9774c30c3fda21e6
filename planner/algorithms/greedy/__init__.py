"""Greedy planner: close idle gaps by price until the budget is met.

May import `planner.bounds` and `planner.problem`. Start reading at `planner.py`, then `gaps.py`.
"""
