"""Checkpointing planners for chains: √n segments, Revolve, rotor, and recurrent nets.

May import `planner.problem` and `planner.algorithms.greedy`. Start reading at `sqrt_segments.py`.
"""
