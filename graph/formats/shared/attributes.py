"""Attributes of another framework's op, given as data or as the text of data.

"(2, 2)"  "[2,2]"  [2, 2]      integers        "True"  "1"  True      a flag        "None"      absent
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_REQUIRED: Any = object()
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class Attributes:
    """Typed look-ups by one or several alternative names. Each raises ValueError naming the attribute.

    `read` collects the names that look-ups requested.
    """

    def __init__(self, given: Mapping[str, Any]):
        self.given = given
        self.read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.raw((name,)) is not None

    def raw(self, names: Sequence[str]) -> Any:
        """Value under the first of the names that is present; None when absent, empty or "None"."""
        self.read.update(names)
        values = (self.given.get(name) for name in names)
        value = next((value for value in values if is_present(value)), None)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def unread(self) -> dict[str, Any]:
        """Present attributes that no look-up requested."""
        return {name: value for name, value in self.given.items() if name not in self.read and is_present(value)}

    def integer(self, *names: str, default: Any = _REQUIRED) -> int:
        return self._read(names, default, parse_integer, "an integer")  # type: ignore[no-any-return]

    def maybe_integer(self, *names: str) -> int | None:
        return self._read(names, None, parse_integer, "an integer")  # type: ignore[no-any-return]

    def number(self, *names: str, default: Any = _REQUIRED) -> float:
        return self._read(names, default, _number, "a number")  # type: ignore[no-any-return]

    def flag(self, *names: str, default: bool = False) -> bool:
        return self._read(names, default, _flag, "true or false")  # type: ignore[no-any-return]

    def text(self, *names: str, default: Any = _REQUIRED) -> str:
        return self._read(names, default, str, "a word")  # type: ignore[no-any-return]

    def integers(self, *names: str, default: Any = _REQUIRED) -> tuple[int, ...]:
        """List of integers; a single integer counts as a list of one."""
        return self._read(names, default, integer_list, "integers")  # type: ignore[no-any-return]

    def maybe_integers(self, *names: str) -> tuple[int | None, ...] | None:
        """List of integers with None for null entries; None when absent."""
        return self._read(names, None, _integer_list_or_none, "integers")  # type: ignore[no-any-return]

    def _read(self, names: tuple[str, ...], default: Any, parse: Any, expected: str) -> Any:
        value = self.raw(names)
        if value is None:
            if default is _REQUIRED:
                raise ValueError(f"attribute {names[0]} is missing; it must be {expected}")
            return default
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"attribute {names[0]} is {str(value)[:80]!r}; it must be {expected}") from None


def is_present(value: Any) -> bool:
    """False for None, and for text that is empty or "None"."""
    return value is not None and not (isinstance(value, str) and value.strip() in ("None", ""))


AttributeReader = Callable[[Attributes], Any]  # reads one attribute of an op


def number(*names: str, default: Any = _REQUIRED) -> AttributeReader:
    """Reader of `Attributes.number`, for rows of op tables."""
    return lambda attributes: attributes.number(*names, default=default)


def integer(*names: str, default: Any = _REQUIRED) -> AttributeReader:
    """Reader of `Attributes.integer`, for rows of op tables."""
    return lambda attributes: attributes.integer(*names, default=default)


def parse_integer(value: Any) -> int:
    """Integer from an int, an integral float, a bool word or text. Raises ValueError past 64 bits."""
    if isinstance(value, str):
        value = value.strip().rstrip("L")
        if value.lower() in ("true", "false"):
            return int(value.lower() == "true")
        value = float(value) if "." in value or "e" in value.lower() else int(value[:24])
    integer = int(value)
    if integer != value or abs(integer) >= 1 << 63:
        raise ValueError(value)
    return integer


def _number(value: Any) -> float:
    if isinstance(value, list | tuple):
        (value,) = value
    return float(value)


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(value)
        return word in _TRUE
    return bool(parse_integer(value))


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part for part in value.strip().strip("()[]").split(",") if part.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def integer_list(value: Any) -> tuple[int, ...]:
    """Integers from a list, a tuple, a single value or text such as "(2, 2)". Raises ValueError."""
    return tuple(parse_integer(item) for item in _items(value))


def _integer_list_or_none(value: Any) -> tuple[int | None, ...]:
    return tuple(
        None if item is None or (isinstance(item, str) and item.strip() == "None") else parse_integer(item)
        for item in _items(value)
    )
