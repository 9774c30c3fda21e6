"""Exceptions of `remat.torch`: those of `remat.steps`, and one of modules.

ValueError
├── AlreadyPlanned   the module has a plan
└── NotPlaced        a result of the step cannot lie at an address in a block
"""

from __future__ import annotations

from remat.steps.errors import BudgetNotMet, NotCaptured, OtherStep

__all__ = ["AlreadyPlanned", "BudgetNotMet", "NotCaptured", "NotPlaced", "OtherStep", "compiled_budget_text"]

# Imports inside functions: capturing needs PyTorch only.


class AlreadyPlanned(ValueError):
    """The module runs under a plan already."""


class NotPlaced(ValueError):
    """A result of the step cannot lie at an address in a block."""


def compiled_budget_text(budget: int, lowest: int, plain: int) -> str:
    """Message for a step of which no code of Inductor within the budget was found; sizes in bytes."""
    from app.render.text import format_bytes

    return (
        f"no plan within {format_bytes(budget)} for Inductor: the lowest peak found is {format_bytes(lowest)} "
        f"(without a plan {format_bytes(plain)}); ask for that much, take a smaller batch, or try "
        'compiler="eager", which follows orders that Inductor cannot'
    )
