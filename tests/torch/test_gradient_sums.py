"""Sums of gradients are written over an operand that ends there: what the document says, the executor does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import remat.torch
from tests.torch.steps import equal, peak_bytes, results

pytestmark = pytest.mark.usefixtures("quick_bounds")
WIDTH, ROWS = 32, 64
SCALARS = 8  # bytes: the loss and its gradient may live at the peak
PLAIN = {"iterations": 1, "execute": "no"}


class Branches(nn.Module):
    """`x` is read by three branches, so its gradient is two sums; `shape` is what becomes of it before."""

    def __init__(self, shape: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.contiguous):
        super().__init__()
        self.shape, self.linear = shape, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shape(self.linear(x))
        return (x.sin() + x.exp() * x.cos()).sum()


class Rows(nn.Module):
    """Reads rows one by one: each has a gradient as large as all of them, which limit the peak where they are added."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return torch.stack([x[i].sin().sum() for i in range(4)]).sum()


class Returned(nn.Module):
    """The gradient of the input is one operand of a sum that a parameter gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x + self.weight) * 2.0 + self.weight.sin()).sum()


def inputs(**options: Any) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_(**options)


def sums(captured: remat.torch.Capture) -> list[dict[str, Any]]:
    """The additions of the backward pass."""
    return [
        node for node in captured.document["nodes"] if node["op"] == "aten::add.Tensor" and node["phase"] == "backward"
    ]


def peaks(module: nn.Module, x: torch.Tensor, plan: remat.torch.Report) -> tuple[int, int]:
    """(bytes measured, bytes predicted) of a step under a plan, beyond parameters and inputs."""
    planned = remat.torch.optimize(copy.deepcopy(module), (x,), plan=plan)

    def step() -> None:
        planned.zero_grad(set_to_none=True)
        x.grad = None
        planned(x).backward()

    step()
    planned.zero_grad(set_to_none=True)
    x.grad = None
    return peak_bytes(step), plan.peak_bytes - sum(p.nbytes for p in module.parameters()) - x.nbytes


def test_a_sum_names_the_operands_that_it_may_overwrite_and_the_peak_follows() -> None:
    torch.manual_seed(0)
    module, x = Rows(), inputs(requires_grad=False)
    captured = remat.torch.capture(module, x)
    assert [node["takeover"] == {node["outputs"][0]: node["inputs"]} for node in sums(captured)] == [True] * 3
    plan = captured.plan("100%", **PLAIN)
    measured, predicted = peaks(module, x, plan)
    assert abs(measured - predicted) <= SCALARS
    for node in sums(captured):
        del node["takeover"]
    assert captured.plan("100%", **PLAIN).peak_bytes > plan.peak_bytes + 3 * ROWS * WIDTH


@pytest.mark.heavy
@pytest.mark.parametrize(
    "shape", [lambda x: x.t(), lambda x: x.view(ROWS // 2, 2, WIDTH), lambda x: x[:1], lambda x: x[:, ::2]]
)
def test_sums_of_views_compute_what_they_computed_before(shape: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    module, x = Branches(shape), inputs(requires_grad=False)
    for request in ({}, {"memory": "arena"}):
        planned = remat.torch.optimize(copy.deepcopy(module), (x,), 0, iterations=10, measure=False, **request)
        assert equal(results(module, (x,), lambda loss: loss), results(planned, (x,), lambda loss: loss))
    measured, predicted = peaks(module, x, remat.torch.capture(module, x).plan("100%", **PLAIN))
    assert abs(measured - predicted) <= SCALARS


def test_an_operand_that_is_returned_is_not_overwritten() -> None:
    torch.manual_seed(0)
    module, x, other = Returned(), inputs(), inputs()
    planned = remat.torch.optimize(copy.deepcopy(module), (other,), "100%", iterations=1, measure=False)
    for _ in range(2):  # gradients are added to those of the step before
        module(x).backward()
        planned(other).backward()
    assert x.grad is not None and other.grad is not None and module.weight.grad is not None
    assert torch.equal(x.grad, other.grad) and torch.equal(module.weight.grad, planned.weight.grad)


def test_a_second_backward_pass_computes_the_same() -> None:
    torch.manual_seed(0)
    module, x = Branches(), inputs(requires_grad=False)
    planned = remat.torch.optimize(copy.deepcopy(module), (x,), 0, iterations=10, measure=False)
    for each in (module, planned):
        loss = each(x)
        loss.backward(retain_graph=True)
        loss.backward()
    found, expected = ([p.grad for p in each.parameters() if p.grad is not None] for each in (planned, module))
    assert len(found) == 2 and equal(found, expected)


def test_a_plan_that_was_made_without_takeovers_still_runs() -> None:
    torch.manual_seed(0)
    module, x = Rows(), inputs(requires_grad=False)
    captured = remat.torch.capture(module, x)
    for node in sums(captured):
        del node["takeover"]
    measured, predicted = peaks(module, x, captured.plan("100%", **PLAIN))
    assert measured < predicted - 3 * ROWS * WIDTH


def test_gradients_from_outside_and_what_other_libraries_return_are_not_overwritten() -> None:
    @torch.library.custom_op("remat_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda _, gradient: torch.ops.remat_tests.doubled(gradient))

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = self.linear(x)
            return x, torch.ops.remat_tests.doubled(x), x.sin()

    with FakeTensorMode(allow_non_fake_inputs=True):
        module, x = Outside(), torch.ones(ROWS, WIDTH)
        found = sums(remat.torch.capture(module, x, loss=None))
    taken = {source for node in found for source in node.get("takeover", {}).get(node["outputs"][0], [])}
    assert len(found) == 2 and not any(source.startswith(("tangents", "doubled")) for source in taken)
