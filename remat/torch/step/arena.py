"""Values at the addresses of a layout: one block of bytes for each step, which the runs of its tasks write into.

    layout   │ parameters, buffers, inputs │ values of the step, workspaces │
    memory   where they are                 one block, made by the forward pass

    op with an out= kernel    writes its result at the address
    any other op              returns a result elsewhere, which is moved to the address at once

Outside of the block stay workspaces of kernels, what the forward pass returns (callers keep losses for longer than a
step), the gradients that come in from outside, and states of generators (PyTorch restores none from an address inside a
storage). Gradients lie in the block: it is freed when the last of them is cleared.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from remat.torch.step.aot import fake_bytes, has_kernel
from remat.torch.step.document import COLLECTIVES, element_name
from remat.torch.step.errors import NotPlaced, OtherStep
from remat.torch.step.joint import Joint, Result, is_mutation, is_random, tensors_of, where

COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)  # an out= kernel of these is `copy_`


class Place(NamedTuple):
    """Where a tensor lies in the block."""

    offset: int  # bytes
    nbytes: int  # of its storage
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # elements of the storage before the first one of the tensor
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a layout says about the values that lie in the block."""

    offsets: Mapping[tuple[str, int], int]  # (value, run of its task) -> bytes from the start of the block
    block_bytes: int
    outside_bytes: int  # beside the block: the largest workspace, with results on their way to an address
    moved: tuple[str, ...]  # tasks whose results are moved, because their ops have no out= kernel


def addresses_of(joint: Joint, layout: Mapping[str, Any], outside: int = 0) -> Addresses:
    """The addresses of a plan's layout, from the section `layout` of its report, and the bytes needed beside the block.

    Raises:
        OtherStep: The layout does not have a value of the step.
        NotPlaced: A result of the step cannot lie at an address.
    """
    inside = {name for task in joint.tasks for _, _, name in placed_results(joint, task)}
    rows = [
        row
        for row in zip(layout["value"], layout["run"], layout["offset"], layout["bytes"], strict=True)
        if row[0] in inside
    ]
    known = {row[0] for row in rows}
    for task in joint.tasks:
        for _, tensor, name in placed_results(joint, task):
            if name not in known and tensor.untyped_storage().nbytes():
                raise OtherStep(f"the layout of the plan has no address of {name!r}; plan again")
    base = min((offset for _, _, offset, _ in rows), default=0)
    return Addresses(
        {(value, run): offset - base for value, run, offset, _ in rows},
        max((offset + size for _, _, offset, size in rows), default=base) - base,
        outside,
        tuple(task.name for task in joint.tasks if moved_bytes(joint, task)),
    )


def placed_results(joint: Joint, task: fx.Node) -> Iterator[tuple[int | None, torch.Tensor, str]]:
    """(element, tensor, name) of the results of a task that lie in the block.

    Raises NotPlaced for a task whose results cannot lie there.
    """
    if is_mutation(task):
        return
    if getattr(task.target, "namespace", "") in COLLECTIVES:
        raise NotPlaced(f"{where(task)}: a collective writes to memory of its own; {ALLOCATOR}")
    value = task.meta.get("val")
    elements = enumerate(value) if isinstance(value, (list, tuple)) else ((None, value),)
    for element, tensor in elements:
        if not isinstance(tensor, torch.Tensor) or Result(task, element) in joint.returned:
            continue
        if tensor.layout != torch.strided or tensor.device != joint.device:
            kind = f"{str(tensor.layout).removeprefix('torch.')} tensor on {tensor.device}"
            raise NotPlaced(f"{where(task)}: a {kind} has no address in a block on {joint.device}; {ALLOCATOR}")
        yield element, tensor, task.name if element is None else element_name(joint, task, element)


ALLOCATOR = 'take that op out of the module, or let PyTorch place values: memory="allocator"'


def moved_bytes(joint: Joint, task: fx.Node) -> int:
    """Bytes that one run of a task returns elsewhere, before they are moved to their addresses."""
    if _out_kernel(joint, task) is not None:
        return 0
    return sum(tensor.untyped_storage().nbytes() for _, tensor, _ in placed_results(joint, task))


def outside_bytes(joint: Joint, document: Mapping[str, Any]) -> int:
    """Largest number of bytes that a task of a step needs outside of the block while it runs."""
    workspaces = {node["name"]: (node.get("cost") or {}).get("workspace_bytes") or 0 for node in document["nodes"]}
    return max((workspaces.get(task.name, 0) + moved_bytes(joint, task) for task in joint.tasks), default=0)


def without_workspaces(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a step whose tasks have no workspace: the largest of them is reserved beside the block."""
    nodes = [
        {**node, "cost": {**node["cost"], "workspace_bytes": 0}} if "workspace_bytes" in node.get("cost", {}) else node
        for node in document["nodes"]
    ]
    return {**document, "nodes": nodes}


class Placer:
    """Writes the runs of one pass so that their results lie in the block."""

    def __init__(self, joint: Joint, addresses: Addresses, graph: fx.Graph):
        self.joint, self.addresses, self.graph = joint, addresses, graph
        self.block: fx.Node | None = None

    def add_block(self) -> tuple[fx.Node, fx.Node]:
        """In the forward pass: (block, whether its backward pass has begun), which the backward pass takes."""
        joint, size = self.joint, self.addresses.block_bytes
        self.block = self.graph.call_function(new_block, (size, joint.device))
        begun = self.graph.call_function(new_block, (0, torch.device("cpu")))
        example = next(tensor for task in joint.tasks for tensor in tensors_of(task))
        self.block.meta["val"] = fake_bytes(example, size, joint.device)
        begun.meta["val"] = fake_bytes(example, 1, torch.device("cpu"))
        return self.block, begun

    def take_block(self, block: fx.Node, begun: fx.Node) -> None:
        """In the backward pass: the block, which its first run overwrites."""
        self.block = self.graph.call_function(taken, (block, begun))

    def placed(self, call: fx.Node, task: fx.Node, run: int) -> fx.Node:
        """A call whose results lie at the addresses of this run of a task."""
        found = [
            (element, self._place(tensor, name, run)) for element, tensor, name in placed_results(self.joint, task)
        ]
        if not any(place for _, place in found):
            return call
        kernel = _out_kernel(self.joint, task) if call.target is task.target else None
        places = _by_element(dict(found))
        if kernel is not None and all(places):
            call.args, call.target = (kernel, places, self.block, *call.args), written
            return call
        return self._moved(call, places)

    def _moved(self, value: fx.Node, places: tuple[Place | None, ...]) -> fx.Node:
        node = self.graph.call_function(moved, (places, self.block, value))
        node.meta = dict(value.meta)
        return node

    def _place(self, tensor: torch.Tensor, name: str, run: int) -> Place | None:
        offset, size = self.addresses.offsets.get((name, run)), tensor.untyped_storage().nbytes()
        if not size:
            return None
        if offset is None:
            raise OtherStep(f"the layout of the plan has no address of run {run} of {name!r}; plan again")
        start = int(tensor.storage_offset())
        return Place(offset, size, tuple(tensor.shape), tuple(tensor.stride()), start, tensor.dtype)


def _by_element(found: Mapping[int | None, Place | None]) -> tuple[Place | None, ...]:
    """One place for each element of a task's value."""
    if None in found:
        return (found[None],)
    return tuple(found.get(element) for element in range(1 + max(i for i in found if i is not None)))


def _out_kernel(joint: Joint, task: fx.Node) -> Any:
    """The op that writes all results of a task to tensors that it is given; None if it would only copy them there."""
    if is_random(task) or not isinstance(task.target, torch._ops.OpOverload):
        return None
    if task.target in COPIES:
        source = task.args[0]
        same = isinstance(source, fx.Node) and tensors_of(source)[0].device == tensors_of(task)[0].device
        return torch.ops.aten.copy_.default if same else None
    return _out_overload(task.target, joint.device.type)


@functools.cache
def _out_overload(op: torch._ops.OpOverload, device_type: str) -> torch._ops.OpOverload | None:
    """The overload with the same arguments and out= arguments that has a kernel of its own for a type of device."""
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments]
    for name in op._overloadpacket.overloads():
        other = getattr(op._overloadpacket, name)
        out = out_names(other)
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if a.name not in out]
        if len(out) == len(op._schema.returns) and rest == wanted and has_kernel(other, device_type):
            return other
    return None


def has_out_kernel(op: torch._ops.OpOverload, device_type: str) -> bool:
    """Whether an op can write its results to tensors that it is given, by a kernel for a type of device."""
    return _out_overload(op, device_type) is not None


@functools.cache
def out_names(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Names of the out= arguments of an op."""
    return tuple(a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write)


# Called by the graphs of both passes.


def new_block(nbytes: int, device: torch.device) -> torch.Tensor:
    """A block that is not initialized; of 0 bytes, the note that its backward pass has not begun."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device) if nbytes else torch.zeros(1, dtype=torch.uint8)


def taken(block: torch.Tensor, begun: torch.Tensor) -> torch.Tensor:
    """The block of a step whose backward pass begins. Raises RuntimeError if it ran before."""
    if begun.item():
        raise RuntimeError(
            "the backward pass of this step ran before and has overwritten the values that it reads; call the module "
            'again before the next backward pass, or let PyTorch place values: memory="allocator"'
        )
    begun.data.fill_(1)  # `data`: the tensor saved does not count as changed
    return block


def written(
    op: torch._ops.OpOverload, places: tuple[Place, ...], block: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The results of an op, written at their places."""
    results = tuple(_tensor_at(block, place) for place in places)
    if op is torch.ops.aten.copy_.default:
        return results[0].copy_(args[0])
    op(*args, **kwargs, **dict(zip(out_names(op), results, strict=True)))
    return results[0] if len(results) == 1 else results


def moved(places: tuple[Place | None, ...], block: torch.Tensor, value: Any) -> Any:
    """The value of an op, its tensors moved to their places."""
    if isinstance(value, torch.Tensor):
        return _moved_to(places[0], block, value)
    # A repeat of batch norm returns fewer results than its first run, and unread results have no place.
    return tuple(_moved_to(place, block, item) for item, place in itertools.zip_longest(value, places[: len(value)]))


def _moved_to(place: Place | None, block: torch.Tensor, value: Any) -> Any:
    if place is None or not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    if storage.nbytes() != place.nbytes:  # shows part of another storage
        return _tensor_at(block, place).copy_(value)
    strides = value.stride()
    if strides != place.stride and value.shape == place.shape:
        # A sum over it has the recorded strides, which may be others where an axis has one element.
        axes = zip(value.shape, strides, place.stride, strict=True)
        strides = tuple(recorded if size == 1 else found for size, found, recorded in axes)
    place = Place(place.offset, place.nbytes, tuple(value.shape), strides, value.storage_offset(), value.dtype)
    raw = place._replace(shape=(place.nbytes,), stride=(1,), start=0, dtype=torch.uint8)
    _tensor_at(block, raw).copy_(torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage))
    return _tensor_at(block, place)


def _tensor_at(block: torch.Tensor, place: Place) -> torch.Tensor:
    """A tensor in the block with a version counter of its own, which a view would share."""
    start = place.offset // place.dtype.itemsize + place.start
    tensor = torch.empty(0, dtype=place.dtype, device=block.device)
    return tensor.set_(block.untyped_storage(), start, place.shape, place.stride)
