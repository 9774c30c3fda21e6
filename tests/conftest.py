"""Shared fixtures and the profile of hypothesis."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("remat", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("remat")

#: Kernels of oneDNN, and with them the scratch memory that tests measure, are the same on every x86 machine.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

#: Tests of a second and more, left to `.ci/run`; docs/design/testing.md has the command that lists them.
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().splitlines())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the slow tests as heavy. A heavy test runs with all bounds only: what quick bounds do, these do first."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.heavy)
    twice = [item for item in items if item.get_closest_marker("heavy") and parameters(item).get("bounds") == "quick"]
    if twice:
        config.hook.pytest_deselected(items=twice)
        items[:] = [item for item in items if item not in twice]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failed test at once where tests run in several processes: a run that is cut off has no summary."""
    if report.failed and hasattr(report, "node"):
        print(f"\nFAILED {report.nodeid}", flush=True)


def parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


@pytest.fixture(params=["quick", pytest.param("all", marks=pytest.mark.heavy)])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solves with quick bounds only, in heavy runs also with multi-step bounds, which take most of the time."""
    if request.param == "quick":
        leave_out_multi_step_bounds(monkeypatch)


@pytest.fixture
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solves with quick bounds only."""
    leave_out_multi_step_bounds(monkeypatch)


def leave_out_multi_step_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.pipeline import solve_stages

    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)
