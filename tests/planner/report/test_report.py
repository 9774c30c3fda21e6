"""Reports: warnings about an arena over the budget, and about a caching allocator that runs out of memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.generators import transformer
from planner.formulation.formulation import Formulation
from planner.pipeline import arena_repair
from planner.pipeline import solve as pipeline
from planner.report import saved_report
from planner.request.plan_request import parse_request

pytestmark = pytest.mark.usefixtures("bounds")


def warnings() -> list[str]:
    request = parse_request({"budget": "60%", "iterations": 20, "planner": "greedy", "execute": "no"})
    document = json.dumps(transformer(60)).encode()
    found: list[str] = pipeline.solve(document, request).report["warnings"]
    return [warning for warning in found if "fragmentation" in warning]


def test_an_arena_over_the_budget_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings() == []
    repair = arena_repair.repair_arena

    def loose(*given: Any) -> arena_repair.Repaired:
        """The plan with an arena that no repair could fit into the budget."""
        repaired = repair(*given)
        assert repaired.plan.arena_bytes is not None
        return replace(repaired, plan=replace(repaired.plan, arena_bytes=repaired.plan.arena_bytes * 3 // 2))

    monkeypatch.setattr(arena_repair, "repair_arena", loose)
    monkeypatch.setattr(Formulation, "check", lambda *_: None)
    (warning,) = warnings()
    assert "the arena exceeds it by" in warning and "more time" in warning


def torch_report(**fields: object) -> dict[str, Any]:
    request = parse_request(
        {"budget": "60%", "iterations": 20, "planner": "greedy", "execute": "no", "runtime": "torch-eager", **fields}
    )
    report: dict[str, Any] = pipeline.solve(json.dumps(transformer(60)).encode(), request).report
    return report


def test_a_plan_for_torch_eager_reports_what_its_allocator_reserves() -> None:
    report = torch_report()
    for side, peak in (("plan", report["plan"]["peak_bytes"]), ("baseline", report["baseline"]["peak_bytes"])):
        reserved = report["allocator"][side]
        assert peak <= reserved["allocated_bytes"] <= reserved["reserved_bytes"]
        assert peak <= reserved["first_fit_bytes"]
        assert reserved["allocated_bytes"] <= reserved["reserved_bytes"]
        assert reserved["runs"]
    assert not [text for text in report["warnings"] if "caching allocator" in text]
    assert "allocator" not in torch_report(runtime="arena")


def test_a_plan_whose_allocator_runs_out_of_memory_is_a_warning() -> None:
    peak = torch_report()["plan"]["peak_bytes"]
    device = {"like": "a100-80gb", "memory_bytes": peak}
    report = torch_report(budget=peak, device=device)
    assert report["fits"] and not report["allocator"]["plan"]["runs"]
    (warning,) = [text for text in report["warnings"] if "caching allocator" in text]
    assert "expandable_segments:True" in warning


def test_residents_of_a_graph_without_tasks_are_needed() -> None:
    weight = {"name": "w", "bytes": 5000, "role": "parameter"}
    document = {"format": "remat/1", "name": "w", "values": [weight], "nodes": [], "outputs": ["w"]}
    device = {"like": "cpu-reference", "memory_bytes": 4000}
    asked = {"budget": 1, "device": device, "iterations": 1, "return": ["plan", "source"]}
    report = pipeline.solve(json.dumps(document).encode(), parse_request(asked)).report
    assert report["plan"]["needed_bytes"] == 5000
    assert not report["plan"]["within_budget"]
    assert not report["fits"]
    assert saved_report.verify(report)["valid"]
