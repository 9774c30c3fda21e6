"""`plan_sharded`: plans of the blocks of a model, for a budget of one rank of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from app.atomic_files import write_atomic
from app.render.text import format_bytes
from planner.errors import BadRequest
from planner.request.budget import parse_budget
from remat.errors import BadInput
from remat.torch.blocks.calls import BlockCalls
from remat.torch.blocks.choice import choose
from remat.torch.blocks.levels import levels_of
from remat.torch.capturing import Capture, Loss
from remat.torch.ranks import made_on_rank_0
from remat.torch.simulation import Shard, Simulation, group_of, with_plans, without_communication
from remat.torch.step.errors import BudgetNotMet
from remat.torch.training import refuse_planned

FORMAT = "remat-sharded/1"
FIELDS = ("device", "search_seconds", "iterations", "seed")  # request fields that plans of blocks may have
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class ShardedPlan:
    """Plans of the blocks of a sharded model, from `plan_sharded`.

    Attributes:
        blocks: Number in `plans` of the plan of each block that has one, by path.
        plans: The different plans, as `Report.save` writes them.
        unplanned: Blocks that could not have a plan, each with the reason.
        peak_bytes, baseline_peak_bytes: Predicted peak of the step of one rank, with the plans and without.
        seconds, baseline_seconds: Predicted time of it with the plans, and with each block under its fastest plan; as
            the device profile has it, each collective waited for.
        budget_bytes: The requested budget.
    """

    blocks: Mapping[str, int]
    plans: Sequence[Mapping[str, Any]]
    unplanned: Mapping[str, str]
    peak_bytes: int
    baseline_peak_bytes: int
    seconds: float
    baseline_seconds: float
    budget_bytes: int

    @property
    def overhead(self) -> float:
        """Extra time over the step with each block under its fastest plan, as a fraction of it."""
        return self.seconds / self.baseline_seconds - 1

    def apply(self, module: M) -> M:
        """Put planned blocks in place of the blocks of a module, which is sharded after that. Returns the module.

        A block that is not the one that was planned raises OtherStep at its first step. Only submodules are replaced: a
        block that the model also holds in a plain list stays as it is there.

        Raises:
            ValueError: The module has no such block, or is sharded already.
            AlreadyPlanned: A block trains under a plan already.
        """
        refuse_planned(module)
        for path in self.blocks:
            try:
                block = module.get_submodule(path)
            except AttributeError:
                raise ValueError(f"the module has no block {path!r}: the plan is for another model") from None
            if isinstance(block, torch.distributed.fsdp.FSDPModule):
                raise ValueError(f"the block {path!r} is sharded already: apply the plan before fully_shard")
        return with_plans(module, {path: self.plans[number] for path, number in self.blocks.items()}, {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, which `ShardedPlan.read` reads. Raises OSError."""
        write_atomic(Path(path), json.dumps({"format": FORMAT, **vars(self)}).encode())

    @staticmethod
    def read(path: str | os.PathLike[str]) -> ShardedPlan:
        """The plan that `save` wrote. Raises OSError; ValueError for another file."""
        try:
            fields = json.loads(Path(path).read_bytes())
            if fields.pop("format") != FORMAT:
                raise KeyError
            return ShardedPlan(**fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{os.fspath(path)!r} is not a plan that ShardedPlan.save wrote") from None

    def __str__(self) -> str:
        return (
            f"peak of a rank {format_bytes(self.peak_bytes)}, without plans {format_bytes(self.baseline_peak_bytes)}; "
            f"{self.overhead:+.1%} time for recomputation; {len(self.blocks)} blocks under {len(self.plans)} plans"
            + _unplanned_text(self.unplanned)
        )


def plan_sharded(
    module: nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    budget: str | float | int,
    *,
    shard: Shard,
    mesh: DeviceMesh,
    loss: Loss | None = None,
    **request: Any,
) -> ShardedPlan:
    """Plan the blocks of a model that FSDP2 shards, so that the step of a rank is within a budget.

    >>> def shard(model, mesh):
    ...     for block in model.blocks:
    ...         fully_shard(block, mesh=mesh)
    ...     fully_shard(model, mesh=mesh)
    >>> plan = remat.torch.plan_sharded(model, (tokens,), "20GiB", shard=shard, mesh=mesh)
    >>> shard(plan.apply(model), mesh)

    Every rank of the mesh calls it with inputs of one shape, before the model is sharded. Its first rank records steps
    on copies of the model without contents (fake tensors, groups that do not communicate): the shards, the parameters
    that FSDP2 gathers and frees, and buffers of collectives count. All ranks get its plans.

    Blocks are the sharded modules that hold no other sharded module. Blocks of one kind have a few plans in common;
    each block gets the one with which the step is fast and within the budget.

    Parameters:
        module: The model in the mode to plan, on any device; it may be on the meta device.
        example_inputs: Arguments of one call, as of `optimize`.
        budget: "20GiB", bytes, "60%" or 0.6 of the peak of a rank without plans, or 0 for the lowest peak: of one step,
            with the shards of the parameters, gradients and inputs. States of an optimizer come on top.
        shard: Calls `fully_shard` on the blocks and on the whole, on the mesh that it is given, which it cannot slice.
        mesh: The mesh that the model will be sharded on. Its ranks call this function.
        loss: Computes the loss from what the module returns; None if the module returns it.
        request: The fields `device`, `search_seconds`, `iterations` and `seed` of `remat.plan`; the seconds are for the
            plans of all kinds of blocks together.

    Raises:
        BudgetNotMet: No plans within the budget were found; the message has the lowest peak.
        OtherStep: A rank has another model, or inputs of other shapes; raised on every rank.
        NotCaptured: The step cannot be recorded without contents.
        AlreadyPlanned: The module, or one in it, trains under a plan.
        BadInput: The budget or a request field is invalid.
        ValueError: `shard` shards no block or makes a mesh, the module is sharded, or a field is not for blocks.
        RuntimeError: The first rank has no plan; there the error itself is raised.
    """
    refuse_planned(module)
    if others := [name for name in request if name not in FIELDS]:
        raise ValueError(f"{', '.join(others)}: not for plans of sharded blocks, which take {', '.join(FIELDS)}")
    if divided := [path for path, parameter in module.named_parameters() if isinstance(parameter, DTensor)]:
        raise ValueError(f"{divided[0]!r} is divided among ranks already: plan the model before it is sharded")
    with without_communication(mesh) as fake:

        def make() -> dict[str, Any]:
            return vars(_planned(Simulation(module, example_inputs, shard, fake, loss), budget, request))

        return ShardedPlan(**made_on_rank_0(make, _description(module, example_inputs, mesh), group_of(mesh)))


def _planned(simulation: Simulation, budget: str | float | int, request: Mapping[str, Any]) -> ShardedPlan:
    try:
        requested = parse_budget(budget)
    except BadRequest as error:
        raise BadInput(error.findings) from None
    device = {"device": request["device"]} if "device" in request else {}
    seconds: list[float] = []  # of the recorded steps

    def peak_of(captured: Capture) -> int:
        report = captured.plan(planner="as_given", **device)
        seconds.append(report.baseline_seconds)
        return report.baseline_peak_bytes

    calls = BlockCalls()
    peak = peak_of(simulation.step({}, calls))
    limit = requested.of(peak)
    if peak <= limit:
        return ShardedPlan({}, [], calls.unplanned, peak, peak, seconds[0], seconds[0], limit)
    steps, kinds = simulation.kinds(calls)
    levels = {kind: levels_of(step, request, len(steps)) for kind, step in steps.items()}
    chosen = choose(
        {path: levels[kind] for path, kind in kinds.items()},
        limit,
        lambda each: peak_of(simulation.step({path: level.plan for path, level in each.items()})),
    )
    if chosen.peak_bytes > limit > 0:
        raise BudgetNotMet(
            None,
            f"no plans of the blocks within {format_bytes(limit)}: the lowest peak of a rank found is "
            f"{format_bytes(chosen.peak_bytes)} (without plans {format_bytes(peak)}); ask for that much, take a "
            f"smaller batch, or shard more modules{_unplanned_text(calls.unplanned)}",
        )
    distinct = list({id(level.plan): level.plan for level in chosen.levels.values()}.values())
    places = {id(plan): number for number, plan in enumerate(distinct)}
    blocks = {path: places[id(level.plan)] for path, level in chosen.levels.items()}
    return ShardedPlan(
        blocks, distinct, calls.unplanned, chosen.peak_bytes, peak, seconds[chosen.number + 1], seconds[1], limit
    )


def _unplanned_text(unplanned: Mapping[str, str]) -> str:
    paths: dict[str, list[str]] = {}
    for path, reason in unplanned.items():
        paths.setdefault(reason, []).append(path)
    return "".join(f"\nno plan for {', '.join(found)}: {reason}" for reason, found in paths.items())


def _description(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> str:
    """sha256 of what a rank brings: shapes of parameters, buffers and inputs, modes of modules, shape of the mesh."""
    tensors = [*module.named_parameters(), *module.named_buffers(), *(("", leaf) for leaf in tree_leaves(inputs))]
    shapes = [
        (name, tuple(t.shape), t.dtype, t.requires_grad) if isinstance(t, torch.Tensor) else type(t).__name__
        for name, t in tensors
    ]
    modes = [each.training for each in module.modules()]
    return hashlib.sha256(repr((shapes, modes, str(module), mesh.mesh.shape)).encode()).hexdigest()
