"""Rows of items."""

from __future__ import annotations

import pytest

from app.jobs.batches.results import COLUMNS, flat_row, item_json


@pytest.mark.parametrize(
    ("status", "budget_bytes", "within"),
    [
        ("found", 100, True),
        ("proven", 100, True),
        ("over_budget", 100, False),
        ("found", 0, None),  # the lowest peak was requested
        ("found", None, None),
        (None, None, None),
    ],
)
def test_a_row_says_whether_its_plan_is_within_the_budget(
    status: str | None, budget_bytes: int | None, within: bool | None
) -> None:
    item = dict.fromkeys(COLUMNS) | {"plan_id": None, "operation_id": None}
    item |= {"status": status, "budget_bytes": budget_bytes}
    assert item_json(item)["within_budget"] is within
    assert list(flat_row(item)) == list(COLUMNS)
