"""`remat.torch` with Inductor: gradients of plain Inductor, a lower peak, the one predicted; and clear refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import remat.torch
from planner.pipeline import solve_stages
from remat.torch.inductor import saved_sets
from remat.torch.inductor.backend import compiled_backend
from remat.torch.inductor.lowering import SEEDS, moments
from remat.torch.inductor.saved_sets import once
from remat.torch.step.document import TANGENTS
from remat.torch.step.recording import Step, backend_of
from remat.torch.step.split import crossing
from tests.torch.modules import VOCABULARY, Decoder
from tests.torch.steps import equal, peak_bytes, results

QUICK: dict[str, Any] = {"compiler": "inductor", "iterations": 30, "measure": False}
IMAGES = torch.randn(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))
CONSTANT = torch.arange(64.0).reshape(4, 16)
TOKENS = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two candidates, no multi-step bound, and kernels without vectors, which compile faster."""
    monkeypatch.setattr(saved_sets, "BUDGETS", ("60%", "50%"))
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)
    with torch._inductor.config.patch({"cpp.simdlen": 1}):
        yield


class Mixed(nn.Module):
    """Convolutions with batch norm and dropout, and a linear layer used twice; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), *(nn.Conv2d(8, 8, 3) for _ in range(2))])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in self.convolutions])
        self.linear, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head.weight = self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.dropout(F.relu(norm(convolution(x))), 0.1, self.training)
        return self.head(F.gelu(self.linear(x.mean((2, 3))))).square().mean()


def itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return Mixed()


def recorded(module: nn.Module, *args: torch.Tensor, peaks: list[int] | None = None) -> Step:
    """The step that Inductor gets; its peak without a plan is added to `peaks`."""
    steps: list[Step] = []

    def record(step: Step, plain: Callable[[], Any]) -> Any:
        steps.append(step)
        if peaks is not None:
            peaks.append(max(moment.live_bytes for moment in moments(plain())))
        raise remat.torch.NotCaptured("recorded")

    with pytest.raises(Exception, match="recorded"):
        torch.compile(module, backend=compiled_backend(record), fullgraph=True, dynamic=False)(*args)
    return steps[0]


def test_gradients_are_those_of_inductor_with_a_lower_peak_as_predicted(tmp_path: Path) -> None:
    module = mixed()
    plain = torch.compile(copy.deepcopy(module), fullgraph=True, dynamic=False)
    planned = remat.torch.optimize(copy.deepcopy(module), (IMAGES,), 0, over_budget="train", **QUICK)
    backend = backend_of(planned)
    report, found = remat.torch.report_of(planned), backend.compiled[-1]
    assert report is not None and found.report is report and found.recomputed
    assert found.peak_bytes < found.plain_peak_bytes
    expected = results(plain, (IMAGES,), itself)
    assert equal(expected, results(planned, (IMAGES,), itself))

    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), IMAGES))
    for trained, predicted in ((plain, found.plain_peak_bytes), (planned, found.peak_bytes)):
        trained.zero_grad(set_to_none=True)
        measured = held + peak_bytes(lambda trained=trained: trained(IMAGES).backward())  # type: ignore[misc]
        assert measured == pytest.approx(predicted, rel=0.05)

    report.save(tmp_path / "plan.json")
    again = remat.torch.optimize(copy.deepcopy(module), (IMAGES,), plan=tmp_path / "plan.json", compiler="inductor")
    assert equal(expected, results(again, (IMAGES,), itself))
    assert backend_of(again).compiled[-1].saved == found.saved


def test_gradients_in_bfloat16_are_those_of_inductor_if_it_rounds_as_eager_does() -> None:
    module = mixed().bfloat16()
    images = IMAGES.bfloat16()
    with torch._inductor.config.patch(emulate_precision_casts=True):
        plan = remat.torch.capture(module, images, compiler="inductor").plan("50%", iterations=30)
        plain = torch.compile(copy.deepcopy(module), fullgraph=True, dynamic=False)
        planned = remat.torch.optimize(copy.deepcopy(module), (images,), plan=plan, compiler="inductor", measure=False)
        assert backend_of(planned).compiled[-1].recomputed
        assert equal(results(plain, (images,), itself), results(planned, (images,), itself))


def test_a_plan_of_another_step_or_of_the_eager_executor_is_refused() -> None:
    module = Decoder(0.1, layers=1)
    plan = remat.torch.capture(module, TOKENS, compiler="inductor").plan("80%", iterations=5)
    with pytest.raises(remat.torch.OtherStep, match=r"\[2, 16\] in the plan, \[1, 16\] here"):
        remat.torch.optimize(module, (TOKENS[:1],), plan=plan, compiler="inductor")
    with pytest.raises(remat.torch.OtherStep, match="another step"):
        remat.torch.optimize(module, (TOKENS,), plan=plan)


def test_a_budget_that_no_code_of_inductor_meets_names_the_lowest_peak() -> None:
    with pytest.raises(remat.torch.BudgetNotMet, match=r"for Inductor: the lowest peak found is [\d.]+ KiB"):
        remat.torch.optimize(mixed(), (IMAGES,), "1%", **QUICK)


def test_the_document_has_one_node_for_each_kernel() -> None:
    step = recorded(Decoder(0.1, layers=1), TOKENS)
    names = {record["name"] for record in step.document["nodes"]}
    tasks = {task.name for task in step.joint.tasks}
    assert len(names & tasks) < 0.6 * len(tasks)
    assert step.fusion is not None
    assert sorted(part.name for parts in step.fusion.parts.values() for part in parts) == sorted(tasks)
    assert all(record["recompute"] == "never" for record in step.document["nodes"] if "seeds" in record["op"])


def test_what_is_not_saved_is_recomputed_once_and_seeds_never() -> None:
    step = recorded(Decoder(0.1, layers=2), TOKENS)
    joint = step.joint
    seeds = [task.name for task in joint.tasks if task.target is SEEDS]
    tasks = sorted(joint.tasks, key=joint.is_backward)
    unplanned = [(task.name, 0) for task in tasks]
    unplanned.insert([joint.is_backward(task) for task in tasks].index(True), (TANGENTS, 0))
    assert once(joint, crossing(joint, unplanned)) == unplanned
    read = dict.fromkeys(result for task in joint.tasks for result in joint.reads(task))
    order = once(joint, [result for result in read if result.node.name in seeds])
    assert len(order) == len(set(order)) and seeds
    assert not {name for name, run in order if run} & set(seeds)


def test_the_peak_counts_inputs_and_what_the_code_allocates() -> None:
    peaks: list[int] = []
    x = torch.ones(4, 16)

    class Squares(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return ((x @ weight) * CONSTANT).sin().sum()

    recorded(Squares(), x, torch.ones(16, 16, requires_grad=True), peaks=peaks)
    inputs, product, cosine, gradient = 4 * 64 + 4 * 256, 4 * 64, 4 * 64, 4 * 256
    assert inputs + product + gradient <= peaks[0] <= inputs + product + cosine + gradient + 4 * 64
