"""Every name of PyTorch that is not public stands here: ahead-of-time autograd, its partitioners and random states.

Written for PyTorch 2.13, which `pyproject.toml` pins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

__all__ = [
    "BackendCompilerFailed",
    "Unsupported",
    "eager_backend",
    "graph_module",
    "fake_random_state",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "saved_description",
]

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def eager_backend(partition: Partition) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend of `torch.compile` that divides the joint graph by `partition` and runs both parts op by op.

    Arguments arrive in a list that the graph empties, so each tensor goes after its last reader.
    """
    backend: Callable[..., Any] = aot_autograd(fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition)
    return backend


def graph_module(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module that runs a graph whose constants are attributes of `root`."""
    return fx.GraphModule(root, graph)


def saved_description(number: int) -> Any:
    """What ahead-of-time autograd notes on an output of the forward pass that is saved for the backward pass."""
    return SavedForBackwardsAOTOutput(number)


def fake_random_state(example: torch.Tensor) -> torch.Tensor:
    """A fake tensor like the state of the generator of a fake tensor's device."""
    device = example.device
    state = torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    mode = detect_fake_mode([example])
    assert mode is not None
    fake: torch.Tensor = mode.from_tensor(state)
    return fake
