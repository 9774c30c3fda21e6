"""Blocks of a sharded model: which modules they are, how a step calls them, and which are of one kind."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from remat.torch.step.errors import NotCaptured
from remat.torch.step.planning import fingerprint
from remat.torch.step.recording import NO_GRADIENT, Passes, Step, compiled_by, step_backend
from remat.torch.step.split import order_as_recorded, split

CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
NOT_CALLED = "the step does not call it"


@dataclass(frozen=True)
class Shape:
    """What is known of a tensor without its contents; the tensor itself would be held."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Shape:
        return Shape(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)

    def empty(self) -> torch.Tensor:
        """A tensor like that, whatever it holds."""
        return torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device=self.device, requires_grad=self.requires_grad
        )


@dataclass(frozen=True)
class BlockCall:
    """How a step calls a block: arguments, element types of its parameters, and that of autocast if it is on."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtypes: Mapping[str, torch.dtype]
    device: str
    autocast: torch.dtype | None

    @staticmethod
    def of(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockCall:
        args, kwargs = tree_map_only(torch.Tensor, Shape.of, (args, kwargs))
        device = next((p.device.type for p in block.parameters()), "cpu")
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return BlockCall(args, kwargs, {name: p.dtype for name, p in block.named_parameters()}, device, autocast)

    def run(self, block: nn.Module) -> None:
        """Call a block like that; random generators are put back."""
        args, kwargs = tree_map_only(Shape, Shape.empty, (self.args, self.kwargs))
        with torch.random.fork_rng(), torch.enable_grad(), contextlib.ExitStack() as stack:
            if self.autocast is not None:
                stack.enter_context(torch.autocast(self.device, self.autocast))
            block(*args, **kwargs)


@dataclass
class BlockCalls:
    """Calls of the blocks in a step, by path, and the blocks that cannot have a plan, each with the reason."""

    found: dict[str, BlockCall] = field(default_factory=dict)
    unplanned: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def noted(self, sharded: nn.Module) -> Iterator[None]:
        """Note how a step inside calls the blocks of a sharded model. Raises ValueError if it has none."""
        blocks = blocks_of(sharded)
        if not blocks:
            raise ValueError(
                "`shard` has sharded no module inside of the model; let it call fully_shard on the blocks too"
            )
        for path, block in blocks.items():
            block.register_forward_pre_hook(functools.partial(self._note, path), with_kwargs=True)
        yield
        for path in blocks:
            if path not in self.found and path not in self.unplanned:
                self.refuse(path, NOT_CALLED)

    def _note(self, path: str, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook of a block that is about to run, with the parameters of all ranks."""
        leaves = tree_leaves((args, kwargs))
        if path in self.unplanned:
            return
        if any(isinstance(each, DTensor) for each in (*block.parameters(), *leaves)):
            self.refuse(path, "its parameters or arguments are divided among ranks while it runs (DTensor)")
        elif others := [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *CONSTANTS))]:
            self.refuse(path, f"an argument is a {type(others[0]).__name__}, not tensors and constants")
        elif not torch.is_grad_enabled():
            self.refuse(path, "the step calls it without gradients")
        elif self.found.setdefault(path, call := BlockCall.of(block, args, kwargs)) != call:
            self.refuse(path, "the step calls it several times with arguments of other shapes")

    def refuse(self, path: str, reason: str) -> None:
        """A block has no plan."""
        self.found.pop(path, None)
        self.unplanned[path] = reason


def blocks_of(sharded: nn.Module) -> dict[str, nn.Module]:
    """Paths of the sharded modules that hold no other sharded module, without the whole."""
    found = {path: each for path, each in sharded.named_modules() if path and isinstance(each, FSDPModule)}
    return {
        path: each
        for path, each in found.items()
        if not any(isinstance(inner, FSDPModule) for inner in each.modules() if inner is not each)
    }


def kinds_of(module: nn.Module, calls: BlockCalls) -> tuple[dict[str, Step], dict[str, str]]:
    """The steps of the blocks, equal ones once, by fingerprint; and the fingerprint of each block, by path.

    Parameters:
        module: The model before it is sharded; its parameters get the element types that they have in the step.
        calls: Calls of the blocks; blocks that cannot be recorded are refused there.
    """
    steps: dict[str, Step] = {}
    ran: list[str] = []

    def compiler(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        recorded: list[str] = []

        def record(step: Step) -> Passes:
            recorded.append(fingerprint(step.document))
            steps.setdefault(recorded[-1], step)
            return split(step.joint, order_as_recorded(step.joint))

        run = step_backend(record)(graph, examples)

        def noted(*arguments: Any) -> Any:
            returned = run(*arguments)
            ran.extend(recorded)
            return returned

        return noted

    compiled = compiled_by(compiler, len(calls.found))
    kinds: dict[str, str] = {}
    for path, call in list(calls.found.items()):
        try:
            block = module.get_submodule(path)
        except AttributeError:
            calls.refuse(path, "`shard` has put another module in its place")
            continue
        for name, parameter in block.named_parameters():
            parameter.data = parameter.data.to(call.dtypes[name])
        ran.clear()
        try:
            call.run(compiled(block))
        except NotCaptured as error:
            calls.refuse(path, str(error).partition("\n")[0])
            continue
        if ran:
            kinds[path] = ran[0]
        else:
            calls.refuse(path, NO_GRADIENT)
    return steps, kinds
