"""Pipeline: the front door of the planner. Solve, trade-off curves, fits, and plans for several sets of input shapes.

May import graph and all planner packages except body_plans, bounds, layout and verify.
Start at `solve.py`, the data path:
load → training step → formulate → bound → search → place → check → realize → execute → report
"""
