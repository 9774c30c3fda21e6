"""Search: the portfolio of planners, lexicographic goals, the choice of alternatives, and time slices.

May import `planner.algorithms`, `planner.bounds` and `planner.problem`.
Start reading at `lexicographic.py`, then `portfolio.py`.
"""
