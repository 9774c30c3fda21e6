"""Collectives run once, or are recomputed in plans that are for all ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

WHOLE, PART = 64 * 1024, 4096


def gathered_step(**fields: Any) -> bytes:
    """A weight of which a rank holds a part: gathered, read forward, and read again after the memory peaks."""
    sizes = {"part": PART, "whole": WHOLE, "x": PART, "h": PART, "wide": WHOLE, "g": PART, "grad": PART}
    roles = {"part": "parameter", "x": "input"}
    values = [{"name": n, "bytes": size, "role": roles.get(n, "activation")} for n, size in sizes.items()]
    nodes = [
        ("gather", "collective::AllGather", ["part"], "whole", "forward"),
        ("up", "Up", ["whole", "x"], "h", "forward"),
        ("widen", "Widen", ["h"], "wide", "forward"),
        ("narrow", "Narrow", ["wide"], "g", "backward"),
        ("down", "Down", ["whole", "g"], "grad", "backward"),
    ]
    rows = [
        {"name": name, "op": op, "inputs": reads, "outputs": [written], "phase": phase}
        for name, op, reads, written, phase in nodes
    ]
    rows[0] |= {"effect": "collective", "attributes": {"ranks": 16}, **fields}
    return json.dumps({"format": "remat/1", "name": "m", "values": values, "nodes": rows, "outputs": ["grad"]}).encode()


def planned(document: bytes, **fields: Any) -> dict[str, Any]:
    request = parse_request({"budget": 0, "iterations": 50, "runtime": "torch-eager", **fields})
    return solve(document, request).report


def gathers(report: dict[str, Any]) -> int:
    return sum(name == "gather" for name, _ in report["plan"]["order"])


def test_a_collective_is_recomputed_only_where_all_ranks_run_one_plan() -> None:
    once, repeated = planned(gathered_step()), planned(gathered_step(), collectives="repeated")
    assert (gathers(once), gathers(repeated)) == (1, 2)
    assert repeated["plan"]["peak_bytes"] <= once["plan"]["peak_bytes"] - WHOLE // 2
    assert once["plan"]["bound"]["peak_bytes"] <= repeated["plan"]["bound"]["peak_bytes"]
    text = "the plan recomputes collectives (1 of them, the first is gather): every rank has to run this plan"
    assert any(text in warning for warning in repeated["warnings"])
    assert not any("recomputes collectives" in warning for warning in once["warnings"])


@pytest.mark.parametrize(("fields", "runs"), [({"recompute": "never"}, 1), ({"effect": "pure"}, 2)])
def test_repeats_of_collectives_where_none_may_be_recomputed_are_said_to_be_unused(
    fields: dict[str, str], runs: int
) -> None:
    report = planned(gathered_step(**fields), collectives="repeated")
    assert gathers(report) == runs and any("collectives: not used" in warning for warning in report["warnings"])
    assert not any("recomputes collectives" in warning for warning in report["warnings"])
