"""Eviction planners: run the order within a memory limit, and evict buffers where one more does not fit.

May import `planner.algorithms.greedy`, `planner.bounds` and `planner.problem`. Start reading at `planner.py`, then
`runs.py`.
"""
