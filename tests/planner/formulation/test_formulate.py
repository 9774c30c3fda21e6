"""Formulate: `keep` and `recompute` of single values, and the warnings and faults about them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from graph.formats.readers import load
from planner.errors import BadRequest
from planner.formulation import goal_of_request
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.problem import FORBID, PREFER
from planner.request.plan_request import parse_request
from tests.app.conftest import chain


def asked(document: dict[str, Any], **fields: Any) -> Formulation:
    return formulate(load(json.dumps(document).encode()), parse_request({"budget": "80%", **fields}))


def test_keep_forbids_recomputation_and_recompute_prefers_it() -> None:
    said = asked(chain(4), keep=["h1"], recompute=["h2"]).lowered.problem.recompute.tolist()
    assert (said.count(FORBID), said.count(PREFER)) == (1, 1)


def test_all_faults_of_recompute_are_reported_together() -> None:
    with pytest.raises(BadRequest) as told:
        asked(chain(4), keep=["h1", "x"], recompute=["x", "h1", "h2"])
    found = [(finding.code, finding.found.split(",")[0]) for finding in told.value.findings]
    assert found == [("never_made", "'x'"), ("conflicting_values", "'h1'")]


def test_a_node_that_runs_once_is_a_warning() -> None:
    document = chain(4)
    next(node for node in document["nodes"] if "h2" in node["outputs"])["recompute"] = "never"
    (warning,) = asked(document, recompute=["h2", "h1"]).warnings
    assert warning.endswith(": h2")
    assert asked(document, recompute=["h1"]).warnings == ()


@pytest.mark.parametrize(("took", "left"), [(7, 33), (70, 20)])
def test_the_search_for_the_smallest_peak_takes_its_time_from_that_of_the_goal(
    took: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def smallest(*_: Any) -> int:
        nonlocal now
        now += took
        return 0

    now, seconds = 0, {"search_seconds": 40}
    monkeypatch.setattr(goal_of_request, "_smallest_bytes", smallest)
    monkeypatch.setattr(goal_of_request, "time", SimpleNamespace(monotonic=lambda: now))
    assert asked(chain(4), fraction_of="reducible", **seconds).goal.seconds == left
    assert asked(chain(4), fraction_of="reducible", iterations=3, **seconds).goal.seconds == 40
    assert asked(chain(4), fraction_of="reducible", budget="1KiB", **seconds).goal.seconds == 40
