"""What people read on a terminal is true and fits it."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest

from app.render import text
from app.render.text import ProgressPrinter, format_bytes, format_percent, format_seconds, plan_lines, table
from planner.pipeline.progress import Progress as Told
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.app.conftest import chain
from tests.planner.pipeline import test_overlap


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (8 * 2**30, "8.00 GiB"),
        (None, "unknown"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_are_said_in_binary_units(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


def test_shares_and_times_are_said_as_people_do() -> None:
    assert (format_percent(0.034), format_percent(None)) == ("3.4%", "unknown")
    assert [format_seconds(x) for x in (2.5, 0.012, 3e-6, 4e-9, None)] == ["2.5 s", "12 ms", "3 us", "4 ns", "unknown"]


def test_columns_of_a_table_stand_under_each_other() -> None:
    assert table(("a", "bytes"), [("long name", 5), ("b", 1000)], right=(1,)) == [
        "a          bytes",
        "long name      5",
        "b           1000",
    ]


def report(**fields: object) -> dict[str, object]:
    return solve(json.dumps(chain()).encode(), parse_request({"execute": "auto", **fields})).report


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"budget": "100%"}, "fits 128.00 KiB: peak"),
        ({"budget": 1}, "does not fit 1 B: best peak found"),
        ({"fits": "a100-80gb"}, "fits 80.00 GiB: peak"),
        ({"max_overhead": "10%"}, "fits the device, a100-80gb: peak"),
    ],
)
def test_the_first_line_says_whether_it_fits(fields: dict[str, object], first: str) -> None:
    lines = plan_lines(report(**fields))
    assert lines[0].startswith(first.split(":")[0].split(" ")[0])
    assert re.match(first.replace("128.00 KiB", r"[\d.]+ KiB"), lines[0])


def test_the_text_says_split_savings_reference_and_execution_and_shows_the_picture() -> None:
    lines = plan_lines(report(budget="80%"), ["a picture"])
    for said in (
        "before",
        "after",
        "activations",
        "limiting op",
        "framework's default",
        "MXNet mirroring",
        "executed: ",
    ):
        assert said in "\n".join(lines)
    assert "a picture" in lines
    assert "a picture" not in plan_lines(report(budget="80%"))


def test_the_share_saved_is_one_of_the_bytes_shown_beside_it() -> None:
    found = report(budget="80%")
    assert found["baseline"]["needed_bytes"] * found["plan"]["saved"] == pytest.approx(found["plan"]["saved_bytes"])
    found["baseline"]["needed_bytes"] = 2**30
    assert any(line.endswith("of the framework's default, 1.00 GiB") for line in plan_lines(found))


def test_progress_is_one_line_a_stage_with_its_duration_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), iter([0.0, 0.5, 0.5, 4.0, 4.0, 4.25, 4.25, 5.25])
    monkeypatch.setattr(text, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = ProgressPrinter(stream)
    for stage, peak in (("read", None), ("plan", 4096), ("plan", 2048), ("layout", 2048)):
        progress(Told(stage, 9.0, None if peak is None else 0.1, peak, 0.05, None))
    progress(Told("execute", 9.0))  # nothing has run, and may not
    progress(Told("execute", 9.0, nodes_run=1200, nodes=3400))
    progress.close()
    assert stream.getvalue().splitlines() == [
        "reading the model ... 0.5 s, bound 5.0%",
        "searching ... 3.5 s, peak 2.00 KiB, overhead 10.0%, bound 5.0%",
        "assigning addresses ... 0.2 s, peak 2.00 KiB, overhead 10.0%, bound 5.0%",
        "checking by execution ... 1.0 s, 1,200 of 3,400 nodes",
    ]


@pytest.mark.parametrize(
    ("runtime", "label"), [("arena", "arena  "), ("ort", "arena (prediction: ort places values itself)")]
)
def test_addresses_that_a_runtime_does_not_use_are_labelled_a_prediction(runtime: str, label: str) -> None:
    fields = {"budget": "80%", "planner": "greedy", "iterations": 5, "runtime": runtime, "layout": "fast"}
    report = solve(json.dumps(chain()).encode(), parse_request(fields)).report
    assert [line for line in plan_lines(report) if line.startswith(label)]


def test_a_model_that_fits_the_memory_is_said_to_be_unchanged() -> None:
    unchanged = "the model fits as it is, nothing was changed; --budget 50% plans for half the memory"
    assert plan_lines(report(fits="a100-80gb"))[1] == unchanged
    assert unchanged not in plan_lines(report(budget="80%")) + plan_lines(report(fits=80_000))


def test_the_first_line_of_a_plan_whose_arena_exceeds_the_budget_says_what_it_needs() -> None:
    found = report(budget="100%")
    plan = {**found["plan"], "status": "over_budget", "needed_bytes": 2**20}  # type: ignore[dict-item]
    plan |= {"smallest_budget_bytes": 2**20, "gap": None, "within_budget": False}
    first = plan_lines({**found, "plan": plan})[0]
    assert first.startswith("does not fit 96.00 KiB: best plan found needs 1.00 MiB with its addresses (peak")


def test_the_text_of_a_plan_with_copies_says_bytes_each_way_and_at_most_on_the_host() -> None:
    device = {"like": "cpu-reference", "host_bandwidth": 1e9}
    fields = {"budget": "80%", "device": device, "iterations": 100}
    found = solve(json.dumps(chain()).encode(), parse_request(fields | {"offload": True})).report
    copied = {"to_host_bytes": 3072, "from_host_bytes": 5120, "host_peak_bytes": 2048, "waiting_seconds": 0.012}
    assert copied.keys() < found["copies"].keys()
    found |= {"copies": found["copies"] | copied, "plan": found["plan"] | {"offloaded": ["h0", "h1"]}}
    said = "2 values copied to the host: 3.00 KiB there, 5.00 KiB back, at most 2.00 KiB at once; compute waits 12 ms"
    assert said in plan_lines(found)
    assert "copied to the host" not in "\n".join(plan_lines({k: v for k, v in found.items() if k != "copies"}))


def test_the_text_of_a_plan_with_overlap_says_what_compute_waits_and_how_much_faster_it_is() -> None:
    lines = plan_lines(test_overlap.planned(test_overlap.step()))
    assert lines[0].endswith("11.4% faster")
    assert "collectives take 8 ms beside compute, which waits 4 ms for them; without a plan 8 ms" in lines
