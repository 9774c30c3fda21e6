"""Caffe2 conventions for callers that need them: gradients, scopes, version names, devices, recurrent nets.

May import `graph.autodiff`, `graph.recurrent`, `graph.loop_remat`, `graph.ssa` and `graph.transforms`.
Start with `gradients.py` (`AddGradientOperators`) and `scopes.py` (Do and its bindings).
"""
