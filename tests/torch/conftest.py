"""Shared fixtures of the tests beside PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.pipeline import solve_stages


@pytest.fixture(scope="module")
def quick_bounds() -> Iterator[None]:
    """Solves without multi-step bounds, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
        patch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)
        yield
