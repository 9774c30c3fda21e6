"""Models for OR-Tools solvers and thin adapters to them; OR-Tools is imported where a model is solved.

May import `planner.problem`, `graph.cancellation` and, lazily, OR-Tools.
Start reading at `max_flow.py`, then `checkmate_model.py` and `linear.py`.
"""
