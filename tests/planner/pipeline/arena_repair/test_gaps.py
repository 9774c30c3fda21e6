"""Large graphs: gaps are closed in the plan before walks."""

from __future__ import annotations

import threading
import time

import pytest

from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair import attempts as module
from planner.pipeline.arena_repair import gaps, repair, repair_arena
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.descent import Descent
from planner.problem.plan import Plan
from tests.planner.pipeline.arena_repair.plans import formulated, searched_plan

pytestmark = pytest.mark.usefixtures("bounds")


def test_by_the_clock_gaps_are_closed_in_the_plan_of_a_large_graph_until_its_addresses_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = formulated(budget="70%", search_seconds=60)
    plan = searched_plan(asked)
    for name in ("fill_last_unit", "walk_on"):
        monkeypatch.setattr(repair, name, lambda *_: None)
    monkeypatch.setattr(Descent, "run", lambda *_, **__: None)
    monkeypatch.setattr(Attempts, "packed", lambda _, plan: plan)
    monkeypatch.setattr(repair, "recompute_flat", lambda *_: False)

    def repaired() -> Plan:
        return repair_arena(asked, plan, "fast", "auto", threading.Event(), time.monotonic() + 60).plan

    assert asked.bytes_over_budget(repaired())
    monkeypatch.setattr(module, "LOWERED_TASKS", 1)
    charges, lowered = list[int](), gaps.lowered

    def counted(attempts: Attempts, charged: Formulation, start: Plan) -> Plan:
        charges.append(int(charged.lowered.problem.workspace.min()))
        return lowered(attempts, charged, start)

    monkeypatch.setattr(gaps, "lowered", counted)
    best = repaired()
    assert not asked.bytes_over_budget(best) and best.score.cost > plan.score.cost
    assert 1 < len(charges) <= gaps.MAX_LOWERED and charges[-1] < max(charges)  # bisected back
