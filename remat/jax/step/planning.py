"""Plans of traced steps: searched here, or read from a file and checked against the step at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remat.facade import plan
from remat.report import Report
from remat.steps import planning
from remat.steps.errors import OtherStep
from remat.steps.planning import PlanSource

__all__ = ["PlanSource", "order_for", "plan_step"]


def plan_step(document: Mapping[str, Any], budget: str | float | int | None, request: Mapping[str, Any]) -> Report:
    """Plan a traced step for the device at hand. Raises BadInput."""
    on_cpu = document["annotations"]["device"] == "cpu"
    fields = {"execute": "no", "layout": "none", **({"device": "cpu-reference"} if on_cpu else {}), **request}
    return plan(json.dumps(document).encode(), budget, **fields)


def order_for(document: Mapping[str, Any], given: PlanSource) -> list[tuple[str, int]]:
    """The order of a plan made before, as `remat.steps.planning.order_for`, of the same version of JAX."""
    saved = planning.read(given)
    made_with = (saved.get("source") or {}).get("annotations", {}).get("framework")
    own = document["annotations"]["framework"]
    if made_with is not None and made_with != own:
        raise OtherStep(f"the plan was made with {made_with}, this is {own}; plan again, or install those versions")
    return planning.order_for(document, saved)
