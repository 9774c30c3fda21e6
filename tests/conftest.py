"""Shared fixtures and the profile of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("remat", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("remat")


@pytest.fixture(params=["quick", pytest.param("all", marks=pytest.mark.heavy)])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solves with quick bounds only, in heavy runs also with multi-step bounds, which take most of the time."""
    from planner.pipeline import progress

    if request.param == "quick":
        monkeypatch.setattr(progress, "with_multi_step_bound", lambda formulation, plan=None: formulation)
