"""Parse named lengths and shapes in text form: `N=8`, `x=16x3x224x224`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from planner.errors import BadRequest, Finding

DIGITS = re.compile("[0-9]{1,30}")


def parse_named_lengths(given: Sequence[str], flag: str, whole: bool) -> dict[str, Any]:
    """Name -> length (`N=8`) if `whole`, else name -> shape (`x=16x3`). Raises BadRequest listing every fault."""
    findings, pairs = [], {}
    for text in given:
        # A name may contain "="; a length or shape never does.
        name, equals, value = text.rpartition("=")
        lengths = [value] if whole else value.split("x") if value else []
        fine = equals and name and all(DIGITS.fullmatch(part) for part in lengths)
        if not fine:
            expected = "NAME=8" if whole else "NAME=16x3x224x224"
            findings.append(Finding("bad_flag", flag, repr(text)[:80], expected, "write the name, =, and the lengths"))
            continue
        pairs[name] = int(value) if whole else [int(part) for part in lengths]
    if findings:
        raise BadRequest(findings)
    return pairs
