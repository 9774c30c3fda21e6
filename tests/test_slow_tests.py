"""The list of slow tests names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SLOW

ROOT = Path(__file__).parent.parent
NAMES = sorted({nodeid.partition("[")[0] for nodeid in SLOW})


@pytest.mark.parametrize("name", NAMES)
def test_a_slow_test_exists(name: str) -> None:
    file, function = name.split("::")
    assert f"def {function}(" in (ROOT / file).read_text(), "list the slow tests again: docs/design/testing.md"
