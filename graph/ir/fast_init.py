"""Fast `__init__` for frozen dataclasses of which hundreds of thousands are created.

The generated `__init__` of a frozen dataclass sets each field through `object.__setattr__`, with one
attribute lookup a field. Setting the slots directly takes half the time, 1.6 instead of 3.2 µs for a node:

    python -m timeit -s "from graph.ir.records import Node" "Node('a', 'b', (), ())"
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Record = TypeVar("Record")


def quick_init(record: type[Record]) -> type[Record]:
    """`record`, a frozen dataclass with slots, with an `__init__` of the same signature that sets the slots directly.

    Default factories are called once, so their results must be immutable.
    """
    namespace: dict[str, Any] = {}
    parameters, statements = [], []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        namespace[f"set_{field.name}"] = getattr(record, field.name).__set__
        statements.append(f"    set_{field.name}(self, {field.name})")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            parameters.append(field.name)
        else:
            namespace[f"default_{field.name}"] = default
            parameters.append(f"{field.name}=default_{field.name}")
    exec(f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(statements), namespace)
    setattr(record, "__init__", namespace["__init__"])  # noqa: B010  mypy forbids to assign a method
    return record
