"""Validation of graphs: `check` raises BadGraph with every violated rule.

May import ir, analysis, ops.control_flow, errors and limits. Start at `check.py`.
"""
