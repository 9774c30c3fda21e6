"""Copies to the host and back in an order: where they fit on the link, and moves that improve a schedule.

May import `planner.problem`. Start reading at `placing.py`.
"""
