"""Buffers as people send them: packed within bounds, aligned and pinned as asked; nonsense is told row by row."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from planner.errors import BadRequest
from planner.layout.csv_buffers import MAX_MIXED_BUFFERS, pack, parse_buffers


def buffer(lower: int, upper: int, size: int, **more: int) -> dict[str, int]:
    return {"lower": lower, "upper": upper, "size": size, **more}


def packed(*rows: dict[str, int], **asked: Any) -> dict[str, Any]:
    return pack(parse_buffers({"buffers": list(rows), "search_seconds": 0.3, **asked})).document()


def findings(fields: Any) -> list[tuple[str, str]]:
    with pytest.raises(BadRequest) as refused:
        parse_buffers(fields)
    return [(finding.code, finding.path) for finding in refused.value.findings]


def test_what_is_never_live_together_shares_bytes():
    assert packed(buffer(0, 2, 4), buffer(2, 4, 6)) == {
        "offsets": [0, 0],
        "arena_bytes": 6,
        "bound_bytes": 6,
        "status": "proven",
    }
    assert packed(buffer(-5, 3, 4), buffer(2, 4, 6))["arena_bytes"] == 10


def test_nothing_needs_nothing():
    assert packed() == {"offsets": [], "arena_bytes": 0, "bound_bytes": 0, "status": "proven"}
    assert packed(buffer(0, 1, 0), buffer(0, 1, 0, offset=0))["arena_bytes"] == 0


def test_each_lies_at_a_multiple_of_its_own_alignment():
    made = packed(buffer(0, 9, 3), buffer(0, 9, 5, alignment=8), buffer(0, 9, 2, alignment=4))
    assert [offset % unit for offset, unit in zip(made["offsets"], (1, 8, 4), strict=True)] == [0, 0, 0]
    assert made["arena_bytes"] <= 11
    assert packed(buffer(0, 9, 3), buffer(0, 9, 5), alignment=64)["arena_bytes"] <= 69


def test_pinned_buffers_stay_and_the_rest_goes_around_them():
    made = packed(buffer(0, 4, 4, offset=4), buffer(1, 3, 4), buffer(1, 9, 8))
    assert made["offsets"] == [4, 0, 8]
    assert packed(buffer(0, 1, 1, offset=99))["arena_bytes"] == 100


def test_a_capacity_ends_the_search_or_is_told_to_be_too_small():
    rows = [buffer(0, 2, 4), buffer(1, 3, 4)]
    assert packed(*rows, capacity=8)["status"] == "proven"
    assert packed(*rows, capacity=7)["status"] == "over_capacity"


@pytest.mark.parametrize("is_mixed", [False, True])
def test_random_buffers_lie_apart_and_never_below_the_bound(is_mixed: bool):
    rng = random.Random(5)
    for _ in range(25):
        rows = []
        for _ in range(rng.randint(1, 12)):
            lower = rng.randint(0, 20)
            more = {"alignment": rng.choice([1, 2, 8])} if is_mixed else {}
            rows.append(buffer(lower, lower + rng.randint(1, 9), rng.randint(0, 30), **more))
        made = packed(*rows, search_seconds=0.02)
        for (a, x), (b, y) in itertools.combinations(zip(rows, made["offsets"], strict=True), 2):
            is_together = a["lower"] < b["upper"] and b["lower"] < a["upper"] and a["size"] and b["size"]
            assert not is_together or x + a["size"] <= y or y + b["size"] <= x
        ends = [offset + row["size"] for row, offset in zip(rows, made["offsets"], strict=True)]
        assert made["arena_bytes"] == max(ends) >= made["bound_bytes"]


def test_every_fault_is_told_at_its_row():
    rows = [
        buffer(3, 3, 1),
        {"lower": 0},
        7,
        buffer(0, 1, -1),
        buffer(0, 1, 1, alignment=0),
        buffer(0, 1, 2.5),  # type: ignore[arg-type]
        buffer(0, 1, 1, offset=3, alignment=2),
        {**buffer(0, 1, 1), "sise": 4},
    ]
    assert findings({"buffers": rows}) == [
        ("bad_field", "buffers[0].upper"),
        ("missing_field", "buffers[1].upper"),
        ("missing_field", "buffers[1].size"),
        ("bad_field", "buffers[2]"),
        ("bad_field", "buffers[3].size"),
        ("bad_field", "buffers[4].alignment"),
        ("bad_field", "buffers[5].size"),
        ("bad_field", "buffers[6].offset"),
        ("unknown_field", "buffers[7].sise"),
    ]
    assert findings({"buffers": [{"id": "a", **buffer(0, 1, 1)}, {"id": "a", **buffer(0, 1, 1)}]}) == [
        ("duplicate_name", "buffers[1].id")
    ]
    assert findings({"capacity": "much"}) == [("bad_field", "capacity"), ("missing_field", "buffers")]
    assert findings({"buffers": [buffer(0, 1, 2**41)] * 99}) == [("bad_field", f"buffers[{i}].size") for i in range(10)]


def test_pinned_buffers_that_share_bytes_are_told():
    rows = [buffer(0, 4, 4, offset=0), buffer(2, 3, 4, offset=3), buffer(4, 5, 4, offset=0)]
    assert findings({"buffers": rows}) == [("pinned_overlap", "buffers[1].offset")]


def test_more_than_can_be_placed_one_by_one_are_refused():
    rows = [buffer(0, 1, 1)] * MAX_MIXED_BUFFERS + [buffer(0, 1, 1, offset=5)]
    assert findings({"buffers": rows}) == [("too_many_buffers", "buffers")]
