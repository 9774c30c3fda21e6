"""Gradient rules of nodes with bodies (Call, If, Loop, Scan): each splits a body into a forward and a backward body.

May import what graph.autodiff may. Start at `registry.py`, then `backward_body.py`.
"""
