"""Threads of a search take short turns."""

from __future__ import annotations

import sys

import pytest

from planner.search.short_turns import SHORT_TURNS, TURN_SECONDS


def test_threads_take_short_turns_while_a_scope_lasts_and_the_former_ones_after() -> None:
    former = sys.getswitchinterval()
    with SHORT_TURNS:
        with SHORT_TURNS:
            assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    assert sys.getswitchinterval() == former
