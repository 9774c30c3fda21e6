"""Charges: bytes added to the workspace of tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.pipeline.arena_repair.charges import with_extra_workspace
from planner.problem import Choices, Csr
from planner.problem.alternatives import resolve_choices
from tests.planner.drawn import drawn

pytestmark = pytest.mark.usefixtures("bounds")


def test_a_charge_holds_under_every_alternative() -> None:
    problem = drawn("a>b b>c")
    table = Choices(
        np.array([0, 0]),
        np.array([0]),
        Csr.of([[], [1]]),
        np.array([3]),
        np.array([7]),
        Csr.of([[0]]),
        Csr.of([[], []]),
        np.zeros(0, np.int64),
    )
    problem = replace(problem, choices=table)
    more = np.array([5, 6, 0])
    for vector in ((0,), (1,)):
        difference = (
            resolve_choices(with_extra_workspace(problem, more), vector).workspace
            - resolve_choices(problem, vector).workspace
        )
        assert difference.tolist() == more.tolist()
