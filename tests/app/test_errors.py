"""Every code that this room tells is explained, and nothing is explained that it does not tell."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from app.errors import ERROR_TABLE

ROOT = Path(__file__).parent.parent.parent


def codes_in(source: str) -> set[str]:
    """Codes of findings and problems made in the source.

    `code="x"`, `Finding("x", ...)`, `_refuse("x", ...)`, `problem(422, "x", ...)`.
    """
    found: set[str] = set()
    for place in ast.walk(ast.parse(source)):
        if not isinstance(place, ast.Call):
            continue
        name = place.func.attr if isinstance(place.func, ast.Attribute) else getattr(place.func, "id", "")
        said = [word.value for word in place.keywords if word.arg == "code"]
        said += (
            place.args[:1] if name in ("one", "Finding", "_refuse") else place.args[1:2] if name == "problem" else []
        )
        found |= {word.value for word in said if isinstance(word, ast.Constant) and isinstance(word.value, str)}
    return found


def test_every_code_is_in_one_of_the_two_error_tables() -> None:
    told = {row.code for row in ERROR_TABLE} | {"method_not_allowed", "refused"}
    told |= set().union(*(codes_in(path.read_text()) for path in (ROOT / "app").rglob("*.py")))
    reference = ROOT / "docs" / "reference"
    of_graphs = set(re.findall(r"^\| `([a-z_]+)` \|", (reference / "errors.md").read_text(), re.MULTILINE))
    page = (reference / "service-errors.md").read_text()
    explained = re.findall(r"^\| `([a-z_]+)` \| (?:\d\d\d|4xx)? ?\|", page, re.MULTILINE)  # with a status, or none
    assert len(explained) == len(set(explained))
    assert told - of_graphs - set(explained) == set(), "explain these in docs/reference/service-errors.md"
    assert set(explained) - told == set(), "no message has these; remove them from docs/reference/service-errors.md"


def test_the_scan_sees_a_new_code() -> None:
    source = 'Busy("x", code="a"); Finding("b", p, f, e, r); BadGraph.one("c", p, f, e, r); problem(422, "d", t, s)'
    assert codes_in(source) == {"a", "b", "c", "d"}
