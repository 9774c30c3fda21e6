"""The joint graph of a training step, as ahead-of-time autograd of PyTorch writes it: tasks, views and storages.

    fx node ──▶ placeholder           an input of the step
            ──▶ task                  computes; its results are one tensor or the elements of a tuple
            ──▶ view, element         shares the storage of another node, or picks an element of a task

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from remat.torch.step.errors import NotCaptured

BACKWARD = ("is_backward", "must_be_in_backward")
_ROOT = re.compile(r"^L\['\w+'\]\.?")  # the module that is recorded, in paths
BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
ADD = torch.ops.aten.add.Tensor
#: Ops that wait for a functional collective, by name: PyTorch may be built without them.
WAITS = ("_c10d_functional.wait_tensor.default", "c10d_functional.wait_tensor.default")
BATCH_NORM_GRADIENT = torch.ops.aten.native_batch_norm_backward.default
DROPOUTS = {  # random op -> position of its probability; with 0 it draws nothing
    torch.ops.aten.native_dropout.default: 1,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    torch.ops.aten._scaled_dot_product_flash_attention.default: 3,
    torch.ops.aten._scaled_dot_product_efficient_attention.default: 5,
}


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a task or an input holds: the node, and the element if the node's value is a tuple."""

    node: fx.Node
    element: int | None = None


class Joint:
    """Forward and backward pass of a module in one functional graph.

    Parameters:
        module: The joint graph; nodes carry `val` (fake tensors), `partitioner_tag` and, on inputs and outputs, `desc`.
        forward_outputs: Number of leading outputs that the forward pass returns.

    Raises:
        NotCaptured: A shape depends on data, or is dynamic.
    """

    def __init__(self, module: fx.GraphModule, forward_outputs: int):
        self.module, self.forward_outputs = module, forward_outputs
        self.nodes = list(module.graph.nodes)
        (output,) = module.graph.find_nodes(op="output")
        self.outputs: list[fx.Node | None] = [item if isinstance(item, fx.Node) else None for item in output.args[0]]
        self.output_descriptions: list[Any] = list(output.meta.get("desc") or [None] * len(self.outputs))
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self._backward = self._backward_nodes()
        self.inputs = [node for node in placeholders if not self.is_backward(node)]
        self.tangents = [node for node in placeholders if self.is_backward(node)]
        self._views: dict[fx.Node, fx.Node] = {}  # view or element -> node it shows
        self.tasks = [node for node in self.nodes if self._is_task(node)]

    def _backward_nodes(self) -> set[fx.Node]:
        """Nodes marked as of the backward pass, and what reads them: nodes that a compiler inserts have no mark."""
        found: set[fx.Node] = set()
        for node in self.nodes:
            marked = node.meta.get("partitioner_tag") in BACKWARD or node.name.startswith("tangents_")
            if marked or any(source in found for source in node.all_input_nodes):
                found.add(node)
        return found

    def is_backward(self, node: fx.Node) -> bool:
        """Whether a node belongs to the backward pass."""
        return node in self._backward

    def _is_task(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        for tensor in tensors_of(node):
            if any(not isinstance(size, int) for size in tensor.shape):
                raise NotCaptured(f"{where(node)}: a shape that is not fixed, {tuple(tensor.shape)}; {STATIC}")
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotCaptured(f"{where(node)}: a number that depends on data or on a shape; {STATIC}")
        if node.target is operator.getitem:
            self._views[node] = node.args[0]
            return False
        if is_mutation(node):
            return True
        if is_wait(node):
            self._views[node] = node.args[0]
            return False
        storages = {storage_of(tensor) for tensor in tensors_of(node)}
        for source in node.all_input_nodes:
            if storages and storages == {storage_of(tensor) for tensor in tensors_of(source)}:
                self._views[node] = source
                return False
        return True

    def is_view(self, node: fx.Node) -> bool:
        """Whether a node only shows the storage of another one; elements of tuples that a task computes do not."""
        return node in self._views and not self.is_element(node)

    def is_element(self, node: fx.Node) -> bool:
        """Whether a node picks an element of what a task computes."""
        return node.target is operator.getitem and self._views[node] not in self._views

    def shown(self, node: fx.Node) -> fx.Node:
        """The node whose value a view shows."""
        return self._views[node]

    def result(self, node: fx.Node) -> Result:
        """The tensor whose storage a node's value lies in."""
        while node in self._views:
            if self.is_element(node):
                return Result(self._views[node], int(node.args[1]))
            node = self._views[node]
        return Result(node)

    def reads(self, node: fx.Node) -> list[Result]:
        """The tensors that a node reads, each once, through whatever views."""
        found = (self.result(source) for source in node.all_input_nodes if tensors_of(source))
        return list(dict.fromkeys(found))

    @cached_property
    def elements(self) -> dict[fx.Node, dict[int, fx.Node]]:
        """For each node whose value is a tuple: the first node that picks each element, where one does."""
        found: dict[fx.Node, dict[int, fx.Node]] = {}
        for node, source in self._views.items():
            if node.target is operator.getitem:
                found.setdefault(source, {}).setdefault(int(node.args[1]), node)
        return found

    @cached_property
    def returned(self) -> set[Result]:
        """What the forward pass returns."""
        return {self.result(node) for node in self.outputs[: self.forward_outputs] if node is not None}

    @cached_property
    def mutated(self) -> set[fx.Node]:
        """Inputs that the step overwrites after its forward pass: running statistics, counters, caches."""
        indices = {
            described.mutated_input for described in self.output_descriptions if hasattr(described, "mutated_input")
        }
        written = {self.result(node.args[0]).node for node in self.tasks if is_mutation(node)}
        return {node for node in self.inputs if node.meta.get("desc") in indices or node in written}

    @cached_property
    def gradients(self) -> list[tuple[fx.Node, fx.Node]]:
        """Pairs of an input and its gradient."""
        by_description = {node.meta.get("desc"): node for node in self.inputs}
        return [
            (by_description[described.grad_of], output)
            for described, output in zip(self.output_descriptions, self.outputs, strict=True)
            if output is not None and hasattr(described, "grad_of") and described.grad_of in by_description
        ]

    @cached_property
    def device(self) -> torch.device:
        """The device of the step: an accelerator, if it has tensors on one."""
        devices = {tensor.device for node in self.tasks for tensor in tensors_of(node)}
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def overwritable(self, task: fx.Node) -> list[int]:
        """Positions of the operands that a sum of the backward pass may overwrite if it is their last reader.

        Autograd adds gradients of one value so. A plan overwrites the first of them that ends there: same type, shape
        and strides as the sum, all of a storage that only ops of PyTorch write and read, none of it kept from before.
        """
        if task.target is not ADD or not self.is_backward(task):
            return []
        total, (left, right) = task.meta["val"], task.args[:2]
        if not isinstance(right, fx.Node) or self.result(left) == self.result(right):
            return []
        return [i for i, node in enumerate((left, right)) if self._is_own(node) and _is_alike(node.meta["val"], total)]

    def _is_own(self, node: fx.Node) -> bool:
        """Whether a storage is of the backward pass, is that of one result only, and is seen by ops of PyTorch only."""
        result = self.result(node)
        computed = self.is_backward(result.node) and result.node.op == "call_function"
        return computed and len(self._results[storage_of(node.meta["val"])]) == 1 and result not in self._seen_outside

    @cached_property
    def _results(self) -> dict[int, set[Result]]:
        """For each storage, the results that lie in it."""
        found: dict[int, set[Result]] = {}
        for node in self.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                found.setdefault(storage_of(value), set()).add(self.result(node))
            elif isinstance(value, (list, tuple)) and node not in self._views:
                for element, tensor in enumerate(value):
                    if isinstance(tensor, torch.Tensor):
                        found.setdefault(storage_of(tensor), set()).add(Result(node, element))
        return found

    @cached_property
    def _seen_outside(self) -> set[Result]:
        """What ops outside of PyTorch's own read or return, which may be one storage without a note of it."""
        found: set[Result] = set()
        for task in self.tasks:
            if not isinstance(task.target, torch._ops.OpOverload) or task.target.namespace not in ("aten", "prims"):
                found.update(self.reads(task))
                found.add(Result(task))
                found.update(Result(task, element) for element in range(len(tensors_of(task))))
        return found

    def modules(self) -> list[str]:
        """Paths of the modules that the forward pass calls once, each with all that runs in the modules below it.

        A module that is called from several places, or under several names, is not one region of the step.
        """
        calls: dict[str, set[tuple[tuple[str, str], ...]]] = {}  # module -> where it was called
        paths: dict[str, str] = {}  # path -> module
        broken: set[str] = set()
        for stack in {tuple(module_stack(node)): None for node in self.nodes if not self.is_backward(node)}:
            for depth, (key, path) in enumerate(stack):
                calls.setdefault(key.split("@")[0], set()).add(stack[: depth + 1])
                paths[path] = key.split("@")[0]
            inside = {path for _, path in stack}
            parts = stack[-1][1].split(".") if stack else []
            broken |= {".".join(parts[:depth]) for depth in range(1, len(parts))} - inside
        return [path for path, key in paths.items() if path and len(calls[key]) == 1 and path not in broken]


STATIC = "only graphs with fixed shapes can be planned: mark no dimension as dynamic, and move what depends on data out"


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors of a node's value: itself, or the elements of a tuple."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _is_alike(operand: torch.Tensor, total: torch.Tensor) -> bool:
    """Whether a sum written over an operand has the bytes that it has in memory of its own."""
    alike = all(getattr(operand, field) == getattr(total, field) for field in ("shape", "dtype", "device", "layout"))
    if not alike or operand.layout != torch.strided or operand.stride() != total.stride():
        return False
    return 0 < total.nbytes == total.untyped_storage().nbytes() == operand.untyped_storage().nbytes()


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors with one storage have in common."""
    return int(tensor.untyped_storage()._cdata)


def is_mutation(node: fx.Node) -> bool:
    """Whether an op writes to its first argument; Inductor updates buffers by such ops."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_wait(node: fx.Node) -> bool:
    """Whether a node waits for a functional collective; it returns the tensor that the collective writes."""
    return str(node.target) in WAITS


def is_random(node: fx.Node) -> bool:
    """Whether an op draws random numbers."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    position = DROPOUTS.get(node.target)
    if position is None:
        return True
    if len(node.args) > position:
        return node.args[position] != 0.0
    return node.target is torch.ops.aten.native_dropout.default


def where(node: fx.Node) -> str:
    """An op, its module and the line of the user's code that calls it."""
    path, line = module_path(node), source_line(node)
    return f"{node.target}" + (f" in {path}" if path else "") + (f" ({line})" if line else "")


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules that call an op, or the op that a gradient is of, outermost first: (number of the call, path)."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return [(str(key), _ROOT.sub("", str(entry[0]))) for key, entry in stack.items()]


def module_path(node: fx.Node) -> str:
    """Path of the module that a node belongs to, such as `layers.0.attention`; "" for the outermost one."""
    return next((path for _, path in reversed(module_stack(node))), "")


def source_line(node: fx.Node) -> str:
    """`file:line` of the user's code behind a node; "" where it is not recorded."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.lstrip().startswith("File ")]
    if not lines:
        return ""
    file, number = lines[-1].strip().removeprefix("File ").split(", line ")[:2]
    return f"{file.strip(chr(34))}:{number.split(',')[0]}"
