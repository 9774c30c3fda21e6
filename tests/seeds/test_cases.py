"""Every case of the original systems, through the public path."""

from __future__ import annotations

import pytest

from graph.errors import GraphError
from tests.seeds.areas import AREAS
from tests.seeds.harness import CASES, NOTICED, corrupted_sentences, corruptions, notes_of, sentences_of


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
    assert corrupted or sentences_of(case["expected"]) or "error" in case["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_corrupted_sentence_is_noticed(case):
    """A longer sentence is unknown; a sentence with another name or number is unknown or fails."""
    area = area_of(case)
    for text in [*sentences_of(case["expected"]), *notes_of(case)]:
        with pytest.raises(AssertionError, match="no check stands for the sentence"):
            area.check_sentence(area.run(case), f"{text} sometimes")
        for others in corrupted_sentences(area, text):
            assert any(is_noticed(area, case, other) for other in others), f"not noticed: {others}"


def is_noticed(area, case, text):
    try:
        area.check_sentence(area.run(case), text)
    except (*NOTICED, GraphError, ArithmeticError):
        return True
    return False
