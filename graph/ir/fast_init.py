"""Frozen records that are made by the hundred thousand.

The `__init__` a frozen dataclass gets sets each field through `object.__setattr__`, which looks the
field up again every time. Setting the slots directly takes half of that, 1.6 instead of 3.2 µs for a node:

    python -m timeit -s "from graph.ir.records import Node" "Node('a', 'b', (), ())"
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Record = TypeVar("Record")


def quick_init(record: type[Record]) -> type[Record]:
    """The frozen dataclass with slots and an `__init__` of the same signature that sets them directly.

    Defaults made by a factory are made once, so they must be immutable.
    """
    scope: dict[str, Any] = {}
    parameters, steps = [], []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        scope[f"set_{field.name}"] = getattr(record, field.name).__set__
        steps.append(f"    set_{field.name}(self, {field.name})")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            parameters.append(field.name)
        else:
            scope[f"default_{field.name}"] = default
            parameters.append(f"{field.name}=default_{field.name}")
    exec(f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(steps), scope)
    setattr(record, "__init__", scope["__init__"])  # noqa: B010  mypy forbids to assign a method
    return record
