"""How a batch goes, on standard error: living bars on a terminal, else a line an item."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from app.render.text import format_bytes, format_percent
from app.sweep.items import SweepItem
from app.sweep.results import FAILED, Row

# Imports inside functions: rich is loaded when a bar is drawn.


class EtaEstimator:
    """When items end, guessed from those that have; before the first, from their search time."""

    def __init__(self, waiting: int, at_a_time: int, guess: float | None):
        self.waiting, self.parallelism = waiting, max(1, at_a_time)
        self._sum, self._count, self._guess = 0.0, 0, guess
        self._running: set[str] = set()

    def runs(self, key: str) -> None:
        """More may run at a time than was said, as at a service."""
        self._running.add(key)
        self.parallelism = max(self.parallelism, len(self._running))

    def ended(self, key: str, seconds: float | None) -> None:
        """`seconds` it took; None or 0: it says nothing of the others."""
        self.waiting -= 1
        self._running.discard(key)
        if seconds:
            self._sum, self._count = self._sum + seconds, self._count + 1

    @property
    def seconds_per_item(self) -> float | None:
        """Seconds of an item; None where nothing is known yet."""
        return self._sum / self._count if self._count else self._guess

    def left(self) -> float | None:
        """Seconds until all have ended."""
        return None if self.seconds_per_item is None else self.seconds_per_item * self.waiting / self.parallelism


def format_duration(seconds: float | None) -> str:
    """`1:05` or `2:03:40`; empty where it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_result(row: Row) -> str:
    """One result in words."""
    if row["peak_bytes"] is None or row["state"] == FAILED:
        return f"{row['state']}: {row['error']['code']}: {row['error']['detail'].splitlines()[0]}"
    word = {"succeeded": "done", "over_budget": "over budget"}.get(row["state"], row["state"])
    saved, overhead = format_percent(row["saved"]), format_percent(row["overhead"])
    return f"{word}: peak {format_bytes(row['peak_bytes'])} ({saved} saved), {overhead} more time"


class ProgressDisplay(Protocol):
    """Who is told how a batch goes; `told` is called by any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def told(self, key: str, progress: Mapping[str, Any]) -> None: ...

    def ended(self, item: SweepItem, row: Row) -> None: ...


def progress_display(items: Mapping[str, SweepItem], clock: EtaEstimator) -> ProgressDisplay:
    """Bars where standard error is a terminal, else lines."""
    living = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return BarDisplay(items, clock) if living else LineDisplay(items, clock)


class LineDisplay:
    """A line an item."""

    def __init__(self, items: Mapping[str, SweepItem], clock: EtaEstimator):
        self.clock, self.all = clock, len(items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def told(self, key: str, progress: Mapping[str, Any]) -> None:
        """Lines are of what has ended."""
        self.clock.runs(key)

    def ended(self, item: SweepItem, row: Row) -> None:
        self.clock.ended(item.key, row["seconds"])
        done = self.all - self.clock.waiting
        left = f", {format_duration(self.clock.left())} left" if self.clock.waiting else ""
        took = "" if row["seconds"] is None else f"; {row['seconds']:.1f} s"
        print(f"[{done}/{self.all}] {item}: {format_result(row)}{took}{left}", file=sys.stderr, flush=True)


class BarDisplay:
    """A bar for the batch, and one for each item that runs, with the time it may still take."""

    def __init__(self, items: Mapping[str, SweepItem], clock: EtaEstimator):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.items, self.clock = items, clock
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._running: dict[str, tuple[Any, float]] = {}
        self._lock = threading.Lock()
        self.all = self.progress.add_task("all", total=len(items), said=f"0 of {len(items)}")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def told(self, key: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self.clock.runs(key)
            if key not in self._running:
                bar = self.progress.add_task(str(self.items[key]), total=self.clock.seconds_per_item, said="")
                self._running[key] = bar, time.monotonic()
            bar, began = self._running[key]
            took = time.monotonic() - began
            left = None if self.clock.seconds_per_item is None else self.clock.seconds_per_item - took
            said = f"{progress['stage']} {format_duration(took)}" + (f", {format_duration(left)} left" if left else "")
            self.progress.update(bar, completed=took, said=said)

    def ended(self, item: SweepItem, row: Row) -> None:
        with self._lock:
            self.clock.ended(item.key, row["seconds"])
            if (running := self._running.pop(item.key, None)) is not None:
                self.progress.remove_task(running[0])
            left = format_duration(self.clock.left())
            done = len(self.items) - self.clock.waiting
            self.progress.update(self.all, completed=done, said=f"{done} of {len(self.items)}, {left} left")
            self.progress.console.print(f"{item}: {format_result(row)}", markup=False, highlight=False)
