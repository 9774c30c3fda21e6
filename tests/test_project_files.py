"""Files at the top of the repository agree with the project: licences, changes, contributing, hooks."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_licence_beside_shipped_files_goes_into_the_wheel() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
    listed = {path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    shipped = {
        path
        for package in ("app", "planner", "graph", "remat")
        for path in (ROOT / package).rglob("*.txt")
        if "LICENSE" in path.name or "NOTICE" in path.name
    }
    assert listed == shipped | {ROOT / "LICENSE"}
    assert all(any(ROOT.glob(pattern)) for pattern in PROJECT["license-files"])
