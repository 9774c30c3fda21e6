"""Report: the document of a solve (schema, metrics, warnings), verification of saved reports, regression check.

May import graph and all planner packages except algorithms, body_plans, layout, pipeline and search.
Start at `report.py`, then `saved_report.py`.
"""
