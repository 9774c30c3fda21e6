"""A cluster of Dask or Ray as an executor: running items report progress, and end with their best plan once stopped."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

from app.solver.clusters.calls import ClusterCalls
from app.sweep.tasks import ItemTask, ProgressCallback, search_deadline

RETRIES = 2  # further workers that may die on an item


class ClusterExecutor(futures.Executor):
    """Executor of `work(task, send, stop)` on a cluster; once `stop` is set, so is that of each running call."""

    def __init__(self, calls: ClusterCalls, on_progress: ProgressCallback | None, stop: threading.Event):
        self._calls, self._on_progress, self._stop = calls, on_progress, stop
        self._unfinished: set[futures.Future[Any]] = set()

    def submit(self, work: Callable[..., Any], /, task: ItemTask) -> futures.Future[Any]:  # type: ignore[override]
        """Future of `work(task, send, stop)`."""
        on_message = functools.partial(self._received, task["key"])
        limit = search_deadline(task) + task["kill_seconds"]
        future = self._calls.start(work, [task], on_message, self._stop, RETRIES, limit).future
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect, once the running items have ended."""
        unfinished = set(self._unfinished)
        if cancel_futures:
            for future in unfinished:
                future.cancel()
        if wait:
            futures.wait(unfinished)
        self._calls.close()

    def _received(self, key: str, progress: Mapping[str, Any]) -> None:
        if self._on_progress is not None:
            self._on_progress(key, progress)
