"""Passes that take long ask as they go whether anybody still waits: `check`, or a loop over `until_stopped(nodes)`.

    with heeding(cancel):                   # an event that another thread sets
        graph = differentiate(graph, ...)   # raises Stopped some nodes after it is set

Who waits is none of a pass's business, so none has a parameter for it; a thread heeds what it was told to, or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

#: Calls of `check` that a set event lets pass in one stage: a small graph still comes to its first plan.
SPARE = 1000

T = TypeVar("T")


class Stopped(Exception):
    """Told to stop before there was anything to keep."""

    def __init__(self, said: str = "stopped before there was anything to keep"):
        super().__init__(said)


@dataclass(slots=True)
class _Heeded:
    event: threading.Event
    spare: int


_HEEDED: ContextVar[_Heeded | None] = ContextVar("heeded", default=None)


@contextmanager
def heeding(event: threading.Event | None, spare: int = 0) -> Iterator[None]:
    """Within, `check` raises Stopped once the event is set, but for `spare` calls; None: what was heeded before."""
    before = _HEEDED.set(_HEEDED.get() if event is None else _Heeded(event, spare))
    try:
        yield
    finally:
        _HEEDED.reset(before)


def check() -> None:
    """Raise Stopped when nobody waits any longer. Costs a tenth of a microsecond."""
    heeded = _HEEDED.get()
    if heeded is not None and heeded.event.is_set():
        heeded.spare -= 1
        if heeded.spare < 0:
            raise Stopped


def until_stopped(items: Iterable[T]) -> Iterator[T]:
    """The items, with a `check` before each."""
    for item in items:
        check()
        yield item


def unless_stopped(event: threading.Event | None, act: Callable[[T], T], thing: T) -> T:
    """What `act` makes of a thing that is good as it is: the thing itself where the event is set before that ends."""
    try:
        with heeding(event):
            check()
            return act(thing)
    except Stopped:
        return thing
