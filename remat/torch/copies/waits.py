"""When a runtime waits for copies: what has ended by the start of an entry in the plan has ended when it runs.

So entries that do not overlap in the plan never overlap in a run, and bytes hold however long each takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat.steps.errors import OtherStep

Waits = Sequence[Sequence[int]]
#: What names of copies begin with, and the engine of all else; as in `planner`, without which steps are captured.
OFFLOAD, FETCH, COMPUTE = "offload:", "fetch:", "compute"


def waits_of(report: Mapping[str, Any]) -> Waits:
    """For each entry of a report's order, the copies, by their places in the order, to wait for before it starts.

    Each copy is waited for once. Empty for a plan without copies.

    Raises:
        OtherStep: The plan has copies, and its report no times of them.
    """
    if not report["plan"].get("offloaded"):
        return ()
    rows = (report.get("timeline") or {}).get("engines")
    if rows is None:
        raise OtherStep(
            "the plan copies values to the host and has no times: make it with the section `timeline` "
            '(returns=("plan", "timeline")), then save it'
        )
    running: list[int] = []
    result: list[list[int]] = []
    for place, (engine, start) in enumerate(zip(rows["engine"], rows["start"], strict=True)):
        result.append([copy for copy in running if rows["end"][copy] <= start])
        running = [copy for copy in running if rows["end"][copy] > start]
        if engine != COMPUTE:
            running.append(place)
    return result
