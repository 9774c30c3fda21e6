"""Modules that share compiled code compute what each of them computes by itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from remat.torch.step.recording import compiled_by
from tests.torch.modules import Block


def counted() -> tuple[list[int], Callable[..., Any]]:
    """Calls of a backend that runs graphs as they are, and the backend."""
    calls: list[int] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        calls.append(len(calls))
        return graph.forward

    return calls, backend


def zeros(*_: Any) -> torch.Tensor:
    return torch.zeros(2, 8, 16)


@pytest.mark.parametrize("which", [0, 1])
def test_a_hook_inside_of_one_module_is_of_that_module_alone(which: int) -> None:
    calls, backend = counted()
    modules, x = [Block(16, 4, 0.0) for _ in range(3)], torch.randn(2, 8, 16)
    modules[which].mlp.register_forward_hook(zeros)
    compiled = compiled_by(backend, 3)
    for module in modules:
        assert torch.allclose(compiled(module)(x), module(x), atol=1e-6)
    assert len(calls) == 2


def test_modules_that_differ_in_a_constant_are_compiled_apart() -> None:
    calls, backend = counted()
    modules, x = [Block(16, heads, 0.0) for heads in (4, 2, 4)], torch.randn(2, 8, 16)
    compiled = compiled_by(backend, 3)
    for module in modules:
        assert torch.allclose(compiled(module)(x), module(x), atol=1e-6)
    assert len(calls) == 2


def test_a_module_of_torch_keeps_its_hooks_and_can_be_copied_and_pickled() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    expected = module(x)
    calls, backend = counted()
    compiled = compiled_by(backend)(module)
    with compiled.register_forward_hook(lambda module, args, result: 2 * result):
        assert torch.equal(compiled(x), 2 * expected)
    assert torch.equal(compiled(x), expected) and len(calls) == 1
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(other(x), expected)


def test_a_forward_pass_that_a_module_of_torch_was_given_is_kept() -> None:
    module, x = nn.Linear(4, 4), torch.randn(2, 4)
    expected = 3 * module(x)
    module.forward = lambda x: 3 * nn.functional.linear(x, module.weight, module.bias)  # type: ignore[method-assign]
    calls, backend = counted()
    compiled = compiled_by(backend)(module)
    for _ in range(2):
        assert torch.equal(compiled(x), expected) and len(calls) == 1
