"""Plans of whole modules: which submodules a PyTorch model wraps in `torch.utils.checkpoint`, and what each keeps.

May import graph.ir, planner.errors, planner.formulation, planner.lowering, planner.problem and planner.request.

eager.py: a captured step as PyTorch runs it op by op ──▶ checkpointed.py: the same step with some modules wrapped
──▶ candidates.py, choose.py: which modules to wrap ──▶ wraps.py: the result ──▶ patch.py: as Python code
"""
