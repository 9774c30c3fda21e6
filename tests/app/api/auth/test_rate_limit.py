"""A key sends so many requests a second, and some at once after a pause."""

from __future__ import annotations

from app.api.auth.rate_limit import BURST_S, RateLimiter
from tests.app.api.auth.conftest import Clock, Gated


def test_a_bucket_empties_and_fills_with_time() -> None:
    clock = Clock()
    limiter = RateLimiter(10, clock)
    assert [limiter.take("a")[0] for _ in range(int(10 * BURST_S) + 2)] == [True] * int(10 * BURST_S) + [False] * 2
    assert limiter.take("b")[0]  # another key
    clock.after += 0.2
    assert [limiter.take("a")[0] for _ in range(3)] == [True, True, False]
    clock.after += 60
    assert limiter.take("a")[1][1] == (b"ratelimit", b'"key";r=49;t=0')


def test_no_rate_is_no_limit() -> None:
    assert RateLimiter(0).take("a") == (True, [])


def test_answers_tell_the_rate_and_one_past_it_is_refused(gated: Gated) -> None:
    layer = gated.client.app.middleware_stack  # type: ignore[attr-defined]
    while not hasattr(layer, "_limiter"):
        layer = layer.app
    key, before = gated.key("fast"), layer._limiter
    layer._limiter = RateLimiter(1 / BURST_S, Clock())  # one request, and time stands still
    try:
        first, second = (gated.client.get("/v1/operations", headers=key) for _ in range(2))
    finally:
        layer._limiter = before
    assert first.status_code == 200 and first.headers["ratelimit"] == '"key";r=0;t=5'
    assert (second.status_code, second.json()["limit"]["name"]) == (429, "REMAT_REQUESTS_PER_SECOND")
    assert second.headers["retry-after"] == "5"
