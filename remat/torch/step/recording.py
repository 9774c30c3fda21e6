"""Recording one training step of a module: a backend of `torch.compile` that sees the joint graph.

module, arguments ──torch.compile──▶ joint graph of the forward and the backward pass ──▶ document
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal, TypeVar

import torch
from torch import fx, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves

from remat.torch.step.aot import (
    BackendCompilerFailed,
    FailOnRecompileLimitHit,
    TorchRuntimeError,
    Unsupported,
    UserError,
    allow_compilations,
    eager_backend,
    has_global_hooks,
    undivided_graphs,
)
from remat.torch.step.document import document
from remat.torch.step.errors import NotCaptured
from remat.torch.step.fusion import Fusion
from remat.torch.step.joint import Joint
from remat.torch.step.measure import IN_STEP, measured_costs
from remat.torch.step.timing import Inputs

Passes = tuple[fx.GraphModule, fx.GraphModule]
CompilerName = Literal["eager", "inductor"]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
#: Warning of reports whose times are not from a step.
ALONE = (
    "times were measured op by op on made-up data, because {}: the predicted extra time may be 10 points off and more; "
    "`remat measure` measures it"
)
#: What `torch.compile(fullgraph=True)` raises where a mode, or something else, keeps it from running compiled code.
NOT_COMPILED = re.compile("torch.compile with fullgraph=True found no compiled frames")
MODES = (
    "torch.compile does not run here, so the plan cannot be followed: a mode that sees each op, such as "
    "FlopCounterMode or another TorchDispatchMode, keeps it out; call the module outside of the mode, or call the "
    "module without the plan inside, which has the same parameters"
)
MAX_STEPS = 64  # combinations of shapes and modes that each module is compiled for
M = TypeVar("M", bound=nn.Module)
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
        examples: Sequence[Any] = (),
    ) -> Step:
        """The step of a joint graph; `inputs` gives role and name of the inputs by their number.

        With `measure`, times of ops are measured in the step itself if `examples` are its real inputs. With `fuse`,
        ops that share a kernel are one node of the document, and random ops are never repeated.
        """
        joint = Joint(module, forward_outputs)
        roles = {node.name: inputs[number] for node, number in _numbers(joint).items() if number in inputs}
        given = inputs_of(joint, examples)
        costs, how = measured_costs(joint, given if fuse is None else None) if measure else ({}, "")
        written = document(joint, name, roles, costs, replay=fuse is None, root=root)
        if how:
            written["annotations"]["times"] = f"measured {how}" if how == IN_STEP else "measured op by op"
        if how not in ("", IN_STEP):
            written["annotations"]["import_warnings"] = [ALONE.format(how)]
        if fuse is None:
            return Step(joint, written, joint.device)
        fusion = fuse(joint)
        return Step(joint, fusion.document(written), joint.device, fusion)


def inputs_of(joint: Joint, examples: Sequence[Any]) -> Inputs:
    """The inputs of a step among the arguments that it was recorded with."""
    return {node: examples[number] for node, number in _numbers(joint).items() if 0 <= number < len(examples)}


def _numbers(joint: Joint) -> dict[fx.Node, int]:
    """Numbers of the inputs of a step among its arguments; -1: it is none."""
    return {node: int(getattr(node.meta.get("desc"), "idx", -1)) for node in joint.inputs}


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
        refuse_lost_dropout(graph)
        inputs = roles_of(graph, examples)

        def partition(joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Passes:
            return divide(Step.of(joint, num_fwd_outputs, inputs, name, measure, root, examples=examples))

        return eager_backend(partition)(graph, examples)

    return compiled


#: Functions of recurrent layers, with arguments ..., has_biases, num_layers, dropout, train, ...
RECURRENT = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)
#: What to do about some breaks of a graph, by a part of what PyTorch writes about them.
REMEDIES = {
    "RNN, GRU, or LSTM": "Write nn.RNN, nn.GRU and nn.LSTM as a loop over nn.RNNCell, nn.GRUCell or nn.LSTMCell",
    "Unsupported functorch": "Give torch.func the module without a plan, which has the same parameters",
    "backwards hooks": (
        "Of the hooks on backward passes, only those on the planned module itself run under a plan; inside of it use "
        "`register_hook` of a tensor or parameter"
    ),
}
#: Errors of `torch.compile` that `capture_error` turns into ours.
COMPILE_ERRORS = (BackendCompilerFailed, FailOnRecompileLimitHit, TorchRuntimeError, Unsupported, UserError)


def capture_error(error: Exception) -> Exception:
    """The exception to raise in place of one of `torch.compile`."""
    if isinstance(error, BackendCompilerFailed):
        return error.inner_exception.with_traceback(None)
    reason = str(error).split("\n\nSet TORCHDYNAMO_VERBOSE")[0].strip()
    if isinstance(error, FailOnRecompileLimitHit):
        return NotCaptured(f"the module was called in more than {MAX_STEPS} ways: other shapes, modes or constants")
    if isinstance(error, TorchRuntimeError):
        return NotCaptured(
            f"the module fails on these arguments: {reason}\nCall it once without a plan to see the error"
        )
    remedy = next((f"{remedy}. " for what, remedy in REMEDIES.items() if what in reason), "")
    return NotCaptured(
        f"the module is not one graph: {reason}\n{remedy}Move what breaks the graph out of the module, or plan the "
        "parts of the model that can be recorded one by one; "
        'recording="eager" of `capture` records a step of any module, for planning without training under the plan'
    )


def compiled_by(compiler: Callable[..., Any], modules: int = 1) -> Callable[[M], M]:
    """A function of modules to modules with the same parameters, whose forward pass a backend of `torch.compile` runs.

    It is compiled once for all modules that differ in the contents of their parameters only, and once for each that
    holds a module with hooks, or is called under hooks of all modules, for which compiled code has no guard. Hooks of
    the modules themselves run outside of it. A call raises NotCaptured for what is not one graph, and errors of the
    backend as they are.

    Parameters:
        compiler: The backend.
        modules: How many modules the function will be called with.
    """
    allow_compilations(modules)

    @functools.cache
    def call_of(alone: nn.Module | None, of_torch: bool) -> Callable[..., Any]:
        return torch.compile(
            _forward if of_torch else nn.Module._call_impl,
            backend=compiler,
            fullgraph=True,
            dynamic=False,
            isolate_recompiles=True,
            recompile_limit=MAX_STEPS * modules,
        )

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        of_torch = _runs_torch(module)
        call = call_of(module if _holds_hooks(module) else None, of_torch)
        try:
            with undivided_graphs():
                if not of_torch:
                    return call(module, *args, **kwargs)
                with _forward_replaced(module, call):
                    return module._call_impl(*args, **kwargs)
        except COMPILE_ERRORS as error:
            raise capture_error(error) from None
        except RuntimeError as error:
            if not NOT_COMPILED.match(str(error)) or not is_in_torch_dispatch_mode():
                raise
            raise NotCaptured(MODES) from None

    def compiled(module: M) -> M:
        copied = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, MethodType) and value.__self__ is module:
                vars(copied)[name] = MethodType(value.__func__, copied)
        copied._compiled_call_impl = functools.partial(called, copied)
        return copied

    return compiled


def backend_of(module: nn.Module) -> Any:
    """The backend that plans the steps of a module, or None: copies of a planned module have none.

    It is an attribute of the call that PyTorch leaves out when it copies or pickles a module.
    """
    return getattr(module._compiled_call_impl, "remat_backend", None)


@contextlib.contextmanager
def tensors_put_back(module: nn.Module, inputs: Any) -> Iterator[None]:
    """A step inside leaves the buffers of a module, and the tensors in its inputs, as they were."""
    entries = [(each._buffers, dict(each._buffers)) for each in module.modules()]
    given = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and not leaf.is_inference()]
    versions = [(tensor, tensor._version, tensor.detach().clone()) for tensor in given]
    expanded = 1  # no op writes to such a tensor
    buffers = [each for each in module.buffers() if torch._debug_has_internal_overlap(each) != expanded]
    contents = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        for now, before in entries:
            now.update(before)
        contents += [(tensor, content) for tensor, version, content in versions if tensor._version != version]
        with torch.no_grad():
            for tensor, content in contents:
                tensor.copy_(content)


def _runs_torch(module: nn.Module) -> bool:
    """Whether the forward pass is a function of PyTorch, in which `torch.compile` does not start; not one set later."""
    return "forward" not in module.__dict__ and type(module).forward.__module__.startswith("torch.")


def _holds_hooks(module: nn.Module) -> bool:
    """Whether a module inside of one has hooks, its own or those of all modules."""
    return has_global_hooks() or any(
        inner._forward_hooks or inner._forward_pre_hooks or inner._backward_hooks or inner._backward_pre_hooks
        for inner in module.modules()
        if inner is not module
    )


@contextlib.contextmanager
def _forward_replaced(module: nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """Inside, the forward pass of a module is another function of it."""
    module.__dict__["forward"] = functools.partial(call, module)
    try:
        yield
    finally:
        del module.__dict__["forward"]


def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward pass of a module of PyTorch, in a function in which `torch.compile` starts."""
    return type(self).forward(self, *args, **kwargs)


def refuse_lost_dropout(graph: fx.GraphModule) -> None:
    """Raise NotCaptured for a recurrent layer whose dropout PyTorch's decomposition leaves out."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in RECURRENT:
            after_bias = next(number for number, each in enumerate(node.args) if isinstance(each, bool)) + 1
            layers, dropout, training = node.args[after_bias : after_bias + 3]
            if layers > 1 and dropout > 0 and training:
                raise NotCaptured(
                    f"{node.name}: PyTorch records recurrent layers without the dropout of {dropout} between them; "
                    "use one layer for each nn.LSTM, nn.GRU or nn.RNN with nn.Dropout between, or a loop over cells"
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
