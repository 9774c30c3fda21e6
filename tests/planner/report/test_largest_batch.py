"""Largest batch: the search finds the last batch that fits, from the model or the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import BadRequest
from planner.pipeline.solve import solve
from planner.report import largest_batch
from planner.report.largest_batch import Trial, largest_batches
from planner.report.regression import drift
from planner.request.plan_request import parse_request

MODEL = (Path(__file__).parents[2] / "models" / "decoder.onnx").read_bytes()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    fields = {"budget": "70%", "batch": 4, "dims": {"sequence": 8}, "search_seconds": 0.1, "planner": "mirror"}
    found = solve(MODEL, parse_request({**fields, "return": ["plan", "source"]})).report
    return dict(json.loads(json.dumps(found)))


@pytest.mark.parametrize("limit", [0, 9, 10, 19, 20, 29, 30, 31, 1234, 10**9, 10**12])
@pytest.mark.parametrize("shift", [0, 7, -7, 40])
def test_the_last_batch_that_fits_is_found_in_few_trials(
    limit: int, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a peak of 10 bytes an item, in larger batches `shift` bytes more: the prediction is then wrong."""

    def trial(_: Any, request: Any) -> Trial:
        peak = 10 * request.batch + (shift if request.batch > 3 else 0)
        return Trial(peak, peak <= limit)

    monkeypatch.setattr(largest_batch._Batches, "_trial", trial)
    batches = largest_batch._Batches(None, {}, b"", parse_request({}), limit)  # type: ignore[arg-type]
    size, why = batches.largest()
    assert why == "" and size is not None
    if size == largest_batch.MAX_BATCH:
        assert limit == 10**12
    else:
        assert trial(batches, parse_request({"batch": size + 1})).fits is False
        assert size == 0 or trial(batches, parse_request({"batch": size})).fits
    assert len(batches.trials) <= 12


def test_both_sides_of_an_unchanged_model_agree_and_one_more_does_not_fit(report: dict[str, Any]) -> None:
    found = drift(report, MODEL, 0.02)
    limit = 700_000
    section = largest_batches(found, report, MODEL, str(limit), MODEL)
    assert section["was"] == section["now"] > 4 and section["why"] == {"was": "", "now": ""}
    batches = largest_batch._Batches(found, report, MODEL, parse_request(report["request"]), limit)
    assert batches.at(section["now"]).fits and not batches.at(section["now"] + 1).fits


def test_a_source_of_fixed_lengths_leaves_the_batch_before_unknown_and_says_why(report: dict[str, Any]) -> None:
    section = largest_batches(drift(report, MODEL, 0.02), report, MODEL, "700KB")
    assert section["was"] is None and section["why"]["was"] and section["now"] > 4


def test_a_memory_that_nothing_fits_and_one_that_is_none(report: dict[str, Any]) -> None:
    found = drift(report, MODEL, 0.02)
    assert largest_batches(found, report, MODEL, "1KB", MODEL)["now"] == 0
    with pytest.raises(BadRequest, match="warp-drive"):
        largest_batches(found, report, MODEL, "warp-drive", MODEL)
    assert largest_batch.memory_bytes("a100-80gb") == 80 * 2**30
