"""The bar of a batch says what the batch says."""

from __future__ import annotations

import io

from app.client.blocking import progress_bar

BATCH = {"state": "running", "total": 8, "done": 3, "items": {"failed": 2}}


def test_the_bar_draws_how_many_items_have_ended_and_failed() -> None:
    drawn = io.StringIO()
    with progress_bar(file=drawn, force_terminal=True, width=120) as follow:
        follow(BATCH)
        follow(BATCH | {"state": "succeeded", "done": 8})
    assert "succeeded, 2 failed" in drawn.getvalue()
    assert "8/8" in drawn.getvalue()


def test_nothing_is_drawn_where_nobody_looks() -> None:
    drawn = io.StringIO()
    with progress_bar(file=drawn) as follow:
        follow(BATCH)
    assert drawn.getvalue().strip() == ""
