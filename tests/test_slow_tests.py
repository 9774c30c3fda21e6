"""The list of slow tests names tests that exist."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import SLOW

ROOT = Path(__file__).parent.parent


def test_slow_tests_exist() -> None:
    names = {nodeid.partition("[")[0] for nodeid in SLOW}
    texts = {file: (ROOT / file).read_text() for file in {name.partition("::")[0] for name in names}}
    gone = sorted(name for name in names if f"def {name.partition('::')[2]}(" not in texts[name.partition("::")[0]])
    assert not gone, "list the slow tests again: docs/design/testing.md"
