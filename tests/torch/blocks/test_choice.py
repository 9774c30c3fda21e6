"""Levels of blocks for a budget: against all choices on small cases, and with few recorded steps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import product

import pytest

from remat.torch.blocks.choice import MAX_BETWEEN, changes_of, choose
from remat.torch.blocks.levels import Level, hull

Levels = dict[str, list[Level]]


def drawn(seed: int, blocks: int) -> Levels:
    draw = random.Random(seed)
    found = {}
    for number in range(blocks):
        held = sorted((draw.randint(1, 100) for _ in range(4)), reverse=True)
        seconds = sorted(draw.random() for _ in range(3))
        found[f"blocks.{number}"] = hull([Level({}, h, s) for h, s in zip(held, [0.0, *seconds], strict=True)])
    return found


def held_by(levels: Mapping[str, Level]) -> int:
    return sum(level.held_bytes for level in levels.values())


def seconds_of(levels: Mapping[str, Level]) -> float:
    return sum(level.extra_seconds for level in levels.values())


@pytest.mark.parametrize("seed", range(20))
def test_every_prefix_of_the_changes_is_the_fastest_choice_for_its_bytes(seed: int) -> None:
    levels = drawn(seed, 4)
    choices = [dict(zip(levels, row, strict=True)) for row in product(*levels.values())]
    changes = changes_of(levels)
    for count in range(len(changes) + 1):
        taken = {path: row[0] for path, row in levels.items()} | {c.path: c.level for c in changes[:count]}
        fastest = min(seconds_of(each) for each in choices if held_by(each) <= held_by(taken))
        assert seconds_of(taken) == pytest.approx(fastest)


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_within_the_budget_and_near_it(seed: int) -> None:
    levels = drawn(seed, 12)
    tried: list[int] = []

    def peak_of(chosen: Mapping[str, Level]) -> int:
        tried.append(held_by(chosen))
        return tried[-1]

    least, most = sum(row[-1].held_bytes for row in levels.values()), sum(row[0].held_bytes for row in levels.values())
    budget = (least + most) // 2
    found = choose(levels, budget, peak_of)
    largest = max(change.saved_bytes for change in changes_of(levels))
    assert budget - largest - 0.01 * budget <= found.peak_bytes <= budget
    assert found.peak_bytes == held_by(found.levels) == tried[found.number] and len(tried) <= MAX_BETWEEN + 2


def test_equal_changes_begin_with_the_first_block() -> None:
    row = [Level({}, 10, 0.0), Level({}, 2, 1.0)]
    assert [change.path for change in changes_of({"b": row, "a": row})] == ["b", "a"]


@pytest.mark.parametrize(
    ("budget", "expected"), [(30, [10, 10]), (20, [10, 10]), (19, [2, 10]), (4, [2, 2]), (3, [2, 2])]
)
def test_no_change_more_than_the_budget_needs(budget: int, expected: Sequence[int]) -> None:
    row = [Level({}, 10, 0.0), Level({}, 2, 1.0)]
    found = choose({"a": row, "b": row}, budget, held_by)
    assert [level.held_bytes for level in found.levels.values()] == list(expected)


def test_a_model_without_blocks_that_can_be_planned_is_as_it_is() -> None:
    assert choose({}, 5, lambda levels: 7).peak_bytes == 7
