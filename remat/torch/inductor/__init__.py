"""Plans that Inductor follows: what the forward pass saves is ours, order and fusion are Inductor's.

May import torch, the planner and the modules of remat.torch. Start with saved_sets.py; the private names of Inductor are
in lowering.py.
"""
