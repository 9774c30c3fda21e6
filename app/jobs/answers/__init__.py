"""Reuse of stored search results for graphs that differ in names only.

Imports app.errors, app.store and graph. Start with equivalent_graphs.py.
"""
