"""What is written about the instances agrees with itself."""

from __future__ import annotations

import csv

import pytest

from bench.catalogue import FOLDER, instances


@pytest.mark.parametrize("instance", instances(), ids=lambda instance: instance.name)
def test_the_best_known_schedule_is_never_below_the_proven_bound(instance):
    assert instance.budgets
    for budget in instance.budgets:
        best, bound = instance.best_known(budget), instance.bound(budget)
        assert bound is not None and bound >= 0
        assert best is None or best >= bound


@pytest.mark.parametrize("path", sorted((FOLDER / "layout").glob("*.csv")), ids=lambda path: path.stem)
def test_a_layout_instance_needs_no_more_at_once_than_its_capacity(path):
    rows = [{key: int(x) for key, x in row.items()} for row in csv.DictReader(path.open())]
    changes = sorted(
        [(row["lower"], row["size"]) for row in rows] + [(row["upper"], -row["size"]) for row in rows]
    )  # fmt: skip
    live, most = 0, 0
    for _, change in changes:
        live += change
        most = max(most, live)
    assert most <= int(path.stem.partition(".")[2])
