"""Commands and groups whose help shows no type beside flags that take no value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help has `--json`, not `--json <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the command and `--help`."""
        return _without_type_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help has `--version`, not `--version <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the group and `--help`."""
        return _without_type_of_flags(super().get_params(ctx))


def _without_type_of_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters
