"""Plans of whole modules: the printed code runs, computes what the model computed, and peaks where it is said to."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import remat.torch
from graph.formats.readers import load
from graph.ir import Graph
from planner.errors import BadRequest
from planner.request.plan_request import parse_request
from planner.wraps.wraps import WrapPlan, wraps_for
from tests.torch.modules import VOCABULARY, Convolutions, Decoder
from tests.torch.steps import Loss, equal, peak_bytes, results


class Nested(nn.Module):
    """Stages of blocks of convolutions with group norm and dropout; one activation serves all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.stages = nn.ModuleDict(
            {f"stage{i}": nn.Sequential(self._block(3 if i == 0 else 8), self._block(8)) for i in range(3)}
        )
        self.head = nn.Linear(8, 5)

    def _block(self, channels: int) -> nn.Sequential:
        convolution = nn.Conv2d(channels, 8, 3, padding=1)
        return nn.Sequential(convolution, nn.GroupNorm(2, 8), self.act, nn.GELU(), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages.values():
            x = stage(x)
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (8, 32), generator=torch.Generator().manual_seed(0))


def images() -> torch.Tensor:
    return torch.randn(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


def squares(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.square().sum()


#: Model, arguments, loss, and the largest error of the predicted peak: local variables of `Block.forward` hold what
#: dropout lets autograd drop, and in-place ReLU saves a result.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], Loss, float]] = {
    "decoder without dropout": (lambda: Decoder(0.0, layers=4, width=64), (tokens(),), itself, 0.01),
    "decoder": (lambda: Decoder(0.1, layers=4, width=64), (tokens(),), itself, 0.09),
    "nested": (Nested, (images(),), squares, 0.01),
    "batch norm": (Convolutions, (images(),), squares, 0.09),
}


def recorded(module: nn.Module, args: tuple[Any, ...], loss: Loss) -> Graph:
    return load(remat.torch.capture(module, *args, loss=loss).to_json().encode())


def planned(step: Graph, budget: str | int) -> WrapPlan:
    return wraps_for(step, parse_request({"device": "cpu-reference", "execute": "no", "budget": budget}))


def wrapped(plan: WrapPlan, module: nn.Module) -> nn.Module:
    """The module after running the printed code, which sees nothing but PyTorch."""
    names: dict[str, Any] = {}
    exec(plan.patch, names)
    assert "remat" not in {getattr(value, "__name__", "").split(".")[0] for value in names.values()}
    made: nn.Module = names["wrap"](module)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_the_printed_code_trains_with_the_same_numbers_and_the_predicted_peak(name: str) -> None:
    torch.manual_seed(0)
    model, args, loss, error = MODELS[name]
    module = model()
    step, plain = recorded(module, args, loss), results(copy.deepcopy(module), args, loss)
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *args))
    for budget in ("75%", 0):
        plan = planned(step, budget)
        assert plan.status == "found" and plan.modules and plan.peak_bytes < plan.baseline_peak_bytes
        trained = wrapped(plan, copy.deepcopy(module))
        assert trained.state_dict().keys() == module.state_dict().keys()
        assert equal(plain, results(trained, args, loss))
        trained.zero_grad(set_to_none=True)
        measured = peak_bytes(lambda trained=trained: loss(trained(*args)).backward())  # type: ignore[misc]
        assert measured == pytest.approx(plan.peak_bytes - held, rel=error)


def test_modules_are_named_as_the_model_names_them() -> None:
    captured = remat.torch.capture(Convolutions(2), images(), loss=squares)
    modules = captured.document["annotations"]["modules"]
    assert {"layers", "layers.0", "layers.1.3", "head"} <= set(modules) and "" not in modules
    assert not [path for path in modules if path.startswith("module")]
    nodes = {node.get("annotations", {}).get("module") for node in captured.document["nodes"]}
    assert {"layers.0.0", "head"} <= nodes
    origins = {value.get("annotations", {}).get("origin") for value in captured.document["values"]}
    assert "layers.0.0.weight" in origins


class Shared(nn.Module):
    """`first` runs twice; a part of `second` runs outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.second = nn.Sequential(nn.Linear(8, 8), nn.GELU())
        self.third = nn.Sequential(nn.Linear(8, 8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second[1](self.second(self.first(self.first(x))))
        y: torch.Tensor = self.third(x)
        return y


def test_modules_that_are_not_one_region_of_the_step_are_not_named() -> None:
    captured = remat.torch.capture(Shared(), torch.ones(4, 8), loss=squares)
    assert set(captured.document["annotations"]["modules"]) == {"second.0", "third", "third.0", "third.1"}


def test_a_budget_below_what_wraps_reach_is_refused_with_the_lowest_peak() -> None:
    torch.manual_seed(0)
    module = Decoder(0.0, layers=4, width=64)
    step = recorded(module, (tokens(),), itself)
    lowest = planned(step, 0)
    refused = planned(step, lowest.peak_bytes - 1)
    assert refused.status == "over_budget" and refused.peak_bytes == lowest.peak_bytes
    assert planned(step, lowest.peak_bytes).status == "found"


def test_wrapping_a_model_twice_is_refused() -> None:
    module = Decoder(0.0, layers=2)
    plan = planned(recorded(module, (tokens(),), itself), 0)
    wrapped(plan, module)
    with pytest.raises(ValueError, match="wrapped already"):
        wrapped(plan, module)


class Counts(nn.Module):
    """A block whose forward pass counts its calls in a buffer that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("calls", torch.ones(1))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1.0)
        return F.gelu(self.linear(x)) * self.calls


def test_a_module_that_writes_to_a_buffer_is_not_wrapped() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.GELU()) for _ in range(3)), Counts())
    plan = planned(recorded(module, (torch.ones(64, 16),), squares), 0)
    assert list(plan.barred) == ["3"] and "must run once" in plan.barred["3"]
    assert plan.modules and "3" not in plan.modules
    args = (torch.ones(64, 16),)
    assert equal(results(copy.deepcopy(module), args, squares), results(wrapped(plan, module), args, squares))


def test_a_document_without_modules_is_refused() -> None:
    document = remat.torch.capture(Decoder(0.0, layers=1), tokens()).document
    del document["annotations"]["modules"]
    with pytest.raises(BadRequest, match="capture the model again"):
        wraps_for(load(json.dumps(document).encode()), parse_request({"budget": 0}))
