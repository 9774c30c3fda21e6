"""Shared by `remat.torch`, `remat.jax` and `remat.ort`: errors, and plans from files checked against a step.

May import the planner and remat's own functions, no framework. Start with planning.py.
"""
