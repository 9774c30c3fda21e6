"""The fixture `remat_check` with a PyTorch module."""

from __future__ import annotations

from pathlib import Path

import torch

from remat.memory_check import problem_of


def network(wide: int) -> torch.nn.Module:
    middle = [torch.nn.Sequential(torch.nn.Linear(64, wide), torch.nn.GELU(), torch.nn.Linear(wide, 64)) for _ in "abc"]
    return torch.nn.Sequential(*middle)


def test_a_module_that_widened_is_blamed_by_its_layers(tmp_path: Path) -> None:
    batch, baseline = torch.randn(256, 64), Path("baseline.json")
    fields = {"budget": "80%", "search_seconds": 0.2, "loss": lambda y: y.square().mean()}

    def problem(module: torch.nn.Module, update: bool = False) -> str:
        return problem_of(tmp_path, module, (batch,), baseline, update, **fields)  # type: ignore[arg-type]

    assert problem(network(64), update=True) == ""
    assert problem(network(64)) == ""
    found = problem(network(128))
    assert found.startswith("Sequential: over budget: the plan peaks at ")
    assert "float32[256,64] → float32[256,128]" in found and "nodes to blame: " in found


def test_a_module_that_cannot_be_recorded_is_a_message(tmp_path: Path) -> None:
    frozen = network(8).requires_grad_(False)
    found = problem_of(tmp_path, frozen, (torch.randn(4, 64),), Path("baseline.json"), True, budget="80%")
    assert found.startswith("Sequential: ") and "gradient" in found
