"""Shared fixtures and the profile of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("remat", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("remat")


@pytest.fixture(params=["quick", pytest.param("all", marks=pytest.mark.heavy)])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Solves with quick bounds only, and in heavy runs with those of several steps too, which take most of the time."""
    from planner import pipeline

    if request.param == "quick":
        monkeypatch.setattr(pipeline, "with_more_moments", lambda question, plan=None: question)
