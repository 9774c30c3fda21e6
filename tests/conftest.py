"""Shared fixtures and the profile of hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("remat", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("remat")
