"""What is differentiated by what, in ids. `resolve.py` makes a question of the names of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from graph.autodiff.gradients.accumulation import AccumulationPolicy
from graph.autodiff.gradients.version_rules import VersionHistory
from graph.ir import EMPTY, FLOAT_DTYPES, Value

if TYPE_CHECKING:
    from graph.autodiff.gradients.declared import AnyGradientRule

DEFAULT_POLICY = AccumulationPolicy()  # the default: what does not go together is an error


@dataclass(frozen=True, slots=True)
class ConstantHead:
    """A head gradient that is a constant: one number for every element, or content of the target's shape."""

    content: np.ndarray


HeadGradient = int | ConstantHead | None  # a value's id, a constant, ones


@dataclass(frozen=True, slots=True)
class GradientSpec:
    """What is differentiated by what, in ids."""

    targets: tuple[tuple[int, HeadGradient], ...]  # (target, its head gradient); repeats add up
    wanted: tuple[int, ...]  # in the order asked, repeats included
    stops: frozenset[int] = frozenset()  # values the gradient does not pass
    unreachable: str = "null"  # what a wanted value without gradient gets: nothing, an error, zeros
    rules: Mapping[str, AnyGradientRule] = field(default_factory=lambda: EMPTY)  # before those of the table
    skipped: frozenset[int] = frozenset()  # nodes the gradient does not pass
    row_sparse: frozenset[int] = frozenset()
    policy: AccumulationPolicy = DEFAULT_POLICY
    copies: bool = False  # a gradient that stands for several wanted values is copied
    history: VersionHistory | None = None  # strict: reads of values whose name was written again are refused


def carries_gradient(value: Value) -> bool:
    """True for floating values, and for those of which only a size is known."""
    return value.type is None or value.type.dtype in FLOAT_DTYPES
