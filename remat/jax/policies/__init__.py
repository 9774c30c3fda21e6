"""Plans as JAX's own checkpoint policies: which named values to save, or to hold on the host, and what that costs.

May import jax, `remat.jax.step`, and of the planner its problem, formulation, requests and max-flow.

search.py: a function under policies, from naming.py (names and checkpoints in it) and saving.py (what names save)
──▶ `remat/jax/checkpointing.py`: the best one for a budget
"""
