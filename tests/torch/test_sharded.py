"""`plan_sharded` in one process, with groups that do not communicate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import remat.torch
from remat.torch.blocks.calls import BlockCalls
from remat.torch.simulation import Simulation
from remat.torch.step import recording
from remat.torch.step.recording import backend_of
from tests.torch.modules import VOCABULARY, Block, Decoder

QUICK: dict[str, Any] = {"iterations": 3}
WIDTH = 16


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,), mesh_dim_names=("shards",))
    dist.destroy_process_group()


def decoder(**fields: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(0.1, width=WIDTH, **fields)


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (8, 16))


def shard(model: nn.Module, mesh: DeviceMesh, **fields: Any) -> None:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, **fields)
    fully_shard(model, mesh=mesh, **fields)


def planned(model: nn.Module, budget: str | int, mesh: DeviceMesh, **request: Any) -> remat.torch.ShardedPlan:
    return remat.torch.plan_sharded(model, (tokens(),), budget, shard=shard, mesh=mesh, **QUICK | request)


def test_blocks_of_one_kind_share_plans_and_the_peak_is_within_the_budget(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = decoder(layers=3)
    plan = planned(model, "70%", mesh)
    assert plan.peak_bytes <= plan.budget_bytes < plan.baseline_peak_bytes
    assert list(plan.blocks) == ["blocks.0", "blocks.1", "blocks.2"] and len(plan.plans) <= 2
    assert plan.overhead > 0 and not plan.unplanned and "of a rank" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert vars(remat.torch.ShardedPlan.read(tmp_path / "plan.json")) == json.loads(json.dumps(vars(plan)))
    assert not any(backend_of(each) is not None for each in model.modules())
    blocks = list(model.blocks)
    assert plan.apply(model) is model
    assert [block.qkv is each.qkv for block, each in zip(model.blocks, blocks, strict=True)] == [True] * 3
    with pytest.raises(remat.torch.AlreadyPlanned):
        plan.apply(model)
    with pytest.raises(remat.torch.AlreadyPlanned):
        planned(model, "70%", mesh)


def test_a_budget_that_the_step_keeps_by_itself_plans_nothing(mesh: DeviceMesh) -> None:
    plan = planned(decoder(layers=1), "100%", mesh)
    assert (plan.blocks, plan.peak_bytes, plan.overhead) == ({}, plan.baseline_peak_bytes, 0)


def test_a_budget_below_the_lowest_peak_is_refused_with_it(mesh: DeviceMesh) -> None:
    with pytest.raises(remat.torch.BudgetNotMet, match=r"within 1\.00 KiB: the lowest peak of a rank found is .*KiB"):
        planned(decoder(layers=1), "1KiB", mesh)


class Kinds(nn.Module):
    """Blocks that differ in what parameters do not show, one called in two ways, one without gradients, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(WIDTH, 4, dropout) for dropout in (0.0, 0.0, 0.1, 0.0, 0.0, 0.0)])
        self.blocks.append(nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, 0.0, batch_first=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[:4]:
            x = block(x)
        x = self.blocks[3](x[:2]) + self.blocks[6](x[:2])
        with torch.no_grad():
            y = self.blocks[4](x)
        return (x + y).sum()


def test_kinds_are_told_apart_and_blocks_without_a_plan_have_a_reason(mesh: DeviceMesh) -> None:
    x = torch.randn(64, 16, WIDTH)
    plan = remat.torch.plan_sharded(Kinds(), (x,), "85%", shard=shard, mesh=mesh, **QUICK)
    assert list(plan.blocks) == ["blocks.0", "blocks.1", "blocks.2", "blocks.6"]
    assert plan.unplanned == {
        "blocks.3": "the step calls it several times with arguments of other shapes",
        "blocks.4": "the step calls it without gradients",
        "blocks.5": "the step does not call it",
    }
    assert "no plan for blocks.4: the step calls it without gradients" in str(plan)
    random = ["generator::State" in {node["op"] for node in each["source"]["nodes"]} for each in plan.plans]
    assert [random[plan.blocks[path]] for path in plan.blocks] == [False, False, True, False]


class Numbered(nn.Module):
    """A block that computes with its number, which guards of compiled code then compare."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).sin()
        return y if self.number >= 0 else x


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Numbered(number) for number in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def test_blocks_of_one_kind_that_are_compiled_apart_have_their_plans_in_common(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_STEPS", 2)  # of one block; sharding it makes the second
    plan = remat.torch.plan_sharded(Row(), (torch.randn(512, WIDTH),), "85%", shard=shard, mesh=mesh, **QUICK)
    assert len(plan.blocks) == 4 and plan.blocks["blocks.2"] == plan.blocks["blocks.3"]


class Mixed(nn.Module):
    """A step under autocast, whose loss is computed outside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(WIDTH, 4, 0.0) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                x = block(x)
        return x


def test_autocast_meta_parameters_and_a_mesh_of_two_dimensions(mesh: DeviceMesh) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    with torch.device("meta"):
        model = Mixed()
    x = torch.randn(16, 16, WIDTH)
    plan = remat.torch.plan_sharded(
        model, {"x": x}, 0.8, shard=shard, mesh=mesh, loss=lambda y: y.square().mean(), device="a100-80gb", **QUICK
    )
    assert len(plan.blocks) == 2 and plan.peak_bytes <= plan.budget_bytes
    assert any(value["dtype"] == "bfloat16" for value in plan.plans[0]["source"]["values"])


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks[0](x).sum()
        return y if y > 0 else -y


def on_two_meshes(model: nn.Module, mesh: DeviceMesh) -> None:
    shard(model, mesh, reshard_after_forward=2)


def only_the_whole(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)


@pytest.mark.parametrize(
    ("model", "fields", "error", "text"),
    [
        (ReadsValues, {}, remat.torch.NotCaptured, "reads values of its tensors"),
        (Mixed, {"shard": only_the_whole}, ValueError, "call fully_shard on the blocks too"),
        (Mixed, {"shard": on_two_meshes}, ValueError, "makes or slices a mesh"),
        (Mixed, {"offload": True, "reserve": 5}, ValueError, "offload, reserve: not for plans of sharded blocks"),
        (Mixed, {"budget": "a lot"}, remat.BadInput, "budget"),
        (Mixed, {"seed": "x"}, remat.BadInput, "seed"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    mesh: DeviceMesh, model: Callable[[], nn.Module], fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    given: dict[str, Any] = {"budget": "80%", "shard": shard, **QUICK, **fields}
    with pytest.raises(error, match=text):
        remat.torch.plan_sharded(model(), (torch.randn(16, 16, WIDTH),), mesh=mesh, **given)


class FineTuned(nn.Module):
    """Frozen blocks before one that is trained, a parameter in two of them, and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(WIDTH, 4, 0.0) for _ in range(6)])
        self.blocks[:4].requires_grad_(False)
        self.blocks[5].out.weight = self.blocks[4].out.weight
        self.scale = torch.full((WIDTH,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) * self.scale
        return x.sum()


def sharded_whole(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model.blocks[:4]:  # type: ignore[index]
        fully_shard(block, mesh=mesh)
    fully_shard(list(model.blocks[4:]), mesh=mesh)  # type: ignore[arg-type,index]
    fully_shard(model, mesh=mesh)


def test_what_is_noted_of_blocks_holds_none_of_their_arguments(mesh: DeviceMesh) -> None:
    simulation = Simulation(FineTuned(), (torch.randn(32, 16, WIDTH),), sharded_whole, mesh, None)
    calls = BlockCalls()
    noted, plain = simulation.step({}, calls), simulation.step({})
    assert len(calls.found) == 6
    peaks = [captured.plan(planner="as_given").baseline_peak_bytes for captured in (noted, plain)]
    assert peaks[0] == peaks[1]


def test_frozen_blocks_have_no_plan_and_shared_parameters_may_have_one(mesh: DeviceMesh) -> None:
    x = torch.randn(32, 16, WIDTH)
    plan = remat.torch.plan_sharded(FineTuned(), (x,), 0, shard=sharded_whole, mesh=mesh, **QUICK)
    assert list(plan.blocks) == ["blocks.4", "blocks.5"] and plan.peak_bytes < plan.baseline_peak_bytes
    text = str(plan)
    assert "no plan for blocks.0, blocks.1, blocks.2, blocks.3: the step has no backward pass" in text


def test_a_sharded_model_is_refused(mesh: DeviceMesh) -> None:
    model = decoder(layers=1)
    shard(model, mesh)
    with pytest.raises(ValueError, match="is divided among ranks already"):
        planned(model, "80%", mesh)


def test_a_plan_is_refused_by_another_model_and_a_sharded_one(mesh: DeviceMesh, tmp_path: Path) -> None:
    plan = planned(decoder(layers=2), "80%", mesh)
    with pytest.raises(ValueError, match=r"no block 'blocks\.1': the plan is for another model"):
        plan.apply(decoder(layers=1))
    sharded = decoder(layers=2)
    shard(sharded, mesh)
    with pytest.raises(ValueError, match="sharded already"):
        plan.apply(sharded)
    other = plan.apply(decoder(layers=2))
    with pytest.raises(remat.torch.OtherStep):
        other(torch.randint(0, VOCABULARY, (4, 16)))
    for content in ("{}", "[]", "no JSON", '{"format": "remat-sharded/2"}'):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ValueError, match=r"other\.json' is not a plan that ShardedPlan\.save wrote"):
            remat.torch.ShardedPlan.read(tmp_path / "other.json")
