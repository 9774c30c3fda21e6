"""Planned modules used in ways that are easy to get wrong: right numbers, or an error that says what to do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.flop_counter import FlopCounterMode

import remat.torch
from bench.torch_training import recorded
from remat.torch.step.aot import replaced
from remat.torch.step.document import TANGENTS
from remat.torch.step.recording import backend_of
from remat.torch.step.split import order_as_recorded, split
from tests.torch.modules import Convolutions
from tests.torch.steps import equal, results

pytestmark = pytest.mark.usefixtures("quick_bounds")
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
QUICK = {"iterations": 30, "measure": False}


def loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()


@pytest.fixture(scope="module")
def saved(quick_bounds: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A plan as it is in a file, made with another version of PyTorch."""
    path: Path = tmp_path_factory.mktemp("plans") / "plan.json"
    captured = remat.torch.capture(module(), IMAGES)
    captured.document["annotations"]["framework"] = "torch 2.11.0"
    captured.plan("70%", iterations=30).save(path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def planned(saved: dict[str, Any]) -> nn.Module:
    return remat.torch.optimize(module(), (IMAGES,), plan=saved)


def module() -> nn.Module:
    torch.manual_seed(0)
    return Convolutions()


def test_a_mode_that_keeps_plans_from_running_is_refused_and_leaves_the_plan_usable(planned: nn.Module) -> None:
    planned(IMAGES)
    with FlopCounterMode(display=False), pytest.raises(remat.torch.NotCaptured, match=r"FlopCounterMode.* outside"):
        planned(IMAGES)
    assert backend_of(planned) is not None and planned(IMAGES).requires_grad


def test_hooks_that_read_or_replace_saved_tensors_change_no_number(planned: nn.Module) -> None:
    seen: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.nbytes)
        return tensor.clone()

    expected = results(module(), (IMAGES,), loss)
    planned.load_state_dict(module().state_dict())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert equal(expected, results(planned, (IMAGES,), loss))
    assert seen


def test_training_goes_on_after_an_evaluation(planned: nn.Module) -> None:
    plain = module()
    planned.load_state_dict(plain.state_dict())
    found = []
    for trained in (plain, planned):
        before = results(trained, (IMAGES,), loss, steps=1)
        trained.eval()
        with torch.no_grad():
            evaluated = trained(IMAGES)
        trained.train()
        found.append([*before, evaluated, *results(trained, (IMAGES,), loss, steps=1)])
    assert equal(*found)


def test_a_step_in_evaluation_mode_with_gradients_is_another_step(saved: dict[str, Any]) -> None:
    planned = remat.torch.optimize(module(), (IMAGES,), plan=saved)
    with pytest.raises(Exception, match=r"another step|for another|other ops"):
        planned.eval()(IMAGES)
    planned.train()
    assert equal(results(module(), (IMAGES,), loss), results(planned, (IMAGES,), loss))


def test_a_module_with_a_planned_module_in_it_is_refused(planned: nn.Module) -> None:
    with pytest.raises(remat.torch.AlreadyPlanned, match="the module '0' in it trains under a plan already"):
        remat.torch.optimize(nn.Sequential(planned, nn.ReLU()), (IMAGES,), "70%", **QUICK)


def test_a_plan_of_another_version_of_pytorch_is_used_if_the_step_is_the_same(saved: dict[str, Any]) -> None:
    planned = remat.torch.optimize(module(), (IMAGES,), plan=saved)
    assert equal(results(module(), (IMAGES,), loss), results(planned, (IMAGES,), loss))
    with pytest.raises(remat.torch.OtherStep, match=r"made with torch 2\.11\.0, this is torch 2"):
        remat.torch.optimize(module(), (IMAGES[:2],), plan=saved)


def test_a_missed_budget_names_the_op_that_limits_and_what_would_help() -> None:
    with pytest.raises(
        remat.torch.BudgetNotMet, match=r"lowest peak (possible|found) is .*, at \w+ .*take a smaller batch"
    ):
        remat.torch.optimize(module(), (IMAGES,), 1024, **QUICK)


class Gates(nn.Module):
    """Returns values of which autograd saves a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        return hidden, torch.softmax(self.second(x), -1), torch.sigmoid(self.second(hidden))


def test_what_a_module_returns_is_computed_before_the_gradients_of_its_results() -> None:
    step = remat.torch.capture(Gates(), torch.ones(4, 8), loss=None).document
    (tangents,) = (node for node in step["nodes"] if node["name"] == TANGENTS)
    assert set(tangents["after"]) == {"_softmax", "sigmoid"}


def test_an_order_that_computes_a_result_after_the_forward_pass_is_refused() -> None:
    joint = recorded(Gates(), {"x": torch.ones(4, 8)})[0].joint
    order = [each for each in order_as_recorded(joint) if each != ("_softmax", 0)]
    order.insert(order.index((TANGENTS, 0)) + 1, ("_softmax", 0))
    with pytest.raises(remat.torch.OtherStep, match="computes _softmax, which the forward pass returns, after it"):
        split(joint, order)


@torch.library.custom_op("remat_misuse::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return (torch.rand_like(x) < 0.5).to(x.dtype)


noise.register_fake(torch.empty_like)


class Noisy(nn.Module):
    """Dropout beside an op of another library that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.2) * noise(x.detach())
        return x.square().mean()


def test_ops_of_other_libraries_run_once_in_the_order_in_which_they_may_draw_random_numbers() -> None:
    torch.manual_seed(0)
    plain, x = Noisy(), torch.randn(32, 16)
    planned = remat.torch.optimize(plain, (x,), 0, **QUICK)
    assert remat.torch.report_of(planned)["plan"]["recomputed"]
    assert equal(results(plain, (x,), torch.Tensor.sum, steps=2), results(planned, (x,), torch.Tensor.sum, steps=2))
    nodes = {node["name"]: node for node in remat.torch.capture(plain, x).document["nodes"]}
    order = ["native_dropout", "noise", "native_dropout_1", "noise_1", "native_dropout_2", "noise_2"]
    drawn = [name if "noise" in name else f"{name}.state" for name in order]
    assert [nodes[name]["after"] for name in drawn] == [[], *([before] for before in order[:-1])]


def test_copies_of_a_planned_module_have_no_plan(saved: dict[str, Any], planned: nn.Module, tmp_path: Path) -> None:
    torch.save(planned, tmp_path / "module.pt")
    read = torch.load(tmp_path / "module.pt", weights_only=False)
    for copied in (copy.deepcopy(planned), copy.copy(planned), AveragedModel(planned).module, read):
        with pytest.raises(ValueError, match="no plan"):
            remat.torch.report_of(copied)
        remat.torch.optimize(copied, (IMAGES,), plan=saved)
    copied = remat.torch.optimize(copy.deepcopy(planned), (IMAGES,), plan=saved)
    assert equal(results(copied, (IMAGES,), loss), results(planned, (IMAGES,), loss))


class Stateful(nn.Module):
    """Replaces a buffer, writes to another one and to an input, and reads an expanded one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("unlogged", torch.zeros(1))
        self.register_buffer("expanded", torch.ones(1).expand(8))
        self.mean: torch.Tensor
        self.unlogged: torch.Tensor
        self.expanded: torch.Tensor

    def forward(self, x: torch.Tensor, calls: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        y = torch.tanh(self.linear(x)) * self.expanded
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.unlogged.data.add_(1)
        return (y - self.mean).square().mean()


def test_buffers_that_are_replaced_and_inputs_that_are_written_to_are_put_back() -> None:
    stateful, x, calls = Stateful(), torch.ones(4, 8), torch.zeros(1)
    buffers = list(stateful.buffers())
    remat.torch.optimize(stateful, (x, calls), **QUICK)
    remat.torch.capture(stateful, x, calls, recording="eager")
    assert all(a is b for a, b in zip(stateful.buffers(), buffers, strict=True))
    assert equal([*buffers, calls], [torch.zeros(8), torch.zeros(1), torch.ones(8), torch.zeros(1)])
    assert not x._version


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        (torch.compile, "module._orig_mod"),
        (torch.jit.script, "it was made of"),
        (lambda _: torch.sin, "in the `forward`"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_what_is_no_plain_module_is_refused_with_what_to_give(made: Callable[[nn.Module], Any], remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        remat.torch.optimize(made(nn.Linear(2, 2)), (torch.ones(1, 2),))


class Chosen(nn.Module):
    """Calls a method of its own that it holds as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.chosen = self.dropped

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chosen(torch.tanh(self.linear(x))).square().mean()


def test_methods_that_are_attributes_follow_the_mode_of_the_planned_module() -> None:
    plain, x = Chosen(), torch.ones(4, 8)
    planned = remat.torch.optimize(plain, (x,), **QUICK)
    assert plain.chosen.__self__ is plain
    with torch.no_grad():
        assert planned.eval()(x) == plain.eval()(x)
    assert planned.chosen.__self__ is planned


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x))).square().mean()


@pytest.fixture(scope="module")
def scalars(quick_bounds: None) -> tuple[nn.Module, nn.Module]:
    """A module without a plan and with one."""
    torch.manual_seed(0)
    plain = Scalar()
    return plain, remat.torch.optimize(copy.deepcopy(plain), (torch.ones(4, 8),), **QUICK)


def test_a_compilation_that_fails_leaves_functions_of_pytorch_as_they_were() -> None:
    before = json.dumps
    with pytest.raises(RuntimeError, match="no kernel"), replaced(json, "dumps", repr):
        assert json.dumps is repr
        raise RuntimeError("no kernel")
    assert json.dumps is before


@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_second_order_gradients_are_refused(compiler: Any) -> None:
    planned = torch.compile(Scalar(), backend=remat.torch.backend(compiler=compiler, **QUICK), fullgraph=True)
    x = torch.ones(4, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="take them of the module without the plan"):
        torch.autograd.grad(planned(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="take them of the module without the plan"):
        torch.autograd.functional.hessian(lambda x: planned(x), torch.ones(4, 8))


def test_transforms_of_a_planned_module_are_refused_with_what_to_transform(
    scalars: tuple[nn.Module, nn.Module],
) -> None:
    with pytest.raises(remat.torch.NotCaptured, match=r"Give torch.func the module without a plan"):
        torch.func.vmap(lambda x: scalars[1](x))(torch.ones(2, 4, 8))


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "pre": lambda module: module.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    "forward": lambda module: module.register_forward_hook(lambda module, given, output: output * 2),
    "backward pre": lambda module: module.register_full_backward_pre_hook(lambda module, of: (of[0] * 2,)),
    "backward": lambda module: module.register_full_backward_hook(lambda module, of, _: (of[0] * 2,)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_a_planned_module_run_as_without_a_plan(name: str, scalars: tuple[nn.Module, nn.Module]) -> None:
    found = []
    for module in scalars:
        x = torch.ones(4, 8, requires_grad=True)
        hook = HOOKS[name](module)
        value = module(x)
        found.append([value.detach(), *torch.autograd.grad(value, [x, *module.parameters()])])
        hook.remove()
    assert equal(*found)


def test_hooks_of_all_modules_run_as_without_a_plan(scalars: tuple[nn.Module, nn.Module]) -> None:
    of_all = torch.nn.modules.module
    expected, found = ([results(module, (torch.ones(4, 8),), torch.sum)] for module in scalars)
    for factor in (2, 3):
        hook = of_all.register_module_forward_hook(lambda module, given, output, factor=factor: output * factor)
        expected.append(results(scalars[0], (torch.ones(4, 8),), torch.sum))
        found.append(results(scalars[1], (torch.ones(4, 8),), torch.sum))
        hook.remove()
    assert not equal(expected[0], expected[1])
    assert all(equal(*each) for each in zip(expected, found, strict=True))


def test_backward_hooks_inside_of_a_planned_module_are_refused_with_what_to_use(
    scalars: tuple[nn.Module, nn.Module],
) -> None:
    hook = scalars[1].last.register_full_backward_hook(lambda module, of, _: (of[0] * 2,))  # type: ignore[union-attr]
    with pytest.raises(remat.torch.NotCaptured, match=r"inside of it use `register_hook` of a tensor"):
        scalars[1](torch.ones(4, 8))
    hook.remove()
    assert equal(*(results(module, (torch.ones(4, 8),), torch.sum) for module in scalars))


class Wide(nn.Module):
    """More parameters than the first bucket of DistributedDataParallel holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(400, 400) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_graphs_of_single_buckets_are_refused(one_rank: None) -> None:
    backend = remat.torch.backend(0, over_budget="train", **QUICK)
    trained = torch.compile(DistributedDataParallel(Wide(), bucket_cap_mb=1), backend=backend, dynamic=False)
    with pytest.raises(Exception, match=r"NotCaptured: .* wrap the planned module"):
        trained(torch.ones(2, 400))
    with torch._dynamo.config.patch(optimize_ddp=False):
        trained(torch.ones(2, 400)).backward()
    assert len(backend.reports) == 1


def test_another_shape_inside_of_distributed_data_parallel_is_one_step(one_rank: None) -> None:
    planned = remat.torch.optimize(Wide(), (torch.ones(2, 400),), 0, over_budget="train", **QUICK)
    trained = DistributedDataParallel(planned, bucket_cap_mb=1)
    for batch in (2, 3):
        trained(torch.ones(batch, 400)).backward()
    assert len(backend_of(planned).reports) == 2
