"""Parsing of Accept, Accept-Encoding, Prefer and If-None-Match (RFC 9110, RFC 7240)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


def accepted_coding(accept: str, offers: Sequence[str]) -> str | None:
    """The content coding of highest quality in Accept-Encoding, the first of equals; None: identity."""
    codings = dict(re.findall(r"([\w*-]+)\s*(?:;\s*q\s*=\s*([01](?:\.\d*)?))?", accept.lower()))
    quality = {offer: float(codings.get(offer, codings.get("*", "0")) or 1) for offer in offers}
    best = max(offers, key=quality.__getitem__)
    return best if quality[best] > 0 else None


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


@dataclass(frozen=True, slots=True)
class Preferences:
    """Preferences of a request (RFC 7240); the others are ignored."""

    wait: int | None = None  # seconds
    respond_async: bool = False
    minimal: bool = False  # return=minimal


def parse_prefer(headers: Sequence[str]) -> Preferences:
    """Preferences of all Prefer headers; of a repeated one, the first that is well-formed."""
    given: dict[str, str] = {}
    for preference in ",".join(headers).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        name, value = name.strip().lower(), value.strip().strip('"').lower()
        if name in ("wait", "return", "respond-async") and (name != "wait" or re.fullmatch(r"\d{1,9}", value)):
            given.setdefault(name, value)
    wait = int(given["wait"]) if "wait" in given else None
    return Preferences(wait, given.get("respond-async") == "", given.get("return") == "minimal")


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match has the ETag; weak comparison."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag in tags
