"""Pairs of `lax.scan`, forward and backward: their bodies as tasks, their nodes in the document, and their runs.

May import jax, graph, the planner, `remat.steps` and `remat.jax.step`. Start with scans.py, then runs.py.
"""
