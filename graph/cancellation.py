"""Cancellation of long passes: `check_cancelled` at intervals, or a loop over `cancellable(nodes)`.

    with cancellation_scope(cancel):        # a threading.Event that another thread sets
        graph = differentiate(graph, ...)   # raises CancellationError some nodes after it is set

The scope is a context variable, so that passes need no parameter for it. Without a scope nothing is cancelled.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

#: Calls of `check_cancelled` per stage that still pass after the event is set: a small graph still gets a first plan.
GRACE_CHECKS = 1000

T = TypeVar("T")


class Deadline(threading.Event):
    """Event that is set once `cancel` is set, or after `until` (seconds of the monotonic clock)."""

    def __init__(self, cancel: threading.Event, until: float):
        super().__init__()
        self._cancel, self._until = cancel, until

    def is_set(self) -> bool:
        return self._cancel.is_set() or time.monotonic() >= self._until

    def is_cancelled(self) -> bool:
        """Whether `cancel` is set, whatever the time."""
        return self._cancel.is_set()

    def seconds_left(self) -> float:
        """Seconds before `until`; not negative."""
        return max(0.0, self._until - time.monotonic())


class CancellationError(Exception):
    """Cancelled before there was a result to keep."""

    def __init__(self, message: str = "stopped before there was anything to keep"):
        super().__init__(message)


@dataclass(slots=True)
class _CancelScope:
    event: threading.Event
    spare: int


_CANCEL_SCOPE: ContextVar[_CancelScope | None] = ContextVar("cancel_scope", default=None)


@contextmanager
def cancellation_scope(event: threading.Event | None, spare: int = 0) -> Iterator[None]:
    """Scope in which `check_cancelled` raises once `event` is set, after `spare` more calls; None: the outer scope."""
    before = _CANCEL_SCOPE.set(_CANCEL_SCOPE.get() if event is None else _CancelScope(event, spare))
    try:
        yield
    finally:
        _CANCEL_SCOPE.reset(before)


def check_cancelled() -> None:
    """Raise CancellationError if the event of the current scope is set. Costs 0.1 µs."""
    scope = _CANCEL_SCOPE.get()
    if scope is not None and scope.event.is_set():
        scope.spare -= 1
        if scope.spare < 0:
            raise CancellationError


def is_cancelled() -> bool:
    """Whether the event of the current scope is set, which `check_cancelled` may still let pass."""
    scope = _CANCEL_SCOPE.get()
    return scope is not None and scope.event.is_set()


def check_cancelled_by_caller() -> None:
    """As `check_cancelled`, but a deadline that has passed raises nothing: for work whose time comes after it."""
    scope = _CANCEL_SCOPE.get()
    if scope is not None and isinstance(scope.event, Deadline) and not scope.event.is_cancelled():
        return
    check_cancelled()


def seconds_left() -> float:
    """Seconds before the deadline of the current scope; infinite without one."""
    scope = _CANCEL_SCOPE.get()
    return scope.event.seconds_left() if scope is not None and isinstance(scope.event, Deadline) else math.inf


def cancellable(items: Iterable[T]) -> Iterator[T]:
    """The items, with a `check_cancelled` before each, in the scope of the first."""
    scope = _CANCEL_SCOPE.get()
    for item in items:
        if scope is not None and scope.event.is_set():
            check_cancelled()
        yield item


def unless_cancelled(event: threading.Event | None, act: Callable[[T], T], thing: T) -> T:
    """`act(thing)`, or `thing` itself if `event` is set before `act` returns. `act` must be an optional improvement."""
    try:
        with cancellation_scope(event):
            check_cancelled()
            return act(thing)
    except CancellationError:
        return thing
