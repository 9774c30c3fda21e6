"""Descents: which tasks are charged, and how much."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.descent import TASK_CHARGES, Descent, quick_plan
from tests.planner.pipeline.arena_repair.plans import as_given, question, stacked

pytestmark = pytest.mark.usefixtures("bounds")


def test_tasks_running_during_the_excess_are_charged_before_all_tasks() -> None:
    asked = question()
    plan, moved = stacked(asked, as_given(asked))
    attempts = Attempts(asked, "auto", threading.Event(), 0.0)
    charges = list(Descent(attempts, plan, quick_plan).charges(uniform_first=False))
    during = list(range(plan.lifetimes.start[moved], plan.lifetimes.stop[moved]))
    for charge in charges[:TASK_CHARGES]:
        assert np.flatnonzero(charge).tolist() == during
    excess = asked.bytes_over_budget(plan)
    assert [set(charge.tolist()) for charge in charges[TASK_CHARGES:]] == [
        {excess},
        {2 * excess},
        {4 * excess},  # the plan has no slack
    ]
