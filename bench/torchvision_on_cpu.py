"""Imports torchvision beside a PyTorch without CUDA, for which some indexes have only builds with CUDA.

Such a build cannot load its compiled ops, and at import registers shapes and gradients for them, which fails. The ops
concern boxes of detections; image classifiers do without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

_REGISTRATIONS = ("register_fake", "register_autograd", "register_kernel")


@contextlib.contextmanager
def _missing_ops_are_passed_over() -> Iterator[None]:
    """`torch.library` with registrations that do nothing for ops of torchvision that are not there."""

    def tolerant(register: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(register)
        def registered(name: Any, *args: Any, **fields: Any) -> Any:
            if not str(name).startswith("torchvision::"):
                return register(name, *args, **fields)
            try:
                made = register(name, *args, **fields)
            except RuntimeError:
                return lambda function: function
            return made if args else lambda function: _unless_missing(made, function)

        return registered

    with contextlib.ExitStack() as patches:
        for name in _REGISTRATIONS:
            patches.enter_context(patch.object(torch.library, name, tolerant(getattr(torch.library, name))))
        yield


def _unless_missing(register: Callable[[Any], Any], function: Any) -> Any:
    """The function, registered if its op is there."""
    with contextlib.suppress(RuntimeError):
        return register(function)
    return function


def import_torchvision() -> None:
    """Imports torchvision, whose compiled ops may be missing.

    Raises:
        ImportError: torchvision is not installed.

    Example:
        import_torchvision()
        import timm
    """
    with _missing_ops_are_passed_over():
        import torchvision  # noqa: F401 - the names that it leaves in torch.library are what is wanted
