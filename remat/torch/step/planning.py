"""Plans of recorded steps: searched here, or read from a file and checked against the step at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from planner.request.plan_request import parse_request
from remat.facade import plan
from remat.report import Report
from remat.steps import planning
from remat.steps.planning import PlanSource, fingerprint, read, saved_plan

__all__ = [
    "PlanSource",
    "Planned",
    "fingerprint",
    "order_for",
    "plan_step",
    "read",
    "request_fields",
    "saved_plan",
    "with_reserve",
]


class Planned(Protocol):
    """What a plan is made for: a document and the device that runs it."""

    @property
    def document(self) -> dict[str, Any]: ...

    @property
    def device(self) -> torch.device: ...


def plan_step(step: Planned, budget: str | float | int | None, request: Mapping[str, Any]) -> Report:
    """Plan a recorded step for the allocator and the device at hand. Raises BadInput."""
    return plan(json.dumps(step.document).encode(), budget, **request_fields(step, request))


def request_fields(step: Planned, request: Mapping[str, Any]) -> dict[str, Any]:
    """Request fields with the allocator and the device at hand, unless `request` names others."""
    on_cpu = step.device.type == "cpu"
    return {
        "runtime": "torch-eager-cpu" if on_cpu else "torch-eager",
        "execute": "no",
        "layout": "none",
        **({"device": "cpu-reference"} if on_cpu else {}),
        **request,
    }


def with_reserve(request: Mapping[str, Any], nbytes: int) -> dict[str, Any]:
    """Request fields that reserve so many bytes more. Raises BadInput."""
    if not nbytes:
        return dict(request)
    given = parse_request({"reserve": request.get("reserve", 0)}).reserve
    return {**request, "reserve": given + nbytes}


def order_for(step: Planned, given: PlanSource) -> list[tuple[str, int]]:
    """The order of a plan made before, as `remat.steps.planning.order_for`."""
    return planning.order_for(step.document, given)
