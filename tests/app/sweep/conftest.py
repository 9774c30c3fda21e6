"""A folder of small models, and rows and reports of plans that nobody made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import chain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models and something else."""
    place = tmp_path / "models"
    place.mkdir()
    for name in ("one", "two"):
        (place / f"{name}.json").write_text(json.dumps(chain() | {"name": name}))
    (place / "notes.md").write_text("none")
    return place


def report(name: str = "one", **plan: Any) -> dict[str, Any]:
    """A report as far as tables and pages look at it."""
    made = {
        "status": "found",
        "budget_bytes": 600,
        "peak_bytes": 600,
        "arena_bytes": 640,
        "within_budget": True,
        "saved_bytes": 400,
        "saved": 0.4,
        "seconds": 1.1,
        "overhead": 0.1,
        "bound": {"overhead": 0.05, "peak_bytes": 500},
        "gap": 0.05,
        "planner": "greedy",
        "reproducible": True,
        "stopped": False,
        "recomputed": ["relu"],
        "smallest_budget_bytes": None,
        "smallest_budget_proven": False,
    }
    return {
        "model": {"name": name},
        "device": "a100-80gb",
        "fits": True,
        "warnings": [],
        "baseline": {"peak_bytes": 1000, "seconds": 1.0},
        "plan": made | plan,
        "executed": {"status": "not executed"},
        "timeline": {"step_bytes": [1, 600], "baseline_step_bytes": [1, 1000]},
    }


def answer(**plan: Any) -> dict[str, Any]:
    """What an engine gives back."""
    return {"report": json.dumps(report(**plan)).encode(), "stopped": False, "seconds": 0.5}
