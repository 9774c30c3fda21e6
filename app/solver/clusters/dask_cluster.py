"""Dask: calls are tasks, messages lie in a `distributed.Queue` of the scheduler, a stop is a `distributed.Event`."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import distributed

from app.errors import BadUsage, ClusterLost, SolveFailed
from app.solver.clusters.interface import Mailbox, Message, Post
from app.solver.clusters.messages import lacks_remat

CONNECT_S = 10.0
CLOSE_S = 2.0
MAX_UNREAD = 1000  # lists of messages; a worker that cannot post gives its call up
ANSWER_S = 10.0
#: In the error of a scheduler that has no module of the call; the reason is in its own log only.
CANNOT_LOAD = "Error during deserialization of the task graph"
#: Dask gives both a level.
QUIET_LOGGERS = ("distributed", "distributed.client")


@dataclass(frozen=True, slots=True)
class DaskMailbox:
    """Mailbox in the scheduler."""

    name: str

    def open(self, call: str) -> Post:
        client = distributed.get_client(timeout=CONNECT_S)
        queue = distributed.Queue(self.name, client=client, maxsize=MAX_UNREAD)

        def post(messages: Sequence[Message]) -> bool:
            queue.put((call, list(messages)), timeout=ANSWER_S, callback_timeout=2 * ANSWER_S)
            return bool(_event(client, client.scheduler.event_is_set, f"{self.name}-{call}"))

        return post


def _event(client: Any, action: Callable[..., Any], name: str) -> Any:
    """Result of an action of a `distributed.Event`, whose own methods wait without end for a scheduler."""
    return client.sync(action, name=name, callback_timeout=ANSWER_S)


class DaskCluster:
    """A scheduler. Raises BadUsage if it does not answer."""

    def __init__(self, address: str):
        self.address = address
        for name in QUIET_LOGGERS:  # what happens is said by our own errors
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            self._client: Any = distributed.Client(address, timeout=CONNECT_S, set_as_default=False, name="remat")
            threads: dict[str, int] = self._client.nthreads()
        except (OSError, ValueError) as error:
            message = f"no Dask scheduler answers at {address}; check the address, and that the versions of Dask agree"
            raise BadUsage(message, code="cluster_unreachable") from error
        self.slots = sum(threads.values())
        self.description = f"Dask at {address}: workers {len(threads)}, threads {self.slots}"
        self._name = f"remat-{secrets.token_hex(8)}"
        self.mailbox: Mailbox = DaskMailbox(self._name)
        self._queue: Any = distributed.Queue(self._name, client=self._client, maxsize=MAX_UNREAD)

    def submit(self, work: Callable[..., Any], arguments: Sequence[Any], retries: int) -> Future[Any]:
        task, future = self._client.submit(work, *arguments, pure=False), Future[Any]()

        async def pass_on() -> None:
            try:
                result = await task
            except BaseException as error:
                if future.set_running_or_notify_cancel():
                    is_lost = task.status == "finished" and self._client.status == "running"
                    future.set_exception(_not_fetched(error) if is_lost else error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(result)

        def cancelled(ended: Future[Any]) -> None:
            if ended.cancelled():
                self._client.loop.add_callback(task.cancel)

        future.add_done_callback(cancelled)
        self._client.loop.add_callback(pass_on)  # Dask's own executor waits on for a result that cannot be fetched
        return future

    def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
        taken: Sequence[tuple[str, Sequence[Message]]] = self._queue.get(batch=True, callback_timeout=ANSWER_S)
        return taken

    def request_stop(self, call: str) -> None:
        _event(self._client, self._client.scheduler.event_set, f"{self._name}-{call}")

    def explain(self, error: BaseException) -> Exception:
        if isinstance(error, distributed.KilledWorker):
            message = "the cluster's workers died on it; reduce the model size, or give the workers more memory"
            return SolveFailed(message, code="child_died")
        if isinstance(error, ImportError) or CANNOT_LOAD in str(error):
            return lacks_remat(error)
        if isinstance(error, OSError):
            return ClusterLost(f"the cluster at {self.address} went away ({error})")
        return error if isinstance(error, Exception) else SolveFailed(repr(error))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._queue.close()
        with contextlib.suppress(Exception):
            self._client.close(timeout=CLOSE_S)


def _not_fetched(error: BaseException) -> SolveFailed:
    """The error of one call, whose worker or connection was lost after its end."""
    message = f"the result could not be fetched from the cluster's worker ({type(error).__name__}: {error}); retry"
    return SolveFailed(message, code="child_died")
