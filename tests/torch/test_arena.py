"""`memory="arena"`: values at the addresses of the plan's layout, numbers bit for bit, the peak that was predicted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remat.torch
from remat.torch.step.arena import has_out_kernel
from tests.torch.modules import VOCABULARY, Convolutions, Decoder, Views
from tests.torch.steps import Loss, equal, peak_and_kept_bytes, results

pytestmark = pytest.mark.usefixtures("quick_bounds")
QUICK = {"iterations": 30, "measure": False, "memory": "arena"}
TOKENS = torch.randint(0, VOCABULARY, (4, 32), generator=torch.Generator().manual_seed(0))


def itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, Loss]] = {
    "decoder": (Decoder, TOKENS, itself),
    "convolutions": (Convolutions, torch.ones(4, 3, 16, 16).cumsum(-1), lambda logits: logits.square().sum()),
    "views": (Views, torch.ones(8, 16), lambda outputs: outputs[0].sum() + outputs[1].square().sum()),
}


@pytest.fixture(scope="module")
def decoders(quick_bounds: None) -> tuple[nn.Module, nn.Module]:
    """A module, and a copy of it that is planned in an arena."""
    module, args, _ = made("decoder")
    return module, remat.torch.optimize(copy.deepcopy(module), args, "80%", **QUICK)


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], Loss]:
    torch.manual_seed(0)
    model, argument, loss = MODELS[name]
    return model(), (argument,), loss


@pytest.mark.parametrize("name", MODELS)
def test_a_module_in_an_arena_computes_what_it_computed_before(name: str) -> None:
    module, args, loss = made(name)
    planned = remat.torch.optimize(copy.deepcopy(module), args, 0, over_budget="train", **QUICK)
    report = remat.torch.report_of(planned)
    assert report is not None and report.recomputed
    assert equal(results(module, args, loss), results(planned, args, loss))


def test_the_peak_of_an_arena_is_the_one_predicted() -> None:
    torch.manual_seed(0)
    module, args = Decoder(0.0, layers=4, width=64), (TOKENS.repeat(2, 1),)
    planned = remat.torch.optimize(copy.deepcopy(module), args, "60%", iterations=30, memory="arena", reserve="1KiB")
    report, arena = remat.torch.report_of(planned), remat.torch.arena_of(planned)
    assert report is not None and report.fits and report["plan"]["peak_by"]["reserve"] == arena.outside_bytes + 1024
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *args))
    planned(*args).backward()
    planned.zero_grad(set_to_none=True)
    peak, kept = peak_and_kept_bytes(lambda: planned(*args).backward())
    assert arena.block_bytes < peak == pytest.approx(arena.block_bytes + arena.outside_bytes, rel=0.01)
    assert peak == pytest.approx(report.peak_bytes - 1024 - held, rel=0.01)
    assert kept == pytest.approx(arena.block_bytes, rel=0.01)  # which the gradients hold


def test_a_block_is_freed_with_its_gradients_and_not_held_by_losses(decoders: tuple[nn.Module, nn.Module]) -> None:
    _, planned = decoders
    losses = []

    def step() -> None:
        losses.append(planned(TOKENS))
        losses[-1].backward()
        planned.zero_grad(set_to_none=True)

    step()
    _, kept = peak_and_kept_bytes(step)
    assert kept < 1000 < remat.torch.arena_of(planned).block_bytes


def test_gradients_accumulate_over_the_blocks_of_several_steps(decoders: tuple[nn.Module, nn.Module]) -> None:
    module, planned = decoders
    for trained in (module, planned):
        torch.manual_seed(1)
        trained.zero_grad(set_to_none=True)
        for value in [trained(TOKENS) for _ in range(3)]:  # all forward passes first
            value.backward()
    assert equal([p.grad for p in module.parameters()], [p.grad for p in planned.parameters()])  # type: ignore[misc]


def test_a_second_backward_pass_over_overwritten_values_is_refused(decoders: tuple[nn.Module, nn.Module]) -> None:
    module, planned = decoders
    value = planned(TOKENS)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="ran before and has overwritten the values"):
        value.backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        value = planned(TOKENS)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="ran before and has overwritten the values"):
        value.backward()
    assert equal(results(module, (TOKENS,), itself), results(planned, (TOKENS,), itself))


def test_hooks_that_move_saved_tensors_elsewhere_change_no_number(decoders: tuple[nn.Module, nn.Module]) -> None:
    module, planned = decoders
    expected = results(module, (TOKENS,), itself)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        assert equal(expected, results(planned, (TOKENS,), itself))


def test_a_plan_with_addresses_is_read_from_a_file_and_one_without_is_refused(tmp_path: Path) -> None:
    module, args, loss = made("decoder")
    captured = remat.torch.capture(module, *args)
    captured.plan("80%", iterations=30, layout="fast", returns=("plan", "layout")).save(tmp_path / "plan.json")
    planned = remat.torch.optimize(copy.deepcopy(module), args, plan=tmp_path / "plan.json", memory="arena")
    assert equal(results(module, args, loss), results(planned, args, loss))
    with pytest.raises(remat.torch.OtherStep, match='no addresses: make it with layout="fast"'):
        remat.torch.optimize(module, args, plan=captured.plan("80%", iterations=30), memory="arena")


class OnTwoDevices(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin().sum(), x.detach().to("meta").cos()


def test_an_op_whose_result_cannot_lie_in_the_block_is_named_with_its_line() -> None:
    with pytest.raises(remat.torch.NotPlaced, match=r'aten.sin.default \(.*test_arena.py:\d+\).*memory="allocator"'):
        remat.torch.optimize(OnTwoDevices(), (torch.ones(3, requires_grad=True),), 0, over_budget="train", **QUICK)


def test_what_has_no_addresses_has_no_arena() -> None:
    with pytest.raises(ValueError, match="inductor places values itself"):
        remat.torch.backend("50%", compiler="inductor", memory="arena")
    with pytest.raises(ValueError, match="needs addresses"):
        remat.torch.backend("50%", layout="none", memory="arena")
    with pytest.raises(ValueError, match="memory='pool' is not known"):
        remat.torch.backend("50%", memory="pool")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='memory="arena"'):
        remat.torch.arena_of(nn.Linear(2, 2))


def test_ops_with_kernels_that_write_to_given_memory_are_not_moved() -> None:
    aten = torch.ops.aten
    for op in (aten.mm.default, aten.add.Tensor, aten.gelu_backward.default, aten.cat.default, aten._softmax.default):
        assert has_out_kernel(op, "cpu"), op
    for op in (aten.convolution.default, aten.native_layer_norm.default, aten.embedding.default):
        assert not has_out_kernel(op, "cpu"), op
