"""Recording one eager training step, op by op, for models that are not one graph: for planning and prediction only.

    op that PyTorch dispatches               ──▶  node; views are folded into the storages that they show
    op that writes to its arguments          ──▶  node with outputs `in_place`
    tensor that Python or autograd keeps     ──▶  read by the last op before it is freed (`held` in the annotations)
    storage that Python code resizes         ──▶  node `eager::Allocated`, or the end of its value (FSDP2)
    tensor that no recorded op has computed  ──▶  node `eager::Unrecorded`, which is never repeated; state if it is
                                                  not freed by the end of the step

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remat.torch.step.dispatched import (
    Call,
    effect_of,
    is_wrapper,
    number_of,
    plain_tensors,
    replayed,
    resizes_seen,
    traffic_of,
    written_by,
)
from remat.torch.step.document import dtype_name, flops_of, noted, op_name, ranks_of
from remat.torch.step.errors import NotCaptured
from remat.torch.step.recording import backend_of, tensors_put_back
from remat.torch.step.workspace import workspace_of

UNRECORDED, ALLOCATED = "eager::Unrecorded", "eager::Allocated"
SETTLES = 0.01  # seconds; after a collective a thread of gloo holds its tensors a little longer
_TORCH = str(Path(torch.__file__).parent)


@dataclass(eq=False)
class _Storage:
    """A storage of the step; `content` names the value that it holds now, "" while it is resized to no bytes.

    The reference keeps its number unique.
    """

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
    arguments = [leaf for leaf in tree_leaves((list(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    given = {f"arguments.{i}": tensor for i, tensor in enumerate(arguments)}
    for what, tensors in (
        ("parameter", dict(module.named_parameters())),
        ("state", dict(module.named_buffers())),
        ("input", given),
    ):
        for path, tensor in tensors.items():
            for i, plain in enumerate(plain_tensors(tensor)):
                recorder.add_resident(f"{path}.{i}" if i else path, plain, what)
    leaves = [t for t in (*module.parameters(), *arguments) if t.requires_grad and t.is_leaf]

    def step(before_backward: Callable[[], None]) -> Any:
        returned = module(*args, **kwargs) if loss is None else loss(module(*args, **kwargs))
        ends = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not ends:
            raise NotCaptured("the step has no backward pass: nothing that it returns requires a gradient")
        before_backward()
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        return returned

    put_back = functools.partial(_state_put_back, module, arguments, leaves)
    if recorder.planned:
        with put_back(), torch.enable_grad():
            step(lambda: None)  # parameters may have been sharded since the plan was compiled
    with put_back(), recorder.hooks(), resizes_seen(recorder.note_resize), torch.enable_grad():
        with recorder:
            returned = step(recorder.begin_backward)
        return recorder.document(name, plain_tensors(returned), leaves), recorder.device


@contextmanager
def _state_put_back(
    module: nn.Module, inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> Iterator[None]:
    """A step inside leaves inputs, gradients, buffers and generators as they were; it starts without gradients."""
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        with torch.random.fork_rng(), tensors_put_back(module, inputs):
            yield
    finally:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient


class _Recorder(TorchDispatchMode):
    """Writes the nodes and values of a document while a step runs inside of it."""

    supports_higher_order_operators = True  # plans replay random ops by them

    def __init__(self, module: nn.Module, measure: bool):
        super().__init__()
        plans = [plan for inner in module.modules() if (plan := backend_of(inner)) is not None]
        if any(plan.compiler == "inductor" for plan in plans):
            raise NotCaptured("a module has a plan for Inductor, whose kernels cannot be recorded one by one")
        self.planned = bool(plans)
        self.paths = {inner: path for path, inner in module.named_modules()}
        self.measure, self.phase, self.device = measure, "forward", torch.device("cpu")
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.storages: dict[int, _Storage] = {}
        self.names: dict[str, int] = {}  # op -> calls so far
        self.entered: list[str] = []  # paths of the modules whose forward runs
        self.live: dict[int, _Storage] = {}  # storages of the step that were not freed when the last op began
        self.unrecorded: list[str] = []
        self.foreign: dict[int, str] = {}  # storages of unrecorded tensors, and their names

    def ignore_compile_internals(self) -> bool:
        """Whether compiled modules run compiled: those with a plan run op by op; others run as without a compiler."""
        return self.planned

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Notes the module whose forward runs."""

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def enter(module: nn.Module, _: Any) -> None:
            self.entered.append(self.paths.get(module, ""))

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def leave(*_: Any) -> None:
            self.entered.pop()

        hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin_backward(self) -> None:
        self.phase = "backward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented  # its ops on the tensors of this rank come here by themselves
        kwargs = kwargs or {}
        if getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs)
        self._note_freed()
        given = plain_tensors((args, kwargs))
        reads = list(dict.fromkeys(filter(None, map(self._read, given))))
        began = self._now()
        result = func(*args, **kwargs)
        seconds = self._now() - began
        made = plain_tensors(result)
        replay, op, op_args, value = replayed(func, args, result)
        written = [] if replay else written_by(func, args, kwargs)
        if made and not written and all(number_of(tensor) in self.storages for tensor in made):
            return result  # a view
        call = Call(op, op_args, kwargs, {"val": value})
        name = self._name(op)
        in_place = {}
        outputs: list[str] = []
        for storage in dict.fromkeys(self.storages[number_of(tensor)] for tensor in written):
            outputs.append(f"{name}.{len(outputs)}")
            in_place[outputs[-1]] = storage.content
            self.values.append({"name": outputs[-1], **storage.fields})
            storage.content = outputs[-1]
        new = {number_of(tensor): tensor for tensor in made if number_of(tensor) not in self.storages}
        for tensor in new.values():
            outputs.append(f"{name}.{len(outputs)}" if outputs or len(new) > 1 else name)
            self._add_computed(outputs[-1], tensor)
        cost: dict[str, Any] = {"flops": flops_of(call), "traffic_bytes": traffic_of((*given, *made))}
        workspace = {"workspace_bytes": held} if (held := workspace_of(call)) else {}
        self.nodes.append(
            {
                "name": name,
                "op": op_name(call),
                "inputs": reads,
                "outputs": outputs,
                "phase": self.phase,
                "cost": ({"seconds": seconds} if self.measure else cost) | workspace,
                **({"in_place": in_place} if in_place else {}),
                **({"attributes": ranks} if (ranks := ranks_of(call)) else {}),
                **({"recompute": "never"} if replay else effect_of(call, name, bool(outputs))),
                **noted(module=self.entered[-1] if self.entered else "", line=_users_line()),
            }
        )
        return result

    def _note_freed(self) -> None:
        """What was freed since the last op began was held until then: that op reads it."""
        if self.device.type == "cpu" and any(node.get("effect") == "collective" for node in self.nodes[-2:]):
            time.sleep(SETTLES)
        for number in [number for number, storage in self.live.items() if storage.reference.expired()]:
            self._end(number)

    def _end(self, number: int) -> None:
        content, node = self.live.pop(number).content, self.nodes[-1]
        if content not in node["inputs"] and content not in node["outputs"]:
            node["inputs"].append(content)
            node.setdefault("annotations", {}).setdefault("held", []).append(content)

    def note_resize(self, resized: torch.UntypedStorage, size: int) -> None:
        """A storage of no bytes holds no value; one that gets bytes holds a new value, which ops then write to."""
        self._note_freed()
        number = int(resized._cdata)
        storage = self.storages.setdefault(number, _Storage(StorageWeakRef(resized), "", {}))
        if number in self.live:
            self._end(number)
        storage.content = ""
        if not size:
            return
        storage.content = self._name("allocated")
        if storage.fields.get("bytes") != size:
            storage.fields = {"shape": [size], "dtype": "uint8"}
        self.values.append({"name": storage.content, **storage.fields})
        self.live[number] = storage
        node = {"name": storage.content, "op": ALLOCATED, "inputs": [], "outputs": [storage.content]}
        self.nodes.append({**node, "phase": self.phase, "recompute": "never", "cost": {"seconds": 0.0}})

    def add_resident(self, path: str, tensor: torch.Tensor, role: str) -> None:
        """A tensor that exists before the step. Several in one storage are one value."""
        if number_of(tensor) not in self.storages:
            self._add_value(path, tensor, role=role)

    def document(self, name: str, returned: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The document of what was recorded; its outputs are results, gradients, and what else is still held."""
        self._note_freed()
        named = {
            self._read(plain): self._read(gradient)
            for leaf in leaves
            if leaf.grad is not None
            for plain, gradient in zip(plain_tensors(leaf), plain_tensors(leaf.grad), strict=True)
        }
        outliving = self._outliving({*named.values(), *map(self._read, returned)})
        computed = {output for node in self.nodes for output in node["outputs"]}
        ends = [*map(self._read, returned), *(storage.content for storage in self.live.values())]
        annotations: dict[str, Any] = {"framework": f"torch {torch.__version__}", "recording": "eager"}
        warnings = annotations["import_warnings"] = []
        if others := len(self.unrecorded) - outliving:
            warnings.append(
                f"{others} tensors come from outside of PyTorch's dispatcher (the first is read by "
                f"{self.unrecorded[0]}): what computes them is one node each without inputs, which is never repeated"
            )
        if outliving:
            warnings.append(
                f"{outliving} tensors from outside of PyTorch's dispatcher are not freed by the end of the step, such "
                "as buckets of DistributedDataParallel: they count as held from its begin on; record a step after a "
                "trained one, since the first one may allocate them"
            )
        if resized := sum(node["op"] == ALLOCATED for node in self.nodes):
            warnings.append(
                f"memory is allocated {resized} times by resizing a storage, as FSDP2 does when it gathers parameters: "
                "a plan that recomputes what reads it in the forward pass holds it until then, while FSDP2 frees it; "
                "use this document to predict peaks, and plan the modules that are sharded"
            )
        return {
            "format": "remat/1",
            "name": name,
            "values": self.values,
            "nodes": self.nodes,
            "outputs": [value for value in dict.fromkeys([*ends, *named.values()]) if value in computed],
            "gradients": {leaf: gradient for leaf, gradient in named.items() if gradient in computed},
            "annotations": annotations,
        }

    def _outliving(self, results: Collection[str]) -> int:
        """Number of unrecorded tensors that are still held, results aside; they become states of the step."""
        found = {
            name: number
            for number, name in self.foreign.items()
            if number in self.live and self.live[number].content not in results
        }
        for number in found.values():
            del self.live[number]
        self.nodes = [node for node in self.nodes if not (node["op"] == UNRECORDED and node["outputs"][0] in found)]
        self.values = [value | {"role": "state"} if value["name"] in found else value for value in self.values]
        return len(found)

    def _read(self, tensor: torch.Tensor) -> str:
        """Name of the value that the storage of a tensor holds now."""
        if number_of(tensor) not in self.storages:
            if self.nodes and self.nodes[-1].get("effect") == "collective":  # what its backend made to write there
                if "workspace_bytes" in self.nodes[-1]["cost"]:
                    self.storages[number_of(tensor)] = _Storage(StorageWeakRef(tensor.untyped_storage()), "", {})
                    return ""
                self.nodes[-1]["outputs"].append(name := f"{self.nodes[-1]['name']}.backend")
                self._add_value(name, tensor)  # ends with its last reader: a thread of the backend may hold it longer
                return name
            name = self._name("unrecorded")
            self.unrecorded.append(_users_line() or "the backward pass")
            self._add_computed(name, tensor)
            self.foreign[number_of(tensor)] = name
            node = {"name": name, "op": UNRECORDED, "inputs": [], "outputs": [name], "phase": self.phase}
            self.nodes.append({**node, "effect": "once", "cost": {"seconds": 0.0}})
        return self.storages[number_of(tensor)].content

    def _add_value(self, name: str, tensor: torch.Tensor, **more: Any) -> None:
        fields: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype)}
        size = tensor.untyped_storage().nbytes()
        if size != tensor.numel() * tensor.element_size():
            fields |= {"bytes": size, "fixed_bytes": True}
        self.values.append({"name": name, **fields, **more})
        self.storages[number_of(tensor)] = _Storage(StorageWeakRef(tensor.untyped_storage()), name, fields)
        if tensor.device.type != "cpu":
            self.device = tensor.device

    def _add_computed(self, name: str, tensor: torch.Tensor) -> None:
        self._add_value(name, tensor)
        self.live[number_of(tensor)] = self.storages[number_of(tensor)]

    def _name(self, func: Any) -> str:
        base = func if isinstance(func, str) else func._schema.name.partition("::")[2]
        count = self.names[base] = self.names.get(base, 0) + 1
        return base if count == 1 else f"{base}_{count - 1}"

    def _now(self) -> float:
        if self.measure and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _users_line() -> str:
    """`file:line` of the innermost Python frame of the module or the loss; "" in the backward pass."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return "" if file == __file__ else f"{file}:{frame.f_lineno}"
