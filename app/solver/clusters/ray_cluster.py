"""Ray: calls are tasks, messages and stop requests lie in an actor. With Ray's public API only."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions

from app.errors import BadUsage, ClusterLost, SolveFailed
from app.solver.clusters.interface import Mailbox, Message, Post
from app.solver.clusters.messages import lacks_remat

ANSWER_S = 10.0
CONNECT_ATTEMPTS = 3
LOST_WORKER = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)
LOST_CLUSTER = (ConnectionError, ray.exceptions.LocalRayletDiedError, ray.exceptions.RaySystemError)


class Letters:
    """The actor: messages by call, and the calls to stop. A restart loses what was not taken."""

    def __init__(self) -> None:
        self._messages: dict[str, list[Message]] = {}
        self._stopped: set[str] = set()

    def post(self, call: str, messages: Sequence[Message]) -> bool:
        """Keep the messages; return whether the call is to stop."""
        self._messages.setdefault(call, []).extend(messages)
        return call in self._stopped

    def take(self) -> list[tuple[str, list[Message]]]:
        """All messages since the last time."""
        taken, self._messages = self._messages, {}
        return list(taken.items())

    def stop(self, call: str) -> None:
        """Stop the call at its next post."""
        self._stopped.add(call)


@dataclass(frozen=True, slots=True)
class RayMailbox:
    """Mailbox in an actor."""

    letters: Any

    def open(self, call: str) -> Post:
        def post(messages: Sequence[Message]) -> bool:
            return bool(ray.get(self.letters.post.remote(call, list(messages)), timeout=ANSWER_S))

        return post


def _silence_client() -> None:
    """Keep Ray's warnings and the tracebacks of its threads from standard error: our own errors say what happens."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    logging.getLogger("ray.util.client.logsclient").disabled = True  # Ray sets its level again with each connection
    if not isinstance(threading.excepthook, _HookWithoutRay):
        threading.excepthook = _HookWithoutRay(threading.excepthook)


@dataclass(frozen=True, slots=True)
class _HookWithoutRay:
    """`threading.excepthook` that leaves out threads of Ray, which end with an error where the cluster went away."""

    before: Callable[[threading.ExceptHookArgs], Any]

    def __call__(self, ended: threading.ExceptHookArgs) -> None:
        modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(ended.exc_traceback))
        if not any(module.startswith("ray.") for module in modules):
            self.before(ended)


def _initialized(address: str) -> Any:
    """What `ray.init` returns. A busy head may fail to start the process that serves a client: that is retried."""
    for _ in range(CONNECT_ATTEMPTS - 1):
        with contextlib.suppress(ConnectionAbortedError):
            return _init(address)
    return _init(address)


def _init(address: str) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return ray.init(address, log_to_driver=False, configure_logging=False)


class RayCluster:
    """A connection of this process, which may have one. `address`: ray://HOST:PORT, or auto: one that runs here."""

    def __init__(self, address: str):
        _silence_client()
        try:
            self._context: Any = _initialized(address)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "here (--cluster auto); start one with `ray start --head`" if address == "auto" else f"at {address}"
            reason = (str(error).splitlines() or [type(error).__name__])[-1]  # Ray's own traceback comes before
            raise BadUsage(f"no Ray cluster answers {where} ({reason})", code="cluster_unreachable") from error
        self.address = self._context.address_info["address"] if address == "auto" else address
        self.slots = int(ray.cluster_resources().get("CPU", 0))
        nodes = sum(node["Alive"] for node in ray.nodes())
        self.description = f"Ray at {self.address}: nodes {nodes}, CPUs {self.slots}"
        self._remote: dict[tuple[Callable[..., Any], int], Any] = {}
        try:
            self._letters: Any = ray.remote(num_cpus=0, max_restarts=-1)(Letters).remote()
        except ImportError as error:  # of the head, which loads the class
            self._context.disconnect()
            raise BadUsage(str(lacks_remat(error)), code="version_mismatch") from error
        self.mailbox: Mailbox = RayMailbox(self._letters)

    def submit(self, work: Callable[..., Any], arguments: Sequence[Any], retries: int) -> Future[Any]:
        future: Future[Any] = Future()
        if (work, retries) not in self._remote:
            self._remote[work, retries] = ray.remote(num_cpus=1, max_retries=retries)(work)
        reference = self._remote[work, retries].remote(*arguments)

        def ended(inner: Future[Any]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            error = inner.exception()
            if error is None:
                future.set_result(inner.result())
            else:
                future.set_exception(error)

        def cancelled(outer: Future[Any]) -> None:
            if outer.cancelled():
                with contextlib.suppress(Exception):  # it has ended, or the cluster has
                    ray.cancel(reference, force=True)

        future.add_done_callback(cancelled)
        reference.future().add_done_callback(ended)
        return future

    def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
        taken: Sequence[tuple[str, Sequence[Message]]] = ray.get(self._letters.take.remote(), timeout=ANSWER_S)
        return taken

    def request_stop(self, call: str) -> None:
        ray.get(self._letters.stop.remote(call), timeout=ANSWER_S)

    def explain(self, error: BaseException) -> Exception:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        if isinstance(cause, LOST_WORKER):
            message = "the cluster's worker died; retry, reduce the model size, or give the workers more memory"
            return SolveFailed(message, code="child_died")
        if isinstance(cause, ImportError):
            return lacks_remat(cause)
        if isinstance(cause, LOST_CLUSTER):
            return ClusterLost(f"the cluster at {self.address} went away ({str(cause).splitlines()[0]})")
        return cause if isinstance(cause, Exception) else SolveFailed(repr(cause))

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            ray.shutdown()
