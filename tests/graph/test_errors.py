"""Every code a message carries is explained, and nothing is explained that no message carries."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from graph.errors import MAX_FINDINGS, BadGraph, Finding, Findings, quoted

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("graph", "planner")
CODE = re.compile(r"[a-z][a-z_]*\Z")


def codes_in(source: str) -> set[str]:
    """First arguments of everything that makes a Finding, and what a variable called `code` may hold."""
    found: set[str] = set()
    for place in ast.walk(ast.parse(source)):
        if isinstance(place, ast.Call) and place.args:
            name = place.func.attr if isinstance(place.func, ast.Attribute) else getattr(place.func, "id", "")
            makes_one = name in ("add", "one", "bad_field", "Finding") and len(place.args) == 5
            if (makes_one or name == "fault") and isinstance(place.args[0], ast.Constant):
                found.add(str(place.args[0].value))
            if name == "_refuse" and len(place.args) > 1 and isinstance(place.args[1], ast.Constant):  # after the node
                found.add(str(place.args[1].value))
            if name == "CannotDifferentiate" and len(place.args) == 3 and isinstance(place.args[2], ast.Constant):
                found.add(str(place.args[2].value))
        if isinstance(place, ast.Assign) and getattr(place.targets[0], "id", "") == "code":
            found |= {code for code in _choices(place.value) if CODE.match(code)}
    return found


def _choices(value: ast.expr) -> set[str]:
    """Strings an expression may be, through `x if c else y`."""
    if isinstance(value, ast.IfExp):
        return _choices(value.body) | _choices(value.orelse)
    return {value.value} if isinstance(value, ast.Constant) and isinstance(value.value, str) else set()


def test_the_table_of_codes_is_complete() -> None:
    used = set().union(*(codes_in(path.read_text()) for room in ROOMS for path in (ROOT / room).rglob("*.py")))
    table = re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs" / "reference" / "errors.md").read_text(), re.MULTILINE)
    assert table == sorted(set(table)), "one row a code, in order"
    assert used - set(table) == set(), "explain these in docs/reference/errors.md"
    assert set(table) - used == set(), "no message carries these; remove them from docs/reference/errors.md"


def test_the_scan_sees_a_new_code() -> None:
    source = 'findings.add("brand_new", path, found, expected, remedy)\ncode = "one_way" if x else "other_way"'
    assert codes_in(source) == {"brand_new", "one_way", "other_way"}


def test_findings_beyond_ten_are_counted() -> None:
    findings = Findings()
    other = BadGraph([Finding("code", f"p{i}", "f", "e", "r") for i in range(12)])
    findings.add("code", "first", "f", "e", "r")
    findings.add_all(other)
    try:
        findings.settle()
    except BadGraph as error:
        assert len(error.findings) == MAX_FINDINGS and error.left_out == 3
        assert "... and 3 more" in str(error)


def test_a_long_name_is_cut_and_its_length_given() -> None:
    assert quoted("short") == "'short'"
    assert len(quoted("x" * 10_000)) < 120 and "10000 characters" in quoted("x" * 10_000)
