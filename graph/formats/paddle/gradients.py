"""Gradients as Paddle's `append_backward` and `calc_gradient` ask for them, over ops named `paddle::type`.

Every op with floating inputs has a gradient op `type_grad` that reads what comes in, what the op read and what
it wrote, unless it is one of those without; a path ends quietly at an op without gradient.
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
#: Ops without a gradient maker: sources of numbers, integer results, comparisons.
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
    """The extended program, pairs of parameter and gradient, and the types of gradient ops in order."""

    graph: Graph
    pairs: list[tuple[str, str]]
    op_types: list[str]


def append_backward(
    graph: Graph,
    loss: Sequence[str],
    parameters: Sequence[str] | None = None,
    no_grad: Collection[str] = (),
    callbacks: Sequence[GradientCallback] = (),
) -> BackwardProgram:
    """Gradients of the loss, a list of one name, by parameters; by default by all that do not stop gradients.

    Values that stop gradients and those of `no_grad` end the path, as do ops without gradient. Parameters that
    receive none are left out. May be called again on the graph it answers. Raises BadGraph.
    """
    check_callbacks(callbacks)
    if not isinstance(no_grad, set | frozenset | list | tuple):
        raise BadGraph.one(
            "bad_request", "no_grad", repr(no_grad)[:80], "a set, list or tuple of names", "send one of these"
        )
    made = differentiate(
        graph,
        loss,
        parameters,
        no_gradient=no_grad,
        callbacks=callbacks,
        options=GradientOptions(gradient_rules=paddle_rules(graph), skip=has_no_gradient(graph)),
    )
    pairs = made.gradients[len(graph.gradients) :]
    return BackwardProgram(
        made,
        [(made.values[v].name, made.values[gradient].name) for v, gradient in pairs],
        [op_type(node) for node in made.nodes[len(graph.nodes) :]],
    )


def paddle_rules(graph: Graph) -> dict[str, Any]:
    """The gradient op of every op type of the graph, its own included for differentiating again."""
    types = {node.op for node in graph.nodes if node.op.startswith(DOMAIN)}
    return {op: {"op": f"{op}_grad", "reads": ["incoming", "inputs", "outputs"]} for op in types}


def has_no_gradient(graph: Graph) -> Callable[[Node], bool]:
    """Says of a node that it has no gradient maker, or nothing a gradient could go to."""

    def has_none(node: Node) -> bool:
        floating = any(v >= 0 and carries_gradient(graph.values[v]) for v in node.inputs)
        return node.op.removeprefix(DOMAIN) in NON_DIFFERENTIABLE or not floating

    return has_none


def op_type(node: Node) -> str:
    """What Paddle calls a node of the backward part: sums, and constants that start it, included."""
    if node.op.startswith(DOMAIN):
        return node.op.removeprefix(DOMAIN)
    return "sum" if node.op in ("Add", "Sum") and node.phase is Phase.BACKWARD else "fill_constant"


def forward_name(gradient: str) -> str:
    """The forward name behind a gradient's: without `grad/` in front and everything from the first marker on.

    A marker is `@GRAD` at the end or before another `@`; what merely contains it is a name of its own.
    """
    name = gradient[gradient.rfind("grad/") + len("grad/") :] if "grad/" in gradient else gradient
    match = _MARKER.search(name)
    return name if match is None else name[: match.start()]
