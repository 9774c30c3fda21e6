"""Progress of a batch on standard error: progress bars on a terminal, else one line per item."""

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

# Imports inside functions: rich is loaded for progress bars only.


class EtaEstimator:
    """Remaining time, estimated from finished items; before the first, from the search time limit.

    `guess`: expected seconds per item, None: unknown.
    """

    def __init__(self, waiting: int, parallelism: int, guess: float | None):
        self.waiting, self.parallelism = waiting, max(1, parallelism)
        self._sum, self._count, self._guess = 0.0, 0, guess
        self._running: set[str] = set()

    def started(self, key: str) -> None:
        """Record a running item; raises the parallelism if a service runs more at a time than expected."""
        self._running.add(key)
        self.parallelism = max(self.parallelism, len(self._running))

    def ended(self, key: str, seconds: float | None) -> None:
        """Record a finished item; `seconds` None or 0 (a cached result) is not used for the estimate."""
        self.waiting -= 1
        self._running.discard(key)
        if seconds:
            self._sum, self._count = self._sum + seconds, self._count + 1

    @property
    def seconds_per_item(self) -> float | None:
        """Expected seconds per item; None: unknown."""
        return self._sum / self._count if self._count else self._guess

    def left(self) -> float | None:
        """Expected seconds until all items have ended; None: unknown."""
        return None if self.seconds_per_item is None else self.seconds_per_item * self.waiting / self.parallelism


def format_duration(seconds: float | None) -> str:
    """`1:05` or `2:03:40`; empty for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_result(row: Row) -> str:
    """One result as text."""
    if row["peak_bytes"] is None or row["state"] == FAILED:
        return f"{row['state']}: {row['error']['code']}: {row['error']['detail'].splitlines()[0]}"
    state = {"succeeded": "done", "over_budget": "over budget"}.get(row["state"], row["state"])
    saved, overhead = format_percent(row["saved"]), format_percent(row["overhead"])
    return f"{state}: peak {format_bytes(row['peak_bytes'])} ({saved} saved), {overhead} slower"


class ProgressDisplay(Protocol):
    """Receiver of a batch's progress; `on_progress` is called from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_progress(self, key: str, progress: Mapping[str, Any]) -> None: ...

    def ended(self, item: SweepItem, row: Row) -> None: ...


def progress_display(items: Mapping[str, SweepItem], clock: EtaEstimator) -> ProgressDisplay:
    """Progress bars if standard error is a terminal, else lines."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return BarDisplay(items, clock) if is_terminal else LineDisplay(items, clock)


class LineDisplay:
    """One line per finished item."""

    def __init__(self, items: Mapping[str, SweepItem], clock: EtaEstimator):
        self.clock, self.all = clock, len(items)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def on_progress(self, key: str, progress: Mapping[str, Any]) -> None:
        self.clock.started(key)

    def ended(self, item: SweepItem, row: Row) -> None:
        self.clock.ended(item.key, row["seconds"])
        done = self.all - self.clock.waiting
        left = f", {format_duration(self.clock.left())} left" if self.clock.waiting else ""
        took = "" if row["seconds"] is None else f"; {row['seconds']:.1f} s"
        print(f"[{done}/{self.all}] {item}: {format_result(row)}{took}{left}", file=sys.stderr, flush=True)


class BarDisplay:
    """One bar for the batch and one per running item, with the expected remaining time."""

    def __init__(self, items: Mapping[str, SweepItem], clock: EtaEstimator):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.items, self.clock = items, clock
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._running: dict[str, tuple[Any, float]] = {}
        self._lock = threading.Lock()
        self.all = self.progress.add_task("all", total=len(items), text=f"0 of {len(items)}")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def on_progress(self, key: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self.clock.started(key)
            if key not in self._running:
                bar = self.progress.add_task(str(self.items[key]), total=self.clock.seconds_per_item, text="")
                self._running[key] = bar, time.monotonic()
            bar, began = self._running[key]
            took = time.monotonic() - began
            left = None if self.clock.seconds_per_item is None else self.clock.seconds_per_item - took
            text = f"{progress['stage']} {format_duration(took)}" + (f", {format_duration(left)} left" if left else "")
            self.progress.update(bar, completed=took, text=text)

    def ended(self, item: SweepItem, row: Row) -> None:
        with self._lock:
            self.clock.ended(item.key, row["seconds"])
            if (running := self._running.pop(item.key, None)) is not None:
                self.progress.remove_task(running[0])
            left = format_duration(self.clock.left())
            done = len(self.items) - self.clock.waiting
            self.progress.update(self.all, completed=done, text=f"{done} of {len(self.items)}, {left} left")
            self.progress.console.print(f"{item}: {format_result(row)}", markup=False, highlight=False)
