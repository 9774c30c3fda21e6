"""Recording one training step of a module as a graph document.

module, arguments ──torch.compile──▶ joint graph of the forward and the backward pass ──▶ document
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import fx, nn

from remat.torch.aot import BackendCompilerFailed, TorchRuntimeError, Unsupported, UserError, eager_backend
from remat.torch.document import document
from remat.torch.errors import NotCaptured
from remat.torch.inductor.fusion import Fusion
from remat.torch.joint import Joint
from remat.torch.measure import measured_costs

if TYPE_CHECKING:
    from remat.report import Report

# Imports inside functions: capturing needs PyTorch only, planning all of the project; Inductor takes seconds to load.

Loss = Callable[[Any], torch.Tensor]
Passes = tuple[fx.GraphModule, fx.GraphModule]
CompilerName = Literal["eager", "inductor"]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\[(?:'([^']*)'|(\d+))\]|\.(\w+)")


@dataclass(frozen=True, eq=False)
class Step:
    """A recorded step: the joint graph, its document, the kind of device it runs on, and what Inductor fuses."""

    joint: Joint
    document: dict[str, Any]
    device: torch.device
    fusion: Fusion | None = None

    @staticmethod
    def of(
        module: fx.GraphModule,
        forward_outputs: int,
        inputs: Mapping[int, tuple[str, str]],
        name: str = "",
        measure: bool = False,
        root: str = "",
        fuse: Callable[[Joint], Fusion] | None = None,
    ) -> Step:
        """The step of a joint graph; `inputs` gives role and name of the inputs by their number.

        With `fuse`, ops that share a kernel are one node of the document, and random ops never run again.
        """
        joint = Joint(module, forward_outputs)
        roles = {
            node.name: inputs[node.meta["desc"].idx]
            for node in joint.inputs
            if getattr(node.meta.get("desc"), "idx", None) in inputs
        }
        costs = measured_costs(joint) if measure else {}
        if fuse is None:
            return Step(joint, document(joint, name, roles, costs, root=root), joint.device)
        fusion = fuse(joint)
        written = document(joint, name, roles, costs, replay=False, root=root)
        return Step(joint, fusion.document(written), joint.device, fusion)


@dataclass(frozen=True, eq=False)
class Capture:
    """A training step as a graph document, from `capture`."""

    document: dict[str, Any]
    device: torch.device

    def to_json(self) -> str:
        """The document as JSON, which `remat plan` reads."""
        return json.dumps(self.document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document to a file for `remat plan`. Raises OSError."""
        Path(path).write_text(self.to_json())

    def plan(self, budget: str | float | int | None = None, **request: Any) -> Report:
        """Plan the step: `remat.plan` with the runtime and device at hand, unless `request` names others."""
        from remat.torch.planning import plan_step

        return plan_step(self, budget, request)


def capture(
    module: nn.Module,
    *args: Any,
    loss: Loss | None = None,
    name: str = "",
    measure: bool = False,
    compiler: CompilerName = "eager",
    recording: Literal["graph", "eager"] = "graph",
    **kwargs: Any,
) -> Capture:
    """Record one training step of a module: forward pass, loss and backward pass, as one graph document.

    Nothing is computed (but see `measure`). The module may hold fake tensors (`torch._subclasses.FakeTensorMode`), so a
    model larger than the machine is recorded in seconds.

    >>> captured = remat.torch.capture(model, batch, loss=lambda logits: logits.square().mean())
    >>> captured.plan("50%").peak_bytes

    Parameters:
        module: The model in the mode to record; `train()` for training.
        args, kwargs: Arguments of one call, with the shapes of training.
        loss: Computes the loss from what the module returns. Without it, the step ends where the module does, and the
            gradients of what it returns come in from outside.
        name: Name of the model in reports; the class of the module by default.
        measure: Run every op of the step on made-up data, so that its time and workspace are measured. The documents
            of two captures then differ in their costs.
        compiler: What will run the step: "eager", op by op, or "inductor". Plans are for one of them.
        recording: `graph` captures with `torch.compile`. `eager` runs one step and records its ops, for models that are
            not one graph: the document is for planning and prediction, `optimize` cannot train with it.

    Raises:
        NotCaptured: The step is not one graph of fixed shapes, or nothing in it needs a gradient.
        ValueError: `compiler` or `recording` is none of their choices, or `recording="eager"` meets another compiler.
    """
    require_choice("recording", recording, ("graph", "eager"))
    require_choice("compiler", compiler, get_args(CompilerName))
    if recording == "eager":
        if compiler != "eager":
            raise ValueError('recording="eager" is of a step that runs op by op; leave out the compiler')
        from remat.torch.eager import record_eager_step

        return Capture(*record_eager_step(module, args, kwargs, loss, name or type(module).__name__, measure))
    recorded: list[Step] = []

    def record(step: Step, *_: Any) -> Passes:
        recorded.append(step)
        raise _Recorded

    named, root = name or type(module).__name__, "" if loss is None else "module"
    if compiler == "inductor":
        from remat.torch.inductor.backend import compiled_backend

        backend = compiled_backend(record, named, measure, root)
    else:
        backend = step_backend(record, named, measure, root)
    trained = module if loss is None else WithLoss(module, loss)
    try:
        with torch.enable_grad():
            torch.compile(trained, backend=backend, fullgraph=True, dynamic=False, isolate_recompiles=True)(
                *args, **kwargs
            )
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, _Recorded):
            raise capture_error(error) from None
    except (TorchRuntimeError, Unsupported, UserError) as error:
        raise capture_error(error) from None
    if not recorded:
        raise NotCaptured(NO_GRADIENT)
    return Capture(recorded[0].document, recorded[0].device)


def require_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Raise ValueError for an argument that is none of its choices."""
    if given not in choices:
        raise ValueError(f"{name}={given!r} is not known; use {' or '.join(map(repr, choices))}")


NO_GRADIENT = (
    "the step has no backward pass: no parameter or argument that requires a gradient reaches what is returned"
)


def step_backend(divide: Callable[[Step], Passes], name: str = "", measure: bool = False, root: str = "") -> Compiler:
    """A backend of `torch.compile` that runs the forward and the backward pass into which `divide` divides a step."""

    def compiled(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        inputs = roles_of(graph, examples)

        def partition(joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Passes:
            return divide(Step.of(joint, num_fwd_outputs, inputs, name, measure, root))

        return eager_backend(partition)(graph, examples)

    return compiled


class _Recorded(Exception):
    """Ends a compilation once the joint graph is recorded."""


class WithLoss(nn.Module):
    """A module followed by its loss."""

    def __init__(self, module: nn.Module, loss: Loss):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.loss(self.module(*args, **kwargs))


def capture_error(error: Exception) -> Exception:
    """The exception to raise in place of one of `torch.compile`."""
    if isinstance(error, BackendCompilerFailed):
        return error.inner_exception.with_traceback(None)
    reason = str(error).split("\n\nSet TORCHDYNAMO_VERBOSE")[0].strip()
    if isinstance(error, TorchRuntimeError):
        return NotCaptured(
            f"the module fails on these arguments: {reason}\nCall it once without a plan to see the error"
        )
    return NotCaptured(
        f"the module is not one graph: {reason}\nMove what breaks the graph out of the module, or plan the parts of "
        'the model that can be recorded one by one; recording="eager" of `capture` records a step of any module, for '
        "planning without training under the plan"
    )


def roles_of(graph: fx.GraphModule, examples: Sequence[Any]) -> dict[int, tuple[str, str]]:
    """Role in the document, and name in the module, of the inputs of a graph, by their number."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    return {
        number: (_role(example), _origin(node))
        for number, (node, example) in enumerate(zip(placeholders, examples, strict=True))
    }


def _role(example: Any) -> str:
    if isinstance(example, nn.Parameter):
        return "parameter"
    return "state" if isinstance(example, nn.Buffer) else "input"


def _origin(node: fx.Node) -> str:
    """`layer.weight` for a parameter or buffer, the name of the argument for an input."""
    argument = node.meta.get("grapharg")
    source = getattr(getattr(argument, "source", None), "name", None)
    text = source() if callable(source) else source
    if not isinstance(text, str):
        return node.name
    parts = [next(filter(None, found.groups()), "") for found in _PART.finditer(text)]
    return ".".join(parts[1:] if parts[:1] == ["self"] else parts)
