"""Budgets: one grammar for all interfaces ("50%", 0.5, "8GiB", "8GB", 8589934592)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from planner.errors import BadRequest

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
GRAMMAR = 'a percentage ("50%"), a number with a point in (0, 1], whole bytes, or bytes with a unit ("8GiB", "8GB")'
MAX_BYTES = 2**63 - 1
MAX_OVERHEAD = 10**9  # times the baseline
NUMBER_PATTERN = r"(?:[0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})"


@dataclass(frozen=True, slots=True)
class Budget:
    """Whole bytes, or an exact fraction of bytes given later."""

    bytes: int | None = None
    fraction: Fraction | None = None

    def of(self, whole_bytes: int, floor_bytes: int = 0) -> int:
        """Bytes of the budget; a fraction counts from `floor_bytes` to `whole_bytes`, rounded up."""
        if self.bytes is not None:
            return self.bytes
        assert self.fraction is not None
        return floor_bytes + math.ceil(self.fraction * (whole_bytes - floor_bytes))


def parse_budget(given: object, field: str = "budget") -> Budget:
    """Parse a budget. Raises BadRequest naming `field`, also for the texts "2" to "100", which may miss a "%"."""
    if isinstance(given, str) and (match := re.fullmatch(r"\s*([0-9]{1,3})\s*", given)) and 1 < int(match[1]) <= 100:
        number = int(match[1])
        found, remedy = f"'{number}' without a unit", f"did you mean {number}%? For bytes write {number}B"
        raise BadRequest.one("bad_budget", field, found, GRAMMAR, remedy)
    return parse_size(given, field)


def parse_size(given: object, field: str) -> Budget:
    """Parse a budget or a size in the same grammar. Raises BadRequest naming `field`."""
    budget = _parsed(given)
    if budget is None:
        raise BadRequest.one("bad_budget", field, repr(given)[:80], GRAMMAR, _remedy(given))
    return budget


def _remedy(given: object) -> str:
    """Units with the same first letter, of a number with an unknown unit."""
    if isinstance(given, str) and (match := re.fullmatch(rf"\s*({NUMBER_PATTERN})\s*([A-Za-z]{{1,20}})\s*", given)):
        unit = match[2].upper()
        near = [f"{match[1]}{name.replace('I', 'i')}" for name in UNITS if name[0] == unit[0] and unit not in UNITS]
        if near:
            return f"did you mean {' or '.join(near)}?"
    if isinstance(given, str) and re.fullmatch(rf"\s*{NUMBER_PATTERN}\s*%\s*", given):
        return "write a percentage above 0 and at most 100%"
    return "write it in one of these forms"


def parse_fraction(given: object, field: str) -> float:
    """Parse a share such as "10%" or 0.1; zero is allowed. Raises BadRequest naming `field`."""
    if isinstance(given, str) and (match := re.fullmatch(rf"\s*({NUMBER_PATTERN})\s*%\s*", given)):
        return float(Fraction(match[1]) / 100)
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given <= MAX_OVERHEAD:
        return float(given)
    if isinstance(given, str) and re.fullmatch(NUMBER_PATTERN, given):
        return float(given)
    raise BadRequest.one(
        "bad_fraction",
        field,
        repr(given)[:80],
        f'a percentage ("10%") or a number from 0 to {MAX_OVERHEAD}',
        "write 10% or 0.1",
    )


def _parsed(given: object) -> Budget | None:
    """The budget; None if `given` is not in the grammar."""
    if isinstance(given, bool):
        return None
    if isinstance(given, int):
        return Budget(bytes=given) if 0 <= given <= MAX_BYTES else None
    if isinstance(given, float):
        return _share(Fraction(str(given))) if math.isfinite(given) else None
    if not isinstance(given, str):
        return None
    match = re.fullmatch(rf"\s*({NUMBER_PATTERN})\s*(%|[A-Za-z]*)\s*", given)
    if match is None:
        return None
    number, unit = Fraction(match[1]), match[2].upper()
    if unit == "%":
        return _share(number / 100)
    if unit:
        total = math.ceil(number * UNITS[unit]) if unit in UNITS else MAX_BYTES + 1
        return Budget(bytes=total) if total <= MAX_BYTES else None
    if "." in match[1]:
        return _share(number)
    return Budget(bytes=int(number)) if number <= MAX_BYTES else None


def _share(fraction: Fraction) -> Budget | None:
    return Budget(fraction=fraction) if 0 < fraction <= 1 else None
