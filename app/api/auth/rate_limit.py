"""Rate of the requests of each key: a token bucket per key (generic cell rate algorithm, ITU-T I.371)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

BURST_S = 5.0  # a key that paused may send the requests of this time at once
MAX_KEYS = 10_000  # buckets; the full ones are dropped above


class RateLimiter:
    """`per_second` requests of each key, with bursts; 0: unlimited. For one event loop."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic):
        self.per_second, self._clock = per_second, clock
        self._full_at: dict[str, float] = {}  # key id -> time at which its bucket is full again

    def take(self, key_id: str) -> tuple[bool, list[tuple[bytes, bytes]]]:
        """(whether the request may proceed, RateLimit headers of draft-ietf-httpapi-ratelimit-headers)."""
        if not self.per_second:
            return True, []
        now, cost = self._clock(), 1 / self.per_second
        burst = max(BURST_S, cost)
        if len(self._full_at) > MAX_KEYS:
            self._full_at = {id: at for id, at in self._full_at.items() if at > now}
        full_at = max(now, self._full_at.get(key_id, now)) + cost
        allowed = full_at - now <= burst + cost / 2
        if allowed:
            self._full_at[key_id] = full_at
        left = max(0, math.floor((burst - (self._full_at[key_id] - now)) * self.per_second + 0.5))
        wait = 0 if left else math.ceil(cost)
        policy = f'"key";q={math.floor(burst * self.per_second + 0.5)};w={burst:g}'
        headers = [(b"ratelimit-policy", policy.encode()), (b"ratelimit", f'"key";r={left};t={wait}'.encode())]
        return allowed, headers if allowed else [*headers, (b"retry-after", b"%d" % math.ceil(cost))]
