"""Plans that Inductor follows: what the forward pass saves is ours, order and fusion are Inductor's.

May import torch, the planner and remat.torch.step. Start with saved_sets.py; lowering.py has the private names of
Inductor.
"""
