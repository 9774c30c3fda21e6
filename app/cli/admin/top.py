"""`remat top`: monitor of a service's jobs in the terminal, until Ctrl-C."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from app.cli.console.output import reader_has_left
from app.client.asynchronous import service_url
from app.client.blocking import Client, ClientError, ServiceProblem, Unreachable
from app.errors import BadUsage
from app.render.text import format_bytes, format_percent, table

# Imports inside functions: loaded per command, so that `remat --help` takes under 0.3 s.

REFRESH_S = 2.0
TIMEOUT_S = 5.0
MAX_QUEUED, MAX_ENDED = 10, 10  # rows shown: the next queued, the last ended
HEAD = ("job", "kind", "state", "stage", "model", "peak", "overhead", "bound", "gap", "seconds")
RIGHT_ALIGNED = (5, 6, 7, 8, 9)


class JobsSnapshot(NamedTuple):
    """Jobs at one time: a headline, and one row per job."""

    title: str
    rows: list[tuple[str, ...]]

    def lines(self) -> list[str]:
        return [self.title, *(table(HEAD, self.rows, RIGHT_ALIGNED) if self.rows else [])]


class JobMonitor:
    """Polls the jobs of one service."""

    def __init__(self, client: Client, url: str):
        self.client, self.url = client, url

    def snapshot(self) -> JobsSnapshot:
        """Running, queued and last ended jobs. Raises ClientError."""
        running = list(self.client.operations("running"))
        waiting = list(self.client.operations("queued"))
        ended = itertools.islice((one for one in self.client.operations() if one["ended_at"]), MAX_ENDED)
        jobs = [*running, *waiting[::-1][:MAX_QUEUED], *ended]
        title = f"{self.url}: {len(running)} running, {len(waiting)} queued"
        return JobsSnapshot(title, [_row(job) for job in jobs])


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    progress = job["progress"] or {}
    best, bound = progress.get("incumbent") or {}, progress.get("bound") or {}
    return (
        job["id"],
        job["kind"],
        job["state"],
        job["stage"] or "",
        job["model"] or "",
        *(
            "" if value is None else form(value)
            for form, value in (
                (format_bytes, best.get("peak_bytes")),
                (format_percent, best.get("overhead")),
                (format_percent, bound.get("overhead")),
                (format_percent, progress.get("gap")),
            )
        ),
        f"{elapsed_seconds(job):.0f}",
    )


def elapsed_seconds(job: dict[str, Any]) -> float:
    """Seconds since a job started, or was queued."""
    begin = datetime.fromisoformat(job["started_at"] or job["created_at"])
    end = datetime.fromisoformat(job["ended_at"]) if job["ended_at"] else datetime.now(UTC)
    return max(0.0, (end - begin).total_seconds())


def run(server: str | None, once: bool) -> int:
    """Exit code: 0. Raises BadUsage if the service refuses, and with `once` if it is unreachable."""
    url = service_url(server)
    try:
        with Client(url, timeout=TIMEOUT_S, retries=0) as client:
            top = JobMonitor(client, url)
            if once:
                print("\n".join(_snapshot(top).lines()))
            elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
                _live(top)
            else:
                _plain(top)
    except Unreachable as error:
        raise BadUsage(_unreachable_text(url, error), code="unreachable") from error
    except KeyboardInterrupt:
        pass
    return 0


def _unreachable_text(url: str, error: Exception) -> str:
    return f"{url} does not answer ({error}); start it with `remat serve`, or name another URL with --server"


def _snapshot(top: JobMonitor) -> JobsSnapshot:
    """One snapshot. Raises Unreachable, and BadUsage if the service refuses."""
    try:
        return top.snapshot()
    except ServiceProblem as error:
        if error.status in (429, 502, 503, 504):
            raise Unreachable(str(error)) from error
        raise BadUsage(f"{top.url}: {error}", code=error.code or "refused") from error
    except ClientError as error:
        raise Unreachable(str(error)) from error


def _snapshot_or_remedy(top: JobMonitor) -> JobsSnapshot:
    """One snapshot; while the service is unreachable, one without rows whose title names the remedy."""
    try:
        return _snapshot(top)
    except Unreachable as error:
        return JobsSnapshot(f"{_unreachable_text(top.url, error)}; retrying every {REFRESH_S:g} s", [])


def _plain(top: JobMonitor) -> None:
    """Print the table whenever anything except the seconds has changed."""
    before: Sequence[Any] = ()
    while not reader_has_left.is_set():
        shown = _snapshot_or_remedy(top)
        now = (shown.title, [row[:-1] for row in shown.rows])
        if now != before:
            print("\n".join([datetime.now(UTC).strftime("%H:%M:%S UTC"), *shown.lines(), ""]), flush=True)
        before = now
        time.sleep(REFRESH_S)


def _live(top: JobMonitor) -> None:
    """Redraw one table in place."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn(shown: JobsSnapshot) -> Group:
        grid = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(HEAD):
            grid.add_column(name, justify="right" if i in RIGHT_ALIGNED else "left", no_wrap=True)
        for row in shown.rows:
            grid.add_row(*map(Text, row))
        return Group(Text(shown.title), *([grid] if shown.rows else []))

    console = Console()
    with Live(drawn(_snapshot_or_remedy(top)), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(drawn(_snapshot_or_remedy(top)), refresh=True)
