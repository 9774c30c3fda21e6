"""The one grammar of budgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadRequest
from planner.request.budget import parse_budget, parse_fraction


@pytest.mark.parametrize(
    ("given_text", "whole", "expected"),
    [
        ("50%", 1000, 500),
        ("50%", 1001, 501),
        (0.5, 1001, 501),
        ("0.5", 1000, 500),
        (".5", 1000, 500),
        (".5GiB", 1, 2**29),
        (1.0, 7, 7),
        ("100%", 7, 7),
        (0.9, 10, 9),
        ("33.3%", 1000, 333),
        (0, 10, 0),
        ("0", 10, 0),
        (1, 10, 1),
        ("8GiB", 1, 8 << 30),
        ("8GB", 1, 8 * 10**9),
        ("1.5 KiB", 1, 1536),
        ("512", 1, 512),
        ("12b", 1, 12),
    ],
)
def test_every_form_gives_its_bytes(given_text: object, whole: int, expected: int) -> None:
    assert parse_budget(given_text).of(whole) == expected


@pytest.mark.parametrize(
    "wrong",
    ["", "-1", -1, "8XiB", "0%", "101%", 0.0, 1.5, float("nan"), float("inf"), None, [], True, "1e5", 2**63, "9EiB"],
)
def test_a_budget_nobody_understands_is_refused_with_the_grammar(wrong: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_budget(wrong)
    (finding,) = caught.value.findings
    assert finding.path == "budget"
    assert "GiB" in finding.expected


@pytest.mark.parametrize("wrong", ["0%", "100.1%", " 200 %"])
def test_a_percentage_out_of_range_is_refused_with_the_range(wrong: str) -> None:
    with pytest.raises(BadRequest, match="write a percentage above 0 and at most 100%"):
        parse_budget(wrong)


@pytest.mark.parametrize("text", ["50", " 80 ", "100", "2"])
def test_a_number_that_may_miss_its_percent_sign_is_asked_about(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_budget(text)
    number = text.strip()
    assert f"did you mean {number}%? For bytes write {number}B" in str(caught.value)
    assert parse_budget(f"{number}%").of(1000) == 10 * int(number)
    assert parse_budget(f"{number}B").of(1000) == parse_budget(int(number)).of(1000) == int(number)


@given(st.integers(1, 10_000), st.integers(0, 2**50))
def test_a_share_is_rounded_up_to_a_byte_and_never_by_more(basis_points: int, whole: int) -> None:
    share = parse_budget(f"{basis_points / 100}%").of(whole)
    assert 0 <= share * 10_000 - basis_points * whole < 10_000


def test_a_reducible_share_starts_at_the_smallest_peak() -> None:
    assert parse_budget("25%").of(1000, floor_bytes=200) == 400


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), (0.1, 0.1), ("0%", 0.0), (0, 0.0), ("0.25", 0.25)])
def test_an_overhead_is_a_share(text: object, value: float) -> None:
    assert parse_fraction(text, "max_overhead") == pytest.approx(value)


@pytest.mark.parametrize("wrong", ["ten", -0.1, float("nan"), True, None, 1e10, "9" * 31, "٩%", "9" * 400 + "%"])
def test_an_overhead_nobody_understands_is_refused(wrong: object) -> None:
    with pytest.raises(BadRequest):
        parse_fraction(wrong, "max_overhead")
