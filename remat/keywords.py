"""Keyword parameters of `plan`, `curve`, `fit` and `batch`, from the table of request fields.

Type checkers and editors read `request_fields.py`, which is generated from the same table.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from planner.request.plan_request import FIELDS

F = TypeVar("F", bound=Callable[..., Any])


def request_keywords(types: type, **other_defaults: Any) -> Callable[[F], F]:
    """Decorator: put the fields of a TypedDict into the signature and the docstring, in place of `**request`.

    `other_defaults` go before those of the table.
    """

    def named(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        hints = typing.get_type_hints(types)
        entries = []
        for row in FIELDS.values():
            if (name := row.attribute) in hints:
                default = other_defaults.get(name, row.default)
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
                )
                text = f"{name}: {row.description}." + ("" if default is None else f" Default: {default!r}.")
                entries.append(textwrap.fill(text, 116, initial_indent="    ", subsequent_indent=" " * 8))
        function.__dict__["__signature__"] = signature.replace(parameters=parameters)
        function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\nRequest fields:\n" + "\n".join(entries)
        return function

    return named
