"""One training step: recorded as a joint graph, written as a document, measured, planned, and divided into two passes.

May import torch, the planner and remat's own functions. Start with joint.py. aot.py has the private names of PyTorch.
"""
