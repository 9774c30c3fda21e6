"""Arena repair: if the addresses of a plan exceed the budget, find a plan whose addresses fit.

May import `planner.formulation`, `planner.problem` and `planner.search`; only the pipeline imports it.
Start reading at `repair.py`, then `attempts.py`.
"""

from planner.pipeline.arena_repair.repair import RESERVED_PART, Repaired, may_follow, probable_part, repair_arena

__all__ = ["RESERVED_PART", "Repaired", "may_follow", "probable_part", "repair_arena"]
