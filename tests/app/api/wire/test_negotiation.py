"""Accept, Prefer and If-None-Match are read as the RFCs say."""

from __future__ import annotations

import pytest

from app.api.wire.negotiation import Preferences, accepted_coding, etag_matches, negotiate, parse_prefer
from app.errors import NotAcceptable

OFFERS = ["application/json", "application/onnx", "text/plain"]


@pytest.mark.parametrize(
    ("accept", "best"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/onnx", "application/onnx"),
        ("application/*;q=0.5, text/plain", "text/plain"),
        ("application/json;q=0.2, application/onnx;q=0.9", "application/onnx"),
        ("application/*, application/json;q=0", "application/onnx"),
        ("text/html, */*;q=0.1", "application/json"),
        ("nonsense, application/onnx", "application/onnx"),
    ],
)
def test_the_most_specific_range_rates_an_offer(accept: str, best: str) -> None:
    assert negotiate(accept, OFFERS) == best


@pytest.mark.parametrize("accept", ["text/html", "*/*;q=0", "nonsense"])
def test_nothing_acceptable_names_what_there_is(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/onnx"):
        negotiate(accept, OFFERS)


@pytest.mark.parametrize(
    ("prefer", "understood"),
    [
        ([], Preferences()),
        (["wait=5"], Preferences(5)),
        (["respond-async, Wait = 10"], Preferences(10, respond_async=True)),
        (["wait=soon; a=b, wait=7"], Preferences(7)),
        (["a", "wait=0", 'return="minimal"'], Preferences(0, minimal=True)),
        (["return=representation"], Preferences()),
    ],
)
def test_preferences_that_are_not_understood_are_passed_over(prefer: list[str], understood: Preferences) -> None:
    assert parse_prefer(prefer) == understood


def test_weak_and_strong_tags_count_alike() -> None:
    assert etag_matches('W/"a", "b"', '"a"')
    assert etag_matches("*", '"a"')
    assert not etag_matches('"ab"', '"a"')
    assert not etag_matches("", '"a"')


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("GZIP; q=0", False),
        ("br", False),
        ("*", True),
        ("*;q=0, gzip", True),
        ("gzip;q=0.000, *", False),
    ],
)
def test_gzip_is_sent_to_clients_that_accept_it(accept: str, takes: bool) -> None:
    assert (accepted_coding(accept, ["gzip"]) == "gzip") is takes


@pytest.mark.parametrize(("accept", "coding"), [("gzip, zstd", "zstd"), ("zstd;q=0.4, gzip", "gzip"), ("br", None)])
def test_the_content_coding_of_highest_quality_is_chosen(accept: str, coding: str | None) -> None:
    assert accepted_coding(accept, ["zstd", "gzip"]) == coding
