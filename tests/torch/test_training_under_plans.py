"""`remat.torch.optimize`: numbers bit for bit as without a plan, the peak predicted, and clear refusals."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat.torch
from planner.pipeline import solve_stages
from remat.torch.step.recording import backend_of
from tests.torch.modules import VOCABULARY, Cells, Convolutions, Decoder, Experts, Views
from tests.torch.steps import Loss, equal, peak_and_kept_bytes, peak_bytes, results

QUICK = {"iterations": 30, "measure": False}


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)


def tokens(batch: int = 4) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, 32), generator=torch.Generator().manual_seed(0))


def images(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], Loss]] = {
    "decoder": (Decoder, (tokens(),), itself),
    "decoder without dropout": (lambda: Decoder(0.0), (tokens(),), itself),
    "convolutions": (Convolutions, (images(),), lambda logits: logits.square().sum()),
    "experts": (Experts, (torch.randn(64, 16, generator=torch.Generator().manual_seed(0)),), itself),
    "cells": (Cells, (torch.ones(6, 4, 8),), itself),
    "views": (Views, (torch.ones(8, 16),), lambda outputs: outputs[0].sum() + outputs[1].square().sum()),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], Loss]:
    torch.manual_seed(0)
    model, args, loss = MODELS[name]
    return model(), args, loss


@pytest.mark.parametrize("budget", [0, "70%"])
@pytest.mark.parametrize("name", MODELS)
def test_a_planned_module_computes_what_it_computed_before(name: str, budget: int | str) -> None:
    module, args, loss = made(name)
    planned = remat.torch.optimize(copy.deepcopy(module), args, budget, over_budget="train", **QUICK)
    report = remat.torch.report_of(planned)
    assert report is not None and report.recomputed
    assert equal(results(module, args, loss), results(planned, args, loss))


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.function, self.first, self.last = function, nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(torch.relu(self.first(images)))).square().mean()


REPLACED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = {
    "upsample_bilinear2d": (lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), torch.float32),
    "upsample_bicubic2d": (lambda x: functional.interpolate(x, scale_factor=1.5, mode="bicubic"), torch.float32),
    "upsample_nearest2d": (lambda x: functional.interpolate(x, scale_factor=2), torch.float32),
    "softshrink": (lambda x: functional.softshrink(x, 0.1), torch.bfloat16),
    "hardshrink": (lambda x: functional.hardshrink(x, 0.1), torch.bfloat16),
}


@pytest.mark.parametrize("name", REPLACED)
def test_ops_that_tracing_replaces_elsewhere_run_as_in_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    function, dtype = REPLACED[name]
    module, args = Between(function).to(dtype), (images().to(dtype),)
    kernels = dict(getattr(torch.ops.aten, name).default.py_kernels)
    planned = remat.torch.optimize(copy.deepcopy(module), args, 0, over_budget="train", **QUICK)
    report = remat.torch.report_of(planned)
    assert report is not None and f"aten::{name}.default" in {node.op for node in report.source.nodes}
    assert equal(results(module, args, itself), results(planned, args, itself))
    assert kernels and getattr(torch.ops.aten, name).default.py_kernels == kernels


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_of_everything_draws_no_random_numbers(inplace: bool) -> None:
    torch.manual_seed(0)
    module, args = Between(lambda x: functional.dropout(functional.dropout(x * 2), 1.0, True, inplace)), (images(),)
    planned = remat.torch.optimize(copy.deepcopy(module), args, 0, over_budget="train", **QUICK)
    assert equal(results(module, args, itself), results(planned, args, itself))


@pytest.mark.parametrize("name", ["decoder without dropout", "decoder"])
def test_the_peak_is_the_one_predicted(name: str) -> None:
    torch.manual_seed(0)
    module = Decoder(0.1 if name == "decoder" else 0.0, layers=4, width=64)
    args = (tokens(8),)
    planned = remat.torch.optimize(copy.deepcopy(module), args, "50%", iterations=30)
    report = remat.torch.report_of(planned)
    assert report is not None
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *args))

    def measured(trained: nn.Module) -> int:
        trained(*args).backward()  # the first step allocates more
        trained.zero_grad(set_to_none=True)
        return peak_bytes(lambda: trained(*args).backward())

    peak = measured(planned)
    assert peak == pytest.approx(report.peak_bytes - held, rel=0.01)
    assert peak < 0.7 * measured(module)


def test_a_module_whose_class_is_of_pytorch_is_planned() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    args = (torch.ones(64, 16),)
    planned = remat.torch.optimize(copy.deepcopy(module), args, 0, over_budget="train", **QUICK)
    report = remat.torch.report_of(planned)
    assert report is not None
    assert {"0.weight", "4.bias"} <= {value.annotations.get("origin") for value in report.source.values}
    assert equal(results(module, args, torch.sum), results(planned, args, torch.sum))


def test_gradients_accumulate_over_steps() -> None:
    module, args, loss = made("decoder")
    planned = remat.torch.optimize(copy.deepcopy(module), args, "70%", **QUICK)
    for trained in (module, planned):
        torch.manual_seed(1)
        for _ in range(3):
            loss(trained(*args)).backward()
    assert equal([p.grad for p in module.parameters()], [p.grad for p in planned.parameters()])  # type: ignore[misc]


def test_mixed_precision_with_loss_scaling_has_the_same_numbers() -> None:
    module, args, _ = made("decoder")
    with torch.autocast("cpu", torch.bfloat16):
        planned = remat.torch.optimize(copy.deepcopy(module), args, "70%", **QUICK)
    report = remat.torch.report_of(planned)
    assert report is not None and report.recomputed
    found = []
    for trained in (module, planned):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**110, growth_interval=2)  # the first step overflows
        for _ in range(4):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16):
                loss = trained(*args)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append([loss.detach(), torch.tensor(scaler.get_scale()), *(p.detach() for p in trained.parameters())])
    assert equal(*found)
    assert len(backend_of(planned).reports) == 1


def test_the_module_given_is_shared_and_stays_as_it_is() -> None:
    module, args, _ = made("convolutions")
    before = [tensor.clone() for tensor in module.state_dict().values()]
    state = torch.get_rng_state()
    planned = remat.torch.optimize(module, args, "80%", **QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(planned) is type(module) and planned.state_dict().keys() == module.state_dict().keys()
    assert equal(before, list(module.state_dict().values()))
    assert all(a is b for a, b in zip(module.parameters(), planned.parameters(), strict=True))
    assert module._compiled_call_impl is None


def test_evaluation_runs_unchanged() -> None:
    module, args, _ = made("convolutions")
    planned = remat.torch.optimize(module, args, "80%", **QUICK)
    planned.eval()
    with torch.no_grad():
        assert torch.equal(planned(*args), module(*args))


def test_the_backward_pass_may_run_twice_if_the_graph_is_retained() -> None:
    module, args, loss = made("decoder")
    planned = remat.torch.optimize(module, args, "70%", **QUICK)
    loss(planned(*args)).backward()  # the first backward pass retains nothing
    planned.zero_grad(set_to_none=True)
    value = loss(planned(*args))
    value.backward(retain_graph=True)
    once = [p.grad.clone() for p in planned.parameters() if p.grad is not None]
    planned.zero_grad(set_to_none=True)
    value.backward()
    assert equal(once, [p.grad for p in planned.parameters() if p.grad is not None])
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


def test_an_exception_in_the_middle_of_a_step_leaves_the_next_step_right() -> None:
    module, args, loss = made("decoder")
    planned = remat.torch.optimize(copy.deepcopy(module), args, "70%", **QUICK)
    hook = planned.head.weight.register_hook(lambda gradient: 1 / 0)  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError):
        loss(planned(*args)).backward()
    hook.remove()
    assert equal(results(module, args, loss), results(planned, args, loss))


def test_exceptions_in_the_middle_of_steps_do_not_add_up_in_memory() -> None:
    module, args, loss = made("convolutions")
    planned = remat.torch.optimize(module, args, "70%", **QUICK)
    planned.head.weight.register_hook(lambda gradient: 1 / 0)  # type: ignore[union-attr]

    def steps(count: int) -> None:
        for _ in range(count):
            with pytest.raises(ZeroDivisionError):
                loss(planned(*args)).backward()
            planned.zero_grad(set_to_none=True)
            gc.collect()  # PyTorch holds a part of a step that failed until the next one

    steps(1)
    peak, kept = peak_and_kept_bytes(lambda: steps(1))
    peak_of_three, kept_of_three = peak_and_kept_bytes(lambda: steps(3))
    assert 0 < peak_of_three <= peak and kept_of_three <= kept


def test_a_backend_of_torch_compile_trains_under_the_plan() -> None:
    module, args, loss = made("decoder")
    backend = remat.torch.backend("70%", **QUICK)
    compiled = torch.compile(copy.deepcopy(module), backend=backend, fullgraph=True, dynamic=False)
    assert equal(results(module, args, loss), results(compiled, args, loss))
    (report,) = backend.reports
    assert report is not None and report.status in ("found", "proven")


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    module, args, loss = made("decoder")
    report = remat.torch.capture(module, *args).plan("70%", iterations=30)
    report.save(tmp_path / "plan.json")
    for plan in (report, tmp_path / "plan.json"):
        planned = remat.torch.optimize(copy.deepcopy(module), args, plan=plan)
        assert equal(results(module, args, loss), results(planned, args, loss))


def test_a_plan_of_another_step_is_refused(tmp_path: Path) -> None:
    module, args, _ = made("decoder")
    report = remat.torch.capture(module, *args).plan("70%", iterations=30)
    with pytest.raises(remat.torch.OtherStep, match=r"shape of 'primals_\d+' is \[4, 32\] in the plan, \[2, 32\] here"):
        remat.torch.optimize(module, (tokens(2),), plan=report)
    with pytest.raises(remat.torch.OtherStep, match="plan again"):
        remat.torch.optimize(Decoder(0.2), args, plan=report)
    report.save(tmp_path / "plan.json")
    edited = json.loads((tmp_path / "plan.json").read_text())
    edited["plan"]["order"].reverse()
    with pytest.raises(remat.torch.OtherStep, match="not legal"):
        remat.torch.optimize(module, args, plan=edited)
    del edited["source"]
    with pytest.raises(remat.torch.OtherStep, match="no source graph"):
        remat.torch.optimize(module, args, plan=edited)


def test_another_shape_is_planned_or_refused_as_asked() -> None:
    module, args, loss = made("decoder")
    planned = remat.torch.optimize(copy.deepcopy(module), args, "70%", **QUICK)
    assert equal(results(module, (tokens(2),), loss), results(planned, (tokens(2),), loss))
    strict = remat.torch.optimize(copy.deepcopy(module), args, "70%", new_steps="refuse", **QUICK)
    with pytest.raises(Exception, match="other shapes, or in another mode"):
        strict(tokens(2))


def test_a_budget_that_no_plan_meets_is_an_error_that_names_the_lowest_peak() -> None:
    module, args, _ = made("decoder")
    with pytest.raises(
        remat.torch.BudgetNotMet, match=r"no plan within 1.00 KiB: the lowest peak .* ask for that much"
    ):
        remat.torch.optimize(module, args, 1024, **QUICK)


def test_a_planned_module_is_not_planned_twice() -> None:
    module, args, _ = made("views")
    planned = remat.torch.optimize(module, args, **QUICK)
    with pytest.raises(remat.torch.AlreadyPlanned, match="already"):
        remat.torch.optimize(planned, args)
    with pytest.raises(ValueError, match="no plan"):
        remat.torch.report_of(module)


def test_a_plan_and_a_budget_exclude_each_other() -> None:
    with pytest.raises(TypeError, match="not both"):
        remat.torch.backend("50%", plan="plan.json")


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x.sum().item())
        return x.relu()


class NeedsNothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize("call", [lambda m, x: remat.torch.optimize(m, (x,)), remat.torch.capture])
def test_what_is_not_one_graph_with_gradients_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(
        remat.torch.NotCaptured, match=r"(?s)not one graph.*test_training_under_plans.py.*Move what breaks"
    ):
        call(Breaks(), torch.ones(3, requires_grad=True))
    with pytest.raises(remat.torch.NotCaptured, match="no backward pass"):
        call(NeedsNothing(), torch.ones(3))


class Recurrent(nn.Module):
    def __init__(self, kind: str, layers: int = 2, dropout: float = 0.5):
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, layers, dropout=dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0].square().mean()


def test_a_recurrent_layer_is_refused_with_what_to_write() -> None:
    with pytest.raises(remat.torch.NotCaptured, match=r"loop over nn.RNNCell, nn.GRUCell or nn.LSTMCell"):
        remat.torch.capture(Recurrent("LSTM", dropout=0.0), torch.ones(5, 2, 3))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@torch._dynamo.config.patch(allow_rnn=True)
def test_dropout_that_pytorch_would_lose_is_refused(kind: str) -> None:
    with pytest.raises(
        remat.torch.NotCaptured, match=r"without the dropout of 0.5 between them; use one layer for each"
    ):
        remat.torch.optimize(Recurrent(kind), (torch.ones(5, 2, 3),), budget="90%")


@torch._dynamo.config.patch(allow_rnn=True)
def test_an_op_with_an_opaque_buffer_is_not_measured_on_made_up_data() -> None:
    captured = remat.torch.capture(Recurrent("LSTM", dropout=0.0), torch.ones(5, 2, 3), measure=True)
    rows = {row["op"]: row.get("cost", {}) for row in captured.document["nodes"]}
    assert "seconds" not in rows["aten::mkldnn_rnn_layer_backward.default"]


@pytest.mark.parametrize("call", [lambda m, x: remat.torch.optimize(m, (x,)), remat.torch.capture])
def test_a_module_that_fails_is_refused_with_its_line(call: Callable[..., Any]) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(4, dtype=torch.float64)

    with pytest.raises(remat.torch.NotCaptured, match=r"(?s)fails on these arguments.*test_training_under_plans.py"):
        call(Fails(), torch.ones(4, requires_grad=True))


@pytest.mark.parametrize("wrong", [{"compiler": "Inductor"}, {"new_steps": "again"}, {"over_budget": "warn"}])
def test_arguments_that_are_none_of_their_choices_are_refused(wrong: dict[str, Any]) -> None:
    ((name, given),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}='{given}' is not known; use '"):
        remat.torch.backend("50%", **wrong)


def test_an_eager_recording_is_for_no_other_compiler() -> None:
    with pytest.raises(ValueError, match="leave out the compiler"):
        remat.torch.capture(nn.Linear(2, 2), torch.ones(1, 2), recording="eager", compiler="inductor")
    with pytest.raises(ValueError, match="recording='onnx' is not known"):
        remat.torch.capture(nn.Linear(2, 2), torch.ones(1, 2), recording="onnx")  # type: ignore[arg-type]
