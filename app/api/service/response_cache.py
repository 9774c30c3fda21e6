"""Answers that never change, in memory for a while: what is asked for again and again is not read again and again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

TTL_S = 60.0  # what was collected since is shown no longer than that


class ResponseCache:
    """Bytes under keys, the least used of them forgotten first. For one event loop."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic):
        self.most_bytes, self.bytes = most_bytes, 0
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()

    def get(self, key: Hashable) -> bytes | None:
        """The bytes, unless they were forgotten or are too old."""
        found = self._entries.get(key)
        if found is None:
            return None
        at, data = found
        if self._clock() - at > TTL_S:
            self._forget(key)
            return None
        self._entries.move_to_end(key)
        return data

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep the bytes; those that would take more than a quarter of all are not kept."""
        if len(data) > self.most_bytes // 4:
            return
        if key in self._entries:
            self._forget(key)
        self._entries[key] = self._clock(), data
        self.bytes += len(data)
        while self.bytes > self.most_bytes:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: Hashable) -> None:
        self.bytes -= len(self._entries.pop(key)[1])
