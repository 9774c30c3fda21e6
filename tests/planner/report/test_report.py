"""Reports: warning about an arena over the budget."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.generators import transformer
from planner.formulation.formulation import Formulation
from planner.pipeline import solve as pipeline
from planner.problem.plan import Plan
from planner.request.plan_request import parse_request

pytestmark = pytest.mark.usefixtures("bounds")


def warnings() -> list[str]:
    request = parse_request({"budget": "60%", "iterations": 20, "planner": "greedy", "execute": "no"})
    document = json.dumps(transformer(60)).encode()
    found: list[str] = pipeline.solve(document, request).report["warnings"]
    return [warning for warning in found if "fragmentation" in warning]


def test_an_arena_over_the_budget_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings() == []
    place = Formulation.placed

    def loose(self: Formulation, plan: Plan, layout: str, *cancel: object) -> Plan:
        good = place(self, plan, layout)
        assert good.arena_bytes is not None
        return replace(good, arena_bytes=good.arena_bytes * 3 // 2)

    monkeypatch.setattr(Formulation, "placed", loose)
    monkeypatch.setattr(Formulation, "check", lambda *_: None)
    (warning,) = warnings()
    assert "exceeds the budget" in warning and "layout to `best`" in warning
