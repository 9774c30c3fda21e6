"""Renderers of reports and plans: text, terminal charts, SVG, PNG, CSV, notebook HTML.

Imports app.atomic_files, app.errors, graph and planner. Start with text.py.

text.py: figures as text; axes.py ──▶ svg.py, terminal_chart.py; plan/: charts of a stored plan
"""
