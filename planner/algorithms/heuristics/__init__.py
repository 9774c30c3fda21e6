"""Heuristic planners from the literature and other frameworks: mirroring, DTR, PyTorch min-cut, step cuts.

May import `planner.bounds`, `planner.problem` and other algorithms. Start reading at `as_given.py`.
"""
