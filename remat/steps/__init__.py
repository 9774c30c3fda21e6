"""Shared by `remat.torch` and `remat.jax`: errors of recorded steps, and plans from files checked against a step.

May import the planner and remat's own functions, no framework. Start with planning.py.
"""
