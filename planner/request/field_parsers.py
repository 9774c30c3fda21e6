"""Parse an object field by field; faults are collected as findings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from planner.errors import BadRequest, Finding

MAX_FINDINGS = 10
Parser = Callable[[Any, str], Any]  # (raw value, path) -> parsed value; raises BadRequest


def parse_fields(
    given: Mapping[str, Any], parsers: Mapping[str, Parser], findings: list[Finding], path: str = ""
) -> Any:
    """Parsed values by field name; faults are appended to `findings`."""
    parsed = {}
    for name, value in given.items():
        if name not in parsers:
            findings.append(unknown_field(f"{path}{name}", name, parsers))
            continue
        try:
            parsed[name] = parsers[name](value, f"{path}{name}")
        except BadRequest as error:
            findings.extend(error.findings)
    return parsed


def unknown_field(path: str, name: str, known: Collection[str]) -> Finding:
    """Finding about an unknown field, with the closest known name."""
    return Finding(
        "unknown_field", path[:80], "an unknown field", "one of " + ", ".join(known), nearest(name, known, "remove it")
    )


def nearest(name: object, known: Collection[str], otherwise: str) -> str:
    """Remedy that suggests the first known name that begins so, else the closest; `otherwise` without a close one."""
    near = [one for one in known if name and one.startswith(str(name))]
    near = near or difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def bad_field(path: str, given: object, expected: str, remedy: str = "correct the value") -> BadRequest:
    return BadRequest.one("bad_field", path, repr(given)[:80], expected, remedy)
