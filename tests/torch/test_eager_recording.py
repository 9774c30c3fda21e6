"""Steps that are not one graph, recorded op by op while they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import remat.torch
from remat.torch import NotCaptured
from remat.torch.training import planned_by
from tests.torch.modules import Convolutions, Decoder
from tests.torch.steps import peak_bytes


class Chosen(nn.Module):
    """Reads a number from the device, takes rows that depend on data, and holds an activation in a variable."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.first(x)
        x = torch.tanh(early)
        if x.abs().mean().item() > 0:
            x = self.second(x).relu()
        return self.head(x)[early[:, 0] > 0].square().mean()


class _Doubled(torch.autograd.Function):
    """A kernel outside of PyTorch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return dy * 2


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Doubled.apply(self.layer(x)).exp().sum()  # type: ignore[no-untyped-call]


def nodes_of(document: dict[str, Any], op: str) -> list[dict[str, Any]]:
    return [node for node in document["nodes"] if node["op"].startswith(op)]


def recorded(module: nn.Module, *args: Any, **fields: Any) -> Any:
    return remat.torch.capture(module, *args, recording="eager", **fields)


def mean_square(y: torch.Tensor) -> torch.Tensor:
    return y.square().mean()


@pytest.mark.parametrize(
    ("module", "args", "loss"),
    [
        (Chosen(), (torch.randn(256, 64),), None),
        (Decoder(layers=2), (torch.randint(0, 60, (8, 32)),), None),
        (Convolutions(), (torch.randn(8, 3, 16, 16),), mean_square),
    ],
    ids=["chosen", "decoder", "convolutions"],
)
def test_predicted_peak_is_the_one_of_the_allocator(module, args, loss):
    predicted = recorded(module, *args, loss=loss).plan(planner="as_given").baseline_peak_bytes
    held = []

    def step() -> None:
        returned = module(*args) if loss is None else loss(module(*args))
        returned.backward()
        held.append(returned)

    step()
    module.zero_grad(set_to_none=True)
    before = {id(t): t.untyped_storage().nbytes() for t in (*module.parameters(), *module.buffers(), *args)}
    assert predicted == pytest.approx(sum(before.values()) + peak_bytes(step), rel=0.02)


def test_a_module_that_is_not_one_graph_is_recorded_and_planned():
    module, x = Chosen(), torch.randn(256, 64)
    for compiled in (remat.torch.capture, lambda module, x: remat.torch.optimize(module, (x,), budget="50%")):
        with pytest.raises(NotCaptured, match='recording="eager"'):
            compiled(module, x)
    captured = recorded(module, x)
    (number,) = nodes_of(captured.document, "aten::_local_scalar_dense")
    assert number["effect"] == "once" and number["outputs"] == []
    plan = captured.plan("80%", planner="greedy")
    assert plan.peak_bytes < plan.baseline_peak_bytes and plan.recomputed
    assert number["name"] not in plan.recomputed


def test_phases_gradients_modules_and_lines_are_recorded():
    module = Chosen()
    document = recorded(module, torch.randn(16, 64)).document
    phases = [node["phase"] for node in document["nodes"]]
    assert phases == sorted(phases, reverse=True) and {"forward", "backward"} == set(phases)
    assert document["gradients"].keys() == dict(module.named_parameters()).keys()
    assert set(document["gradients"].values()) < set(document["outputs"])
    products = nodes_of(document, "aten::addmm")
    assert [node["annotations"]["module"] for node in products] == ["first", "second", "head"]
    assert nodes_of(document, "aten::tanh.default")[0]["annotations"]["line"].partition(":")[0] == __file__
    assert not any("line" in node.get("annotations", {}) for node in document["nodes"] if node["phase"] == "backward")


def test_views_are_folded_and_writes_are_in_place():
    module = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0), nn.ReLU(inplace=True))
    document = recorded(module, torch.randn(4, 8), loss=torch.sum).document
    assert not nodes_of(document, "aten::view")
    (product,), (relu,) = nodes_of(document, "aten::addmm"), nodes_of(document, "aten::relu_")
    assert relu["in_place"] == {relu["outputs"][0]: product["outputs"][0]}
    assert nodes_of(document, "aten::sum")[0]["inputs"] == relu["outputs"]


def test_a_tensor_that_a_variable_holds_is_read_by_the_last_op_before_it_is_freed():
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            early = x * 2
            return (early.sum() * self.w).exp().sum()

    document = recorded(Holds(), torch.randn(8)).document
    early = nodes_of(document, "aten::mul")[0]["outputs"][0]
    held = [node["op"] for node in document["nodes"] if early in node.get("annotations", {}).get("held", [])]
    assert held == ["aten::sum.default"]


def test_random_ops_have_a_stream_and_memory_of_unknown_content_is_never_recomputed():
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            memory = torch.empty(4, 8)
            memory.numpy()[:] = 1  # as a kernel of its own would
            return F.dropout(self.layer(x) * memory, 0.5).sum()

    document = recorded(Random(), torch.randn(4, 8)).document
    (draw,) = (node for node in document["nodes"] if node.get("effect") == "random")
    assert draw["stream"] == draw["name"]
    assert nodes_of(document, "aten::empty.memory_format")[0]["recompute"] == "never"


def test_a_tensor_from_outside_of_the_dispatcher_is_a_fixed_node_and_warned_of():
    captured = recorded(Foreign(), torch.randn(4, 8))
    (foreign,) = nodes_of(captured.document, "eager::Unrecorded")
    assert foreign["effect"] == "once"
    (warning,) = [each for each in captured.plan(planner="as_given").warnings if "dispatcher" in str(each)]
    assert __file__ in str(warning)


class Resized(nn.Module):
    """Frees the memory of a tensor while it is not needed, as FSDP2 does with gathered parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scratch = x * 2
        storage = scratch.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        y = (self.weight * x).exp()
        storage.resize_(size)
        with torch.no_grad():
            scratch.copy_(x)
        return (y * scratch).sum()


def test_a_storage_that_is_resized_holds_a_new_value():
    captured = recorded(Resized(), torch.randn(1024))
    (allocated,), (copied,) = (
        nodes_of(captured.document, "eager::Allocated"),
        nodes_of(captured.document, "aten::copy_"),
    )
    assert copied["in_place"] == {copied["outputs"][0]: allocated["outputs"][0]}
    freed = nodes_of(captured.document, "aten::mul")[0]["outputs"][0]
    assert not [node for node in captured.document["nodes"] if freed in node["inputs"]]
    assert "resizing a storage" in str(captured.plan(planner="as_given").warnings)
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_module_with_a_plan_is_recorded_as_it_runs():
    module, tokens = Decoder(layers=2), torch.randint(0, 60, (8, 32))
    planned = remat.torch.optimize(module, (tokens,), 0, iterations=3)
    report = remat.torch.report_of(planned)
    assert report is not None and report.recomputed
    document = recorded(planned, tokens).document
    runs = [name for name, _ in report.order if name.startswith("gelu") and "backward" not in name]
    assert len(nodes_of(document, "aten::gelu.default")) == len(runs)
    predicted = recorded(planned, tokens).plan(planner="as_given").baseline_peak_bytes
    assert predicted == pytest.approx(report.peak_bytes, rel=0.02)


def test_a_module_with_a_plan_for_inductor_is_refused():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    module[0] = planned_by(remat.torch.backend("8GiB", compiler="inductor"))(module[0])
    with pytest.raises(NotCaptured, match="plan for Inductor"):
        recorded(module, torch.randn(2, 4))


def test_gradients_buffers_and_generator_are_put_back():
    module, x = Convolutions().train(), torch.randn(4, 3, 8, 8)
    module(x).square().mean().backward()
    state = [t.clone() for t in (*(p.grad for p in module.parameters()), *module.buffers(), torch.get_rng_state())]
    recorded(module, x, loss=mean_square)
    found = [*(p.grad for p in module.parameters()), *module.buffers(), torch.get_rng_state()]
    assert all(torch.equal(a, b) for a, b in zip(found, state, strict=True))


def test_a_step_that_fails_leaves_gradients_and_hooks_as_they_were():
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError

    module = nn.Linear(4, 4)
    module.weight.grad = kept = torch.ones(4, 4)
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    with pytest.raises(ArithmeticError):
        recorded(module, torch.randn(2, 4), loss=fails)
    assert module.weight.grad is kept
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks


def test_a_step_without_gradients_is_refused():
    with pytest.raises(NotCaptured, match="no backward pass"):
        recorded(nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4))


def test_ops_are_timed_in_their_run_where_that_is_asked_for():
    document = recorded(nn.Linear(4, 4), torch.randn(2, 4), loss=torch.sum, measure=True).document
    assert all(node["cost"].keys() == {"seconds"} for node in document["nodes"])
