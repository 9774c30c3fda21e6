"""Imports go one way: app -> planner -> graph; remat may import all; nobody imports remat or app."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("graph", "planner", "app", "remat")
ALLOWED = {
    "graph": {"graph"},
    "planner": {"planner", "graph"},
    "app": {"app", "planner", "graph"},
    "remat": {"remat", "app", "planner", "graph"},
}
#: The files of the planner room that speak both languages; every other one sees columns only.
SPEAK_BOTH = {
    "planner/lower.py", "planner/lower_bodies.py", "planner/lower_choices.py",
    "planner/source.py", "planner/posed.py", "planner/realize.py", "planner/execution.py", "planner/pipeline.py",
    "planner/saved.py", "planner/info.py", "planner/curves.py", "planner/fit.py", "planner/levers.py",
    "planner/lever_runs.py", "planner/shapes.py",
}  # fmt: skip
FINDINGS_ONLY = {"planner/errors.py"}  # shares the record of a finding
NO_GRAPH = {"graph.stops"}  # whether to go on, which knows nothing of graphs

FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Dotted names of all modules a file imports, those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_rooms_below_its_own(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    rooms = {name.partition(".")[0] for name in imported(path)} & {*ROOMS, "tests", "bench"}
    assert rooms <= ALLOWED[room]


@pytest.mark.parametrize("path", sorted((ROOT / "planner").rglob("*.py")), ids=lambda path: path.name)
def test_algorithms_see_columns_only(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    from_graph = {name for name in imported(path) if name.partition(".")[0] == "graph"} - NO_GRAPH
    if where in FINDINGS_ONLY:
        assert from_graph == {"graph.errors"}
    elif where not in SPEAK_BOTH:
        assert not from_graph
