"""The report is known before the graphs are executed, and the nodes that run are counted."""

from __future__ import annotations

from typing import Any

from planner.pipeline.progress import Progress
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.graph.stopping import document

FIELDS = {"budget": "80%", "planner": "greedy", "iterations": 5}


def test_the_report_comes_before_the_execution_and_differs_in_it_alone() -> None:
    events: list[Progress | dict[str, Any]] = []
    request = parse_request(FIELDS | {"execute": "yes"})
    final = solve(document(4), request, on_progress=events.append, on_planned=events.append).report
    at = next(k for k, event in enumerate(events) if isinstance(event, dict))
    planned = events[at]
    assert isinstance(planned, dict)
    assert {event.stage for event in events[at + 1 :] if isinstance(event, Progress)} == {"execute"}
    assert "execute" not in {event.stage for event in events[:at] if isinstance(event, Progress)}
    assert (planned["executed"]["status"], final["executed"]["status"]) == ("not executed", "equal")
    assert {name for name in final if planned[name] != final[name]} == {"executed", "elapsed"}
    last = events[-1]
    assert isinstance(last, Progress) and last.nodes_run == last.nodes and last.nodes_run


def test_there_is_no_answer_before_an_execution_that_was_not_asked_for() -> None:
    told: list[dict[str, Any]] = []
    solve(document(4), parse_request(FIELDS | {"execute": "no"}), on_planned=told.append)
    assert not told


def test_a_plan_for_several_shapes_is_known_before_any_set_is_executed() -> None:
    told: list[dict[str, Any]] = []
    shapes = [{"batch": 2}, {"batch": 4}]
    request = parse_request(FIELDS | {"execute": "yes", "shapes": shapes})
    final = solve(document(4), request, on_planned=told.append).report
    (planned,) = told
    for report, status in ((planned, "not executed"), (final, "equal")):
        assert [row["executed"]["status"] for row in report["shapes"]["sets"]] == [status, status]
    assert {name for name in final if planned[name] != final[name]} == {"executed", "elapsed", "shapes"}
