"""Steps that Inductor compiles: recorded as it gets them, and divided by a plan of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from remat.torch.inductor.lowering import Passes, inductor_backend, is_generated, is_inlined
from remat.torch.step.fusion import Fusion
from remat.torch.step.joint import Joint
from remat.torch.step.recording import Compiler, Step, roles_of


def compiled_backend(
    divide: Callable[[Step, Callable[[], Passes]], Passes], name: str = "", measure: bool = False, root: str = ""
) -> Compiler:
    """A backend of `torch.compile` that lets Inductor compile the two passes into which `divide` divides a step.

    `divide` gets the step, and a function that divides it as Inductor does.
    """

    def compiled(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        inputs = roles_of(graph, examples)

        def partition(joint: fx.GraphModule, forward_outputs: int, plain: Callable[[], Passes]) -> Passes:
            return divide(Step.of(joint, forward_outputs, inputs, name, measure, root, fused), plain)

        return inductor_backend(partition)(graph, examples)

    return compiled


def fused(joint: Joint) -> Fusion:
    """What Inductor computes in one kernel."""
    return Fusion(joint, is_inlined, is_generated)
