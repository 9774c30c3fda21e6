"""Steps of a sharded model on one rank, recorded in one process that neither computes nor communicates.

module ──copy of shapes──▶ plans on some blocks ──`shard`, on a mesh of fake groups──▶ recorded step
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from remat.torch.blocks.calls import BlockCalls, kinds_of
from remat.torch.capturing import Capture, Loss, capture
from remat.torch.step.aot import FakeTensorMode, UnknownValue, fake_group, forget_meshes
from remat.torch.step.errors import NotCaptured
from remat.torch.step.recording import Step
from remat.torch.training import arguments, backend, planned_by

Shard = Callable[[nn.Module, DeviceMesh], object]
Planned = dict[int, Callable[[nn.Module], nn.Module]]
M = TypeVar("M", bound=nn.Module)


class Simulation:
    """Steps of a module on one rank of a mesh.

    Parameters:
        module: The model before it is sharded; it stays as it is.
        inputs: Example inputs, as of `optimize`.
        shard: Shards a model on a mesh, in place or as a module that it returns.
        mesh: A mesh whose groups do not communicate.
        loss: Computes the loss from what the module returns; None if the module returns it.
    """

    def __init__(self, module: nn.Module, inputs: Any, shard: Shard, mesh: DeviceMesh, loss: Loss | None):
        self.module, self.shard, self.mesh, self.loss = module, shard, mesh, loss
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.planned: Planned = {}
        self.args, self.kwargs = tree_map_only(torch.Tensor, self.mode.from_tensor, arguments(inputs))

    def step(self, plans: Mapping[str, Mapping[str, Any]], calls: BlockCalls | None = None) -> Capture:
        """One step with plans on some blocks; `calls` notes how it calls the blocks. Raises NotCaptured, ValueError."""
        with self._fake():
            model = with_plans(self._copy(), plans, self.planned)
            sharded = self._sharded(model)
            with contextlib.nullcontext() if calls is None else calls.noted(model):
                return capture(sharded, *self.args, loss=self.loss, recording="eager", **self.kwargs)

    def _sharded(self, model: nn.Module) -> nn.Module:
        try:
            returned = self.shard(model, self.mesh)
        except UnknownValue:
            raise ValueError(
                "`shard` makes or slices a mesh, which is not possible on copies without contents: give `fully_shard` "
                "the mesh that is its argument, and True or False as reshard_after_forward"
            ) from None
        sharded = returned if isinstance(returned, nn.Module) else model
        for path, parameter in sharded.named_parameters():
            groups = parameter.device_mesh.get_all_groups() if isinstance(parameter, DTensor) else []
            if any(dist.get_backend(group) != "fake" for group in groups):
                raise ValueError(
                    f"`shard` put {path!r} on another mesh than it was given: call fully_shard(module, mesh=mesh) with "
                    "the mesh that is its argument"
                )
        return sharded

    def kinds(self, calls: BlockCalls) -> tuple[dict[str, Step], dict[str, str]]:
        """As `kinds_of`, of the module before it is sharded."""
        with self._fake():
            return kinds_of(self._copy(), calls)

    @contextlib.contextmanager
    def _fake(self) -> Iterator[None]:
        with self.mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tensors without contents
            try:
                yield
            except UnknownValue as error:
                raise NotCaptured(
                    f"the step reads values of its tensors, which are not computed here: {error}; plan the blocks one "
                    "by one with remat.torch.optimize before they are sharded"
                ) from None

    def _copy(self) -> nn.Module:
        """The module with tensors of the same shapes, without contents, on the devices of the mesh."""
        known: dict[int, Any] = {
            id(p): nn.Parameter(self._empty(p), requires_grad=p.requires_grad) for p in self.module.parameters()
        }
        for module in self.module.modules():
            others = (*module.buffers(recurse=False), *vars(module).values())
            known |= {id(each): self._empty(each) for each in others if isinstance(each, torch.Tensor)}
            known |= {id(each): each for each in vars(module).values() if isinstance(each, dist.ProcessGroup)}
        return copy.deepcopy(self.module, known)

    def _empty(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.mesh.device_type)


def with_plans(module: M, plans: Mapping[str, Mapping[str, Any]], planned: Planned) -> M:
    """The module, whose blocks at these paths train under these plans.

    `planned` has what puts modules under a plan, by the number of the plan; plans that it lacks are added. Blocks of
    one kind under one plan share compiled code.
    """
    for plan in plans.values():
        if id(plan) not in planned:
            planned[id(plan)] = planned_by(backend(plan=plan), len(plans))
    paths = list(module.named_modules(remove_duplicate=False))
    for path, plan in plans.items():
        block = module.get_submodule(path)
        made = planned[id(plan)](block)
        for other, each in paths:
            if each is block:
                module.set_submodule(other, made)
    return module


@contextlib.contextmanager
def without_communication(mesh: DeviceMesh) -> Iterator[DeviceMesh]:
    """A mesh of the same ranks whose groups do not communicate. Every rank of the mesh makes one."""
    groups = [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
    if all(dist.get_backend(group) == "fake" for group in groups):
        yield mesh
        return
    fakes = [fake_group(dist.get_process_group_ranks(group)) for group in groups]
    forget_meshes()
    try:
        if len(fakes) == 1:
            yield DeviceMesh.from_group(fakes[0], mesh.device_type, mesh_dim_names=mesh.mesh_dim_names)
        else:
            yield DeviceMesh.from_group(fakes, mesh.device_type, mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    finally:
        forget_meshes()
        for fake in fakes:
            dist.destroy_process_group(fake)


def group_of(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The processes of a mesh; None for all that there are."""
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return None
    return dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)
