"""On the cluster's worker: run a function, send its progress in short intervals, and hear of a stop.

The cluster needs the same versions of remat and of the packages that plans depend on. It gets the model, the request
and the limits of the task: no settings, and no environment of the process that submits.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from app.catalogue import versions
from app.errors import ProblemDetails, SolveFailed, to_problem
from app.solver.clusters.interface import Mailbox, Message, Post
from app.solver.in_process import runner_for_this_process
from graph.cancellation import CancellationError

POST_S = 0.25  # between exchanges with the process that submitted the call
LOST_S = 60.0  # without an exchange: the submitting process has ended, so the call is stopped
MAX_PENDING = 200  # messages; older ones are dropped

Send = Callable[[Message], None]


class Courier:
    """Exchanges messages of one call in a thread: sends what is pending, and sets `stop` once that is requested.

    Each message list begins with {"run": an identity of this run of the call}, also where nothing is pending.
    """

    def __init__(self, post: Post, stop: threading.Event):
        self._post, self._stop, self._run_id = post, stop, secrets.token_hex(8)
        self._pending: deque[Message] = deque(maxlen=MAX_PENDING)
        self._ended = threading.Event()
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(POST_S)  # one that waits for the cluster delays no result

    def send(self, message: Message) -> None:
        """Send the message soon."""
        self._pending.append(message)

    def rest(self) -> list[Message]:
        """Messages that were not sent, in order."""
        return [self._pending.popleft() for _ in range(len(self._pending))]

    def _run(self) -> None:
        while True:
            messages = self.rest()
            try:
                if self._post([{"run": self._run_id}, *messages]):
                    self._stop.set()
                self._answered = time.monotonic()
            except Exception:  # of Dask, of Ray or of a socket: the cluster may answer again
                self._pending.extendleft(reversed(messages))
                if time.monotonic() > self._answered + LOST_S:
                    self._stop.set()
                    return
            if self._ended.wait(POST_S):
                return


def call(
    work: Callable[..., Any], arguments: Sequence[Any], name: str, mailbox: Mailbox, expected: Mapping[str, Any]
) -> dict[str, Any]:
    """{"value": result of `work(*arguments, send, stop)`, "messages": those not sent}.

    {"problem"} where `expected` versions are not there.
    """
    if versions() != expected:
        return {"problem": _version_problem(expected)}
    stop = threading.Event()
    with Courier(mailbox.open(name), stop) as courier:
        value = work(*arguments, courier.send, stop)
    return {"value": value, "messages": courier.rest()}


def _version_problem(expected: Mapping[str, Any]) -> dict[str, Any]:
    found = versions()
    names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    differing = ", ".join(f"{name} {found.get(name)}, not {expected.get(name)}" for name in names)
    message = f"the cluster's worker on {socket.gethostname()} has {differing}; install the same versions there"
    return to_problem(SolveFailed(message, code="version_mismatch"))


def run_task(request: Mapping[str, Any], send: Send, stop: threading.Event) -> bytes:
    """The end of one task of `child_tasks` as msgpack; see `app.solver.clusters.runner` for both.

    In a child process with limits; a daemon process may have none, and runs the task itself.
    """
    runner = runner_for_this_process(request["memory_bytes"], request["kill_seconds"])
    payload = msgspec.msgpack.decode(request["payload"])
    end: dict[str, Any]
    try:
        done = runner.run(
            request["task"], payload, request["seconds"], lambda progress: send({"progress": progress}), stop
        )
        end = {"result": done.result, "hit_deadline": done.hit_deadline}
    except CancellationError:
        end = {"cancelled": True}
    except SolveFailed as error:
        end = {"failed": {"code": error.code, "message": str(error)}}
    except ProblemDetails as error:
        end = {"problem": error.body}
    except Exception as error:
        end = {"problem": to_problem(error)}
    return msgspec.msgpack.encode(end)
