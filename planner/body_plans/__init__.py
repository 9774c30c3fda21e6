"""Body plans: alternatives for pairs of loop and branch bodies, which differ in the values that they save.

May import graph, `planner.algorithms`, `planner.bounds`, `planner.lowering`, `planner.problem` and `planner.request`.
Start at `body_alternatives.py`, then `frontier.py`.
"""
