"""Gradients with the semantics of Paddle's `append_backward` and `calc_gradient`, over ops named `paddle::type`.

Every op with floating-point inputs, except NON_DIFFERENTIABLE ones, has a gradient op `type_grad` that reads the
incoming gradients, inputs and outputs. A gradient path ends without an error at an op without gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from graph.autodiff.differentiate import check_callbacks, differentiate
from graph.autodiff.gradients.events import GradientCallback
from graph.autodiff.gradients.spec import carries_gradient
from graph.autodiff.resolve_names import GradientOptions
from graph.errors import BadGraph
from graph.ir import Graph, Node, Phase

DOMAIN = "paddle::"
#: Ops without a gradient maker: fills, random numbers, integer results, comparisons.
NON_DIFFERENTIABLE = frozenset(
    {
        "one_hot",
        "one_hot_v2",
        "gaussian_random",
        "uniform_random",
        "fill_constant",
        "shape",
        "arg_max",
        "arg_min",
        "argsort",
        "equal",
        "less_than",
        "greater_than",
        "accuracy",
        "increment",
        "assign_value",
        "truncated_gaussian_random",
        "fill_constant_batch_size_like",
        "range",
        "feed",
        "fetch",
        "seed",
    }
)
_MARKER = re.compile(r"(?:@GRAD)+(?=@|$)")


@dataclass(frozen=True, slots=True)
class BackwardProgram:
    """A program with its backward part."""

    graph: Graph
    pairs: list[tuple[str, str]]  # (parameter, gradient)
    op_types: list[str]  # Paddle types of the backward ops, in order


def append_backward(
    graph: Graph,
    loss: Sequence[str],
    parameters: Sequence[str] | None = None,
    no_grad: Collection[str] = (),
    callbacks: Sequence[GradientCallback] = (),
) -> BackwardProgram:
    """Gradients of the loss (a list of one name) with respect to `parameters`, by default all without stop_gradient.

    Values with stop_gradient, values in `no_grad` and ops without gradient end a path. Parameters without a gradient
    are omitted. The resulting graph can be differentiated again. Raises BadGraph.
    """
    check_callbacks(callbacks)
    if not isinstance(no_grad, set | frozenset | list | tuple):
        raise BadGraph.one(
            "bad_request", "no_grad", repr(no_grad)[:80], "a set, list or tuple of names", "send one of these"
        )
    result = differentiate(
        graph,
        loss,
        parameters,
        no_gradient=no_grad,
        callbacks=callbacks,
        options=GradientOptions(gradient_rules=paddle_rules(graph), skip=has_no_gradient(graph)),
    )
    pairs = result.gradients[len(graph.gradients) :]
    return BackwardProgram(
        result,
        [(result.values[v].name, result.values[gradient].name) for v, gradient in pairs],
        [op_type(node) for node in result.nodes[len(graph.nodes) :]],
    )


def paddle_rules(graph: Graph) -> dict[str, Any]:
    """Gradient rule of every `paddle::` op type of the graph, gradient ops included for higher orders."""
    types = {node.op for node in graph.nodes if node.op.startswith(DOMAIN)}
    return {op: {"op": f"{op}_grad", "reads": ["incoming", "inputs", "outputs"]} for op in types}


def has_no_gradient(graph: Graph) -> Callable[[Node], bool]:
    """Predicate: True for a node without a gradient maker or without differentiable inputs."""

    def is_skipped(node: Node) -> bool:
        floating = any(v >= 0 and carries_gradient(graph.values[v]) for v in node.inputs)
        return node.op.removeprefix(DOMAIN) in NON_DIFFERENTIABLE or not floating

    return is_skipped


def op_type(node: Node) -> str:
    """Paddle op type of a backward node, including sums and the constants of initial gradients."""
    if node.op.startswith(DOMAIN):
        return node.op.removeprefix(DOMAIN)
    return "sum" if node.op in ("Add", "Sum") and node.phase is Phase.BACKWARD else "fill_constant"


def forward_name(gradient: str) -> str:
    """Name of the forward value of a gradient: the text after `grad/` and before the first marker.

    A marker is `@GRAD` at the end of the name or before another `@`; other occurrences belong to the name.
    """
    name = gradient[gradient.rfind("grad/") + len("grad/") :] if "grad/" in gradient else gradient
    match = _MARKER.search(name)
    return name if match is None else name[: match.start()]
