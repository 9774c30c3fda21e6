"""Reuse of stored plans for graphs that differ in names only.

Imports app.store, app.settings, the planner's report and request, and graph. Start with isomorphic_graphs.py.
"""
