"""Advice: worth of recomputations and checkpoints, and other techniques that lower the peak, each with a plan.

May import graph and all planner packages except body_plans, layout, lowering, report and pipeline.
Start at `advice.py`, then `techniques.py`.
"""
