"""Parsing of Accept, Accept-Encoding, Prefer and If-None-Match (RFC 9110, RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.errors import NotAcceptable


def negotiate(accept: str, offers: Sequence[str]) -> str:
    """The offer of highest quality; the first of equals. Raises NotAcceptable."""
    if not accept.strip():
        return offers[0]
    ranges = [parsed for part in accept.split(",") if (parsed := _range(part)) is not None]
    rated = [(_quality(offer, ranges), -place, offer) for place, offer in enumerate(offers)]
    best = max(rated)
    if best[0] <= 0:
        raise NotAcceptable(f"accept {accept[:200]!r} matches none of {', '.join(offers)}; request one of them")
    return best[2]


def accepts_gzip(accept: str) -> bool:
    """Whether Accept-Encoding allows gzip."""
    codings = dict(re.findall(r"([\w*-]+)\s*(?:;\s*q\s*=\s*([01](?:\.\d*)?))?", accept.lower()))
    return float(codings.get("gzip", codings.get("*", "0")) or 1) > 0


def _range(part: str) -> tuple[str, float] | None:
    name, *parameters = (word.strip().lower() for word in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        if match := re.fullmatch(r"q\s*=\s*([01](?:\.\d{0,3})?)", parameter):
            quality = min(1.0, float(match[1]))
    return (name, quality) if re.fullmatch(r"[^\s/]+/[^\s/]+|\*", name) else None


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Quality of the most specific media range that matches the offer."""
    kind = offer.partition("/")[0]
    for pattern in (offer, f"{kind}/*", "*/*", "*"):
        qualities = [quality for name, quality in ranges if name == pattern]
        if qualities:
            return qualities[0]
    return 0.0


def preferred_wait(prefer: Sequence[str]) -> int | None:
    """Seconds of `wait=N` in Prefer headers; None if absent or malformed."""
    for header in prefer:
        for preference in header.split(","):
            if match := re.fullmatch(r'\s*wait\s*=\s*"?(\d{1,9})"?\s*(;.*)?', preference, re.IGNORECASE):
                return int(match[1])
    return None


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match has the ETag; weak comparison."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags
