"""Free memory of the machine and of a control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph.execution import free_memory


def test_free_memory_is_that_of_the_control_group_where_it_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < free_memory.free_bytes() < free_memory.UNBOUNDED
    folder = tmp_path / "a.service"
    folder.mkdir()
    (folder / "memory.max").write_text("1000")
    (folder / "memory.current").write_text("700")
    (folder / "memory.stat").write_text("anon 5\ninactive_file 50\n")
    (tmp_path / "cgroup").write_text("0::/a.service\n")
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(free_memory, "GROUPS", tmp_path)
    assert free_memory.free_bytes() == 350
    (folder / "memory.max").write_text("max")
    assert free_memory.free_bytes() > 350
