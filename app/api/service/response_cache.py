"""LRU cache of immutable responses, bounded in bytes; entries expire after TTL_S."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

TTL_S = 60.0  # bounds how long a garbage-collected resource is served


class ResponseCache:
    """Least recently used cache of bytes. For one event loop."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic):
        self.most_bytes, self.bytes = most_bytes, 0
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, bytes]] = OrderedDict()

    def get(self, key: Hashable) -> bytes | None:
        """The cached bytes; None if absent or expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        at, data = entry
        if self._clock() - at > TTL_S:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return data

    def put(self, key: Hashable, data: bytes) -> None:
        """Cache the bytes, unless they exceed a quarter of the capacity."""
        if len(data) > self.most_bytes // 4:
            return
        if key in self._entries:
            self._remove(key)
        self._entries[key] = self._clock(), data
        self.bytes += len(data)
        while self.bytes > self.most_bytes:
            self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything, after a deletion."""
        self._entries.clear()
        self.bytes = 0

    def _remove(self, key: Hashable) -> None:
        self.bytes -= len(self._entries.pop(key)[1])
