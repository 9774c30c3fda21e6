"""One op of an eager step: its tensors, effect and traffic, and what PyTorch's dispatcher does not say of it.

    DTensor, AsyncCollectiveTensor      ──▶  the plain tensors that they wrap
    collective of `torch.distributed`   ──▶  the arguments that it writes to, which its schema does not mark
    `storage.resize_(n)`                ──▶  an event: FSDP2 allocates and frees gathered parameters this way
    random op of a module with a plan   ──▶  the op inside of what saves and restores the state of the generator

Needs PyTorch and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from remat.torch.step.aot import run_and_save_rng_state, run_with_rng_state
from remat.torch.step.document import COLLECTIVES, stored_bytes
from remat.torch.step.errors import NotCaptured
from remat.torch.step.joint import is_random

#: Arguments that the ops of a namespace write to although their schema does not say so.
WRITTEN = {
    "c10d": ("output", "output_tensor", "output_tensors", "output_lists", "outputs"),
    "fsdp": ("all_gather_output",),
}
READ_ONLY = ("c10d::send", "c10d::barrier", "c10d::monitored_barrier_", "c10d::check_for_nan")


@dataclass(frozen=True, eq=False)
class Call:
    """One dispatched op, with the fields of an `fx.Node` that flops, name and randomness are read from."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)


def plain_tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree of arguments; of a wrapper, those that it wraps on this rank."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found += _unwrapped(leaf)
    return found


def _unwrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return plain_tensors([getattr(tensor, name) for name in names])


def is_wrapper(kind: type) -> bool:
    """Whether tensors of a type compute by ops on the tensors that they wrap."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def replayed(func: Any, args: tuple[Any, ...], result: Any) -> tuple[bool, Any, tuple[Any, ...], Any]:
    """(whether a plan saves or restores the state of the generator around an op, the op, its arguments, its result).

    Raises NotCaptured for other higher-order operators.
    """
    if func is run_and_save_rng_state:
        return True, args[0], args[1:], result[1]
    if func is run_with_rng_state:
        return True, args[1], args[2:], result
    if not hasattr(func, "_schema"):
        raise NotCaptured(f"{func}: a higher-order operator, whose ops cannot be recorded one by one")
    return False, func, args, result


def written_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Tensors among the arguments of a call that it writes to."""
    schema = func._schema
    unmarked = WRITTEN.get(func.namespace, ()) if schema.name not in READ_ONLY else None
    names = {argument.name for argument in schema.arguments}
    if func.namespace == "c10d" and unmarked is not None and not names & set(unmarked):
        unmarked = ("tensors",)  # in place: all-reduce, broadcast, reduce, receive
    found: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if marked or argument.name in (unmarked or ()):
            found += plain_tensors(args[position] if position < len(args) else kwargs.get(argument.name))
    return found


@contextmanager
def resizes_seen(note: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Calls `note` with a storage and its new number of bytes before Python code resizes it."""
    resize = torch.UntypedStorage.resize_

    def noted(storage: torch.UntypedStorage, size: int) -> Any:
        note(storage, size)
        return resize(storage, size)

    torch.UntypedStorage.resize_ = noted
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_  # the method of its base class


def number_of(tensor: torch.Tensor) -> int:
    """The number of a tensor's storage, which is not given to another one while it has a weak reference."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        raise NotCaptured(
            f"a tensor without a storage ({tensor.layout}), such as a sparse one; use dense ones"
        ) from None


def effect_of(call: Call, name: str, has_outputs: bool) -> dict[str, Any]:
    """Fields about repeats. Only functional ops of PyTorch itself are repeated, random ones with their numbers."""
    if call.target.namespace in COLLECTIVES:
        return {"effect": "collective", "recompute": "never"}
    if not has_outputs:
        return {"effect": "once"}
    if is_random(call):
        return {"effect": "random", "stream": name}
    if call.target.namespace != "aten" or "empty" in call.target._schema.name:  # its writer is unknown
        return {"recompute": "never"}
    return {"effect": "unstable"} if torch.Tag.nondeterministic_bitwise in call.target.tags else {}


def traffic_of(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes moved by an op that reads and writes these tensors."""
    return sum(stored_bytes(tensor) for tensor in {number_of(tensor): tensor for tensor in tensors}.values())
