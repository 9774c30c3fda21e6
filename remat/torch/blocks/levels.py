"""Plans of a block that hold less and less between its passes.

The peak of a model of many blocks is near what all of them hold between their passes, and what one needs while it runs.
So plans of a block are searched for several amounts held, each with at most the peak of the block without a plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.pipeline.progress import Outcome
from planner.request.plan_request import parse_request
from remat.facade import solved, wire_fields
from remat.report import Report
from remat.torch.step.document import TANGENTS
from remat.torch.step.planning import request_fields, saved_plan
from remat.torch.step.recording import Step

#: What plans hold at most: shares of the way from the least that a plan holds to what the block holds without a plan.
SHARES = (0.75, 0.5, 0.35, 0.2, 0.1, 0.0)


@dataclass(frozen=True, eq=False)
class Level:
    """A plan of a block, the bytes live between its passes, and its extra time in seconds."""

    plan: Mapping[str, Any]
    held_bytes: int
    extra_seconds: float


def levels_of(step: Step, request: Mapping[str, Any], kinds: int = 1) -> list[Level]:
    """Plans of a block, from its order as recorded on: each holds less than the one before, a byte at a higher price.

    Parameters:
        step: The step of the block.
        request: Request fields for every plan; `search_seconds` are for all of them together.
        kinds: How many kinds of blocks share these seconds.

    Raises BadInput.
    """
    fields = wire_fields(request_fields(step, {**request, "returns": ("plan", "timeline")}))
    if "iterations" not in fields:
        fields["search_seconds"] = parse_request(dict(fields)).search_seconds / (1 + len(SHARES)) / kinds
    document = json.dumps(step.document).encode()
    whole = solved(document, fields | {"planner": "as_given"})
    held, peak = _held_bytes(whole), int(whole.report["baseline"]["peak_bytes"])

    def level(found: Outcome) -> Level:
        report = Report(found)
        return Level(saved_plan(report), _held_bytes(found), report.seconds - report.baseline_seconds)

    def holding(most: int | None) -> Level:
        """The fastest plan found that holds at most so many bytes; with None, one that holds the least."""
        beside, budget = (peak, 0) if most is None else (peak - most, f"{peak}B")
        searched = solved(_with_bytes_between(step.document, beside), fields | {"budget": budget})
        return level(solved(document, fields | {"budget": f"{peak}B"}, given=searched.plan.candidate))

    least = holding(None).held_bytes
    levels = [holding(least + int(share * (held - least))) for share in SHARES if least < held]
    return hull([level(whole), *(each for each in levels if each.plan["plan"]["peak_bytes"] <= peak)])


def _with_bytes_between(document: Mapping[str, Any], nbytes: int) -> bytes:
    """The step as JSON, with so many bytes in use between its passes beside those that it holds."""
    cost = {"seconds": 0.0, "workspace_bytes": nbytes}
    nodes = [node | {"cost": cost} if node["name"] == TANGENTS else node for node in document["nodes"]]
    return json.dumps({**document, "nodes": nodes}).encode()


def _held_bytes(outcome: Outcome) -> int:
    """Bytes live between the passes."""
    names = [name for name, _ in outcome.report["plan"]["order"]]
    return int(outcome.report["timeline"]["step_bytes"][names.index(TANGENTS)])


def hull(levels: Sequence[Level]) -> list[Level]:
    """The levels on the lower convex hull of time over bytes, most bytes first; the fastest level begins it."""
    kept: list[Level] = []
    for level in sorted(levels, key=lambda each: (each.extra_seconds, each.held_bytes)):
        if kept and level.held_bytes >= kept[-1].held_bytes:
            continue
        while len(kept) > 1 and price(kept[-2], level) <= price(kept[-2], kept[-1]):
            kept.pop()
        kept.append(level)
    return kept


def price(before: Level, after: Level) -> float:
    """Extra seconds of each byte that a level holds less than another one."""
    return (after.extra_seconds - before.extra_seconds) / (before.held_bytes - after.held_bytes)
