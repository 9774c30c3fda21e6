"""Independent checks: legal orders, replay of a plan, layouts, and the stand-alone verifier of bound certificates.

May import `planner.problem` and `planner.errors` only; `certificate.py` imports the standard library only.
Start reading at `checker.py`.
"""

from __future__ import annotations

from planner.verify.checker import check, check_layout, check_packing
from planner.verify.order_rules import DisplayNames, check_order

__all__ = ["DisplayNames", "check", "check_layout", "check_order", "check_packing"]
