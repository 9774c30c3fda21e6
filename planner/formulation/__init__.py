"""Formulation: a lowered graph with goal, byte accounting and lower bound; metrics, offloading and execution check.

May import graph and all planner packages except advice, algorithms, report and pipeline.
Start at `formulate.py`, then `formulation.py`.
"""
