"""Charts of a stored plan: columns for the browser, SVG files, preview of a large plan.

Imports app.render, app.errors, graph and planner. Start with columns.py.
"""
