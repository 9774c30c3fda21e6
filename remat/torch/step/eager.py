"""Recording one eager training step, op by op, for models that are not one graph: for planning and prediction only.

    op that PyTorch dispatches               ──▶  node; views are folded into the storages that they show
    op that writes to its arguments          ──▶  node with outputs `in_place`
    tensor that Python or autograd keeps     ──▶  read by the last op before it is freed (`held` in the annotations)
    tensor that no recorded op has computed  ──▶  node `eager::Unrecorded`, which is never repeated

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remat.torch.step.document import COLLECTIVES, dtype_name, flops_of, noted, op_name, stored_bytes
from remat.torch.step.errors import NotCaptured
from remat.torch.step.joint import is_random

UNRECORDED = "eager::Unrecorded"
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, eq=False)
class _Call:
    """One dispatched op, with the fields of an `fx.Node` that flops, name and randomness are read from."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class _Storage:
    """A storage of the step; `content` names the value that it holds now. The reference keeps its number unique."""

    reference: StorageWeakRef
    content: str
    fields: Mapping[str, Any]  # shape, dtype and size of its values


def record_eager_step(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], torch.Tensor] | None,
    name: str,
    measure: bool,
) -> tuple[dict[str, Any], torch.device]:
    """(document, device) of one step that is run: forward pass, loss and backward pass.

    Gradients, buffers and random generators are put back; what else the module changes, stays changed. With `measure`
    every op is timed in its one run. Raises NotCaptured.
    """
    recorder = _Recorder(module, measure)
    given = {f"arguments.{i}": tensor for i, tensor in enumerate(_tensors((list(args), dict(kwargs))))}
    for what, tensors in (
        ("parameter", dict(module.named_parameters())),
        ("state", dict(module.named_buffers())),
        ("input", given),
    ):
        for path, tensor in tensors.items():
            recorder.add_resident(path, tensor, what)
    leaves = [t for t in (*module.parameters(), *given.values()) if t.requires_grad and t.is_leaf]
    with _state_put_back(module, leaves), recorder.hooks(), torch.enable_grad():
        with recorder:
            returned = module(*args, **kwargs) if loss is None else loss(module(*args, **kwargs))
            ends = [tensor for tensor in _tensors(returned) if tensor.requires_grad]
            if not ends:
                raise NotCaptured("the step has no backward pass: nothing that it returns requires a gradient")
            recorder.phase = "backward"
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        return recorder.document(name, _tensors(returned), leaves), recorder.device


@contextmanager
def _state_put_back(module: nn.Module, leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """A step inside leaves gradients, buffers and generators as they were; it starts without gradients."""
    gradients = [leaf.grad for leaf in leaves]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    for leaf in leaves:
        leaf.grad = None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        with torch.no_grad():
            for buffer, content in buffers:
                buffer.copy_(content)


class _Recorder(TorchDispatchMode):
    """Writes the nodes and values of a document while a step runs inside of it."""

    def __init__(self, module: nn.Module, measure: bool):
        super().__init__()
        self.paths = {inner: path for path, inner in module.named_modules()}
        self.measure, self.phase, self.device = measure, "forward", torch.device("cpu")
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.storages: dict[int, _Storage] = {}
        self.names: dict[str, int] = {}  # op -> calls so far
        self.entered: list[str] = []  # paths of the modules whose forward runs
        self.live: dict[int, _Storage] = {}  # storages of the step that were not freed when the last op began
        self.unrecorded: list[str] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Notes the module whose forward runs."""

        def enter(module: nn.Module, _: Any) -> None:
            self.entered.append(self.paths.get(module, ""))

        def leave(*_: Any) -> None:
            self.entered.pop()

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note_freed()
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        reads = list(dict.fromkeys(self._read(tensor) for tensor in given))
        began = self._now()
        result = func(*args, **kwargs)
        seconds = self._now() - began
        made = _tensors(result)
        written = _written(func, args, kwargs)
        if made and not written and all(_number(tensor) in self.storages for tensor in made):
            return result  # a view
        call = _Call(func, args, kwargs, {"val": result})
        name = self._name(func)
        in_place = {}
        outputs: list[str] = []
        for storage in dict.fromkeys(self.storages[_number(tensor)] for tensor in written):
            outputs.append(f"{name}.{len(outputs)}")
            in_place[outputs[-1]] = storage.content
            self.values.append({"name": outputs[-1], **storage.fields})
            storage.content = outputs[-1]
        new = {_number(tensor): tensor for tensor in made if _number(tensor) not in self.storages}
        for tensor in new.values():
            outputs.append(f"{name}.{len(outputs)}" if outputs or len(new) > 1 else name)
            self._add_computed(outputs[-1], tensor)
        cost: dict[str, Any] = {"flops": flops_of(call), "traffic_bytes": _traffic((*given, *made))}
        self.nodes.append(
            {
                "name": name,
                "op": op_name(call),
                "inputs": reads,
                "outputs": outputs,
                "phase": self.phase,
                "cost": {"seconds": seconds} if self.measure else cost,
                **({"in_place": in_place} if in_place else {}),
                **_effect(call, name, bool(outputs)),
                **noted(module=self.entered[-1] if self.entered else "", line=_users_line()),
            }
        )
        return result

    def _note_freed(self) -> None:
        """What was freed since the last op began was held until then: that op reads it."""
        for number in [number for number, storage in self.live.items() if storage.reference.expired()]:
            content, node = self.live.pop(number).content, self.nodes[-1]
            if content not in node["inputs"] and content not in node["outputs"]:
                node["inputs"].append(content)
                node.setdefault("annotations", {}).setdefault("held", []).append(content)

    def add_resident(self, path: str, tensor: torch.Tensor, role: str) -> None:
        """A tensor that exists before the step. Several in one storage are one value."""
        if _number(tensor) not in self.storages:
            self._add_value(path, tensor, role=role)

    def document(self, name: str, returned: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The document of what was recorded; its outputs are results, gradients, and what else is still held."""
        self._note_freed()
        named = {self._read(leaf): self._read(leaf.grad) for leaf in leaves if leaf.grad is not None}
        computed = {output for node in self.nodes for output in node["outputs"]}
        ends = [*map(self._read, returned), *(storage.content for storage in self.live.values())]
        annotations: dict[str, Any] = {"framework": f"torch {torch.__version__}", "recording": "eager"}
        if self.unrecorded:
            annotations["import_warnings"] = [
                f"{len(self.unrecorded)} tensors come from outside of PyTorch's dispatcher (the first is read by "
                f"{self.unrecorded[0]}): what computes them is one node each without inputs, which is never repeated"
            ]
        return {
            "format": "remat/1",
            "name": name,
            "values": self.values,
            "nodes": self.nodes,
            "outputs": [value for value in dict.fromkeys([*ends, *named.values()]) if value in computed],
            "gradients": {leaf: gradient for leaf, gradient in named.items() if gradient in computed},
            "annotations": annotations,
        }

    def _read(self, tensor: torch.Tensor) -> str:
        """Name of the value that the storage of a tensor holds now."""
        if _number(tensor) not in self.storages:
            name = self._name("unrecorded")
            self.unrecorded.append(_users_line() or "the backward pass")
            self._add_computed(name, tensor)
            node = {"name": name, "op": UNRECORDED, "inputs": [], "outputs": [name], "phase": self.phase}
            self.nodes.append({**node, "effect": "once", "cost": {"seconds": 0.0}})
        return self.storages[_number(tensor)].content

    def _add_value(self, name: str, tensor: torch.Tensor, **more: Any) -> None:
        fields: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
        size = tensor.untyped_storage().nbytes()
        if size != tensor.numel() * tensor.element_size():
            fields |= {"bytes": size, "fixed_bytes": True}
        self.values.append({"name": name, **fields, **more})
        self.storages[_number(tensor)] = _Storage(StorageWeakRef(tensor.untyped_storage()), name, fields)
        if tensor.device.type != "cpu":
            self.device = tensor.device

    def _add_computed(self, name: str, tensor: torch.Tensor) -> None:
        self._add_value(name, tensor)
        self.live[_number(tensor)] = self.storages[_number(tensor)]

    def _name(self, func: Any) -> str:
        base = func if isinstance(func, str) else func._schema.name.partition("::")[2]
        count = self.names[base] = self.names.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count - 1}"

    def _now(self) -> float:
        if self.measure and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _number(tensor: torch.Tensor) -> int:
    """The number of a tensor's storage, which is not given to another one while it has a weak reference."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        raise NotCaptured(
            f"a tensor without a storage ({tensor.layout}), such as a sparse one; use dense ones"
        ) from None


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Tensors among the arguments of a call that its schema says it writes to."""
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += _tensors(value)
    return found


def _effect(call: _Call, name: str, has_outputs: bool) -> dict[str, Any]:
    """Fields about repeats. Only functional ops of PyTorch itself are repeated, random ones with their numbers."""
    if call.target.namespace in COLLECTIVES:
        return {"effect": "collective", "recompute": "never"}
    if not has_outputs:
        return {"effect": "once"}
    if is_random(call):
        return {"effect": "random", "stream": name}
    if call.target.namespace != "aten" or "empty" in call.target._schema.name:  # whoever fills the memory is unknown
        return {"recompute": "never"}
    return {"effect": "unstable"} if torch.Tag.nondeterministic_bitwise in call.target.tags else {}


def _traffic(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes moved by an op that reads and writes these tensors."""
    return sum(stored_bytes(tensor) for tensor in {_number(tensor): tensor for tensor in tensors}.values())


def _users_line() -> str:
    """`file:line` of the innermost Python frame of the module or the loss; "" in the backward pass."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return "" if file == __file__ else f"{file}:{frame.f_lineno}"
