"""Every case of the original systems, through the public path."""

from __future__ import annotations

import pytest

from tests.seeds.areas import AREAS
from tests.seeds.harness import CASES, NOTICED, corruptions


def area_of(case):
    return AREAS[case["source_project"], case["category"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_comes_out_as_expected(case):
    area_of(case).check(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_corrupted_expectation_is_noticed(case):
    area = area_of(case)
    corrupted = list(corruptions(case["expected"]))
    for wrong in corrupted:
        with pytest.raises(NOTICED):
            area.check(case, wrong)
    sentences = case["expected"].get("properties", [])
    for sentence in sentences:
        assert not area.knows(f"{sentence} sometimes")
    assert corrupted or sentences or "error" in case["expected"]
