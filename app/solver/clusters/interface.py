"""What a cluster offers: it runs functions, carries their messages here, and a stop request to them.

this process                            the cluster's worker
submit(work, arguments) ──────────────▶ work runs
take() ◀──────────────────── mailbox ── post(messages)
request_stop(call) ───────── mailbox ─▶ `post` returns True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

Message = Mapping[str, Any]
#: Sends messages of one call; returns whether the call is to stop. Blocks; raises if the cluster does not answer.
Post = Callable[[Sequence[Message]], bool]


class Mailbox(Protocol):
    """Carries the messages of all calls of one connection. Picklable."""

    def open(self, call: str) -> Post:
        """Sender of the messages of `call`; runs on the cluster's worker, in the thread of the call."""
        ...


class Cluster(Protocol):
    """A connection to a cluster; thread-safe."""

    address: str
    description: str  # kind, address and size in words
    slots: int  # functions that run at a time on the workers that were there when connected
    mailbox: Mailbox

    def submit(self, work: Callable[..., Any], arguments: Sequence[Any], retries: int) -> Future[Any]:
        """Future of `work(*arguments)`; `cancel` ends it on the cluster. It runs once more for each of `retries`."""
        ...

    def take(self) -> Sequence[tuple[str, Sequence[Message]]]:
        """New messages: (call, its messages). Raises if the cluster does not answer."""
        ...

    def request_stop(self, call: str) -> None:
        """Make `post` of the call return True. Raises if the cluster does not answer."""
        ...

    def explain(self, error: BaseException) -> Exception:
        """The error of a future of `submit` as one of `app.errors`; others are returned as they are."""
        ...

    def close(self) -> None:
        """Disconnect; the cluster goes on."""
        ...
