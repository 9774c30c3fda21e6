"""`GradientSpec`: targets, wanted values and options of a differentiation, in ids.

`graph.autodiff.resolve_names` builds one from the names of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from graph.autodiff.gradients.accumulation import AccumulationPolicy
from graph.autodiff.gradients.version_rules import VersionHistory
from graph.ir import EMPTY, FLOAT_DTYPES, Node, Value

if TYPE_CHECKING:
    from graph.autodiff.gradients.declared import AnyGradientRule

DEFAULT_POLICY = AccumulationPolicy()  # mixed kinds and mixed devices are errors


@dataclass(frozen=True, slots=True)
class ConstantHead:
    """A constant head gradient: one number for every element, or content of the target's shape."""

    content: np.ndarray


HeadGradient = int | ConstantHead | None  # a value's id, a constant, ones


@dataclass(frozen=True, slots=True)
class GradientSpec:
    """Targets, wanted values and options of one differentiation; all ids are value ids unless said otherwise."""

    targets: tuple[tuple[int, HeadGradient], ...]  # (target, its head gradient); repeated targets are summed
    wanted: tuple[int, ...]  # in the order of the request, repeats included
    stops: frozenset[int] = frozenset()  # values that block the gradient
    unreachable: str = "null"  # for a wanted value without gradient: "null" (none), "error" or "zeros"
    rules: Mapping[str, AnyGradientRule] = field(default_factory=lambda: EMPTY)  # override the table
    skipped: frozenset[int] = frozenset()  # node ids that block the gradient
    row_sparse: frozenset[int] = frozenset()  # values that may have a row-sparse gradient
    policy: AccumulationPolicy = DEFAULT_POLICY
    copies: bool = False  # True: a gradient shared by several wanted values is copied
    history: VersionHistory | None = None  # given: reads of overwritten versions are errors (strict mode)


#: Ops that move elements of any type, and hand the gradient of quantized ones on.
_MOVING = frozenset({"Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def hands_on(node: Node, output: Value) -> bool:
    """True if an output of a node with a differentiable input has a gradient: floats, and quantized numbers."""
    return carries_gradient(output) or node.op == "QuantizeLinear" or node.op in _MOVING


def carries_gradient(value: Value) -> bool:
    """True for floating values, and for values with a size but no type."""
    return value.type is None or value.type.dtype in FLOAT_DTYPES
