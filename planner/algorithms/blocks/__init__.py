"""Block planner: plans of each distinct block of a training step, chained over all blocks by dynamic programming.

May import `planner.bounds`, `planner.problem` and `planner.algorithms.greedy`. Start reading at `planner.py`.
"""
