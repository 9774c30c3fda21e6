"""The benchmark scripts on small inputs: what they measure, and when they complain."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import analysis, digests, hotspots, ops, run, scale, soak, table, targets
from bench.catalogue import Instance
from bench.damage import damaged
from bench.generators import chain, transformer
from bench.targets import Target

ROOT = Path(__file__).resolve().parents[2]


def test_a_scored_row_is_legal_checked_and_never_below_the_bound():
    instance = Instance("chain40")
    row = run.scored(instance, "0.50", "greedy", 0, 1.0, "given")
    assert row["legal"] and row["checked"]
    assert row["fits"] == (row["peak_bytes"] <= row["budget_bytes"])
    if row["fits"]:
        assert row["overhead"] >= instance.bound("0.50")


def test_the_table_shows_a_miss_as_a_dash_and_the_median_of_the_seeds():
    base = {"instance": "x", "budget": "0.5", "best_known": 0.04, "bound": 0.03, "legal": True, "seconds": 1.0}
    seeds = [{**base, "seed": s, "fits": True, "overhead": o} for s, o in enumerate([0.05, 0.07, 0.06])]
    assert "| 6.00 (4.00, 3.00) |" in run.table("greedy", seeds)
    assert "| - (4.00, 3.00) |" in run.table("greedy", [*seeds[:2], {**seeds[2], "fits": False}])


def test_a_goal_is_met_when_every_case_is_and_its_misses_are_named():
    def target(case: str, floor: float | None, aim: float | None, values: list[float]) -> Target:
        return Target("goal", case, floor, aim, values.__getitem__, values.__getitem__)

    good = table.measured(target("good", 2.0, 2.0, [9.0, 1.0, 2.0]), (0, 1, 2))
    bad = table.measured(target("bad", 2.0, 1.0, [1.5, 1.2, 3.0]), (0, 1, 2))
    assert (good["at_floor"], good["floor_met"], good["aim_met"]) == (2.0, True, True)
    assert (bad["floor_met"], bad["aim_met"]) == (True, False)
    assert "| goal | 2 of 2 | 1 of 2 | bad: 1.50 (1.00) |" in table.table([good, bad])
    assert table.verdict([good, bad]) == "floor met by 1 of 1 goals, aim by 0; wanted: all, and 1"
    assert table.lateness([good, bad]) == "no report was timed"
    late = [{**good, "overruns": [0.1, 0.2]}, {**bad, "overruns": [0.5]}]
    assert table.lateness(late) == (
        "reports after the time requested: median +0.20 s, worst +0.50 s (goal: bad), 1 of 3 later than 0.3 s"
    )
    none = table.measured(target("none", 2.0, None, [float("inf")] * 3), (0, 1, 2))
    assert (none["floor_met"], none["aim_met"]) == (False, None)
    assert "none: missed (2.00)" in table.table([none])


def test_a_target_is_the_checked_plan_s_extra_time_within_the_time_given():
    case = targets.instance("chain40", "0.80", "given")
    found = targets.reached(case, 1.0, 0)
    assert found.first <= found.seconds
    assert targets.proven(case) <= found.extra < 5
    assert len({(target.goal, target.case) for target in targets.targets()}) == len(targets.targets())


def test_every_stage_of_the_scale_run_is_timed_and_weighed():
    found = scale.measured(json.dumps(transformer(200)).encode())
    assert list(found["seconds"]) == list(found["peak_bytes"])
    assert list(found["seconds"]) == ["parse", "lower", "greedy", "check", "realize", "serialise"]
    assert found["steps"] >= found["nodes"] >= 200
    assert found["bytes_over_budget"] == 0
    assert found["processor_seconds"] > 0


def timed(nodes: int, seconds: float, peak_bytes: int = 0) -> dict[str, object]:
    return {"nodes": nodes, "total_seconds": seconds, "total_peak_bytes": peak_bytes}


def test_scale_complains_about_time_memory_and_steepness():
    good = [timed(1_000, 0.1), timed(10_000, 0.5), timed(100_000, 5.0)]
    assert scale.misses(good) == []
    assert len(scale.misses([*good[:2], timed(100_000, 7.1)])) == 1
    assert len(scale.misses([*good[:2], timed(100_000, 5.0, 2_100_000_000)])) == 1
    assert len(scale.misses([good[0], timed(10_000, 0.1), timed(100_000, 5.0)])) == 1


def test_the_functions_of_a_stage_are_named_with_their_share():
    lines = hotspots.described(json.dumps(transformer(200)).encode(), top=3)
    assert len(lines) == 1 + 6 * (1 + 3)
    assert any(" graph/" in line for line in lines) and any(" planner/" in line for line in lines)
    profiler = hotspots.Profiler()
    with profiler("sorting"):
        sorted(range(50), key=str)
    shares = profiler.top("sorting", 9)
    assert shares == sorted(shares, key=lambda row: -row[0])
    assert sum(share for share, _, _ in shares) == pytest.approx(1)


def test_the_analysis_run_meets_dead_ops_and_names_written_again():
    found = analysis.measured(json.dumps(analysis.program(2_000)).encode())
    assert found["versions"] > 2_000 == found["ops"]
    assert 0 < found["dead"] < found["ops"]
    assert list(found["seconds"]) == ["parse", "analysis", "to a graph", "back to a document"]


def test_a_digest_repeats_and_differs_between_plans():
    document = json.dumps(chain(12, seed=1)).encode()
    assert digests.digest(document, 0.6, "greedy") == digests.digest(document, 0.6, "greedy")
    assert digests.digest(document, 0.6, "greedy") != digests.digest(document, 1.0, "greedy")


@pytest.mark.parametrize("only", ["chain(30) 0.5 s", pytest.param("chain(", marks=pytest.mark.heavy)])
def test_the_plans_of_a_generated_document_are_the_stored_ones(only):
    checked = subprocess.run(
        [sys.executable, "bench/digests.py", "--check", "--only", only], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.usefixtures("quick_bounds")
def test_a_changed_plan_is_named_and_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digests, "FILE", tmp_path / "digests.json")
    monkeypatch.setattr(digests, "INSTANCES", ("chain40",))
    monkeypatch.setattr(digests, "PLANNERS", ("as_given",))
    monkeypatch.setattr(digests, "ProcessPoolExecutor", lambda processes, _: ThreadPoolExecutor(processes))
    monkeypatch.setattr(sys, "argv", ["digests.py", "--only", "chain40"])
    assert digests.main() == 0
    stored = json.loads(digests.FILE.read_text())
    digests.FILE.write_text(json.dumps({**stored, "chain40 0.5 as_given": "0" * 64}))
    monkeypatch.setattr(sys, "argv", ["digests.py", "--check", "--only", "chain40"])
    assert digests.main() == 1
    assert "chain40 0.5 as_given: differs" in capsys.readouterr().out


def test_random_documents_are_planned_and_equal_and_damaged_ones_refused_or_planned():
    outcomes = {soak.Case(0, number).run() for number in range(60)}
    equal = {f"planned and equal, gradients {found}" for found in ("agree", "not compared")}
    assert outcomes == {*equal, "damaged and planned", "refused"}


def test_a_document_of_the_soak_is_the_same_for_the_same_seed_and_number():
    first, again, other = soak.Case(5, 3), soak.Case(5, 3), soak.Case(5, 4)
    assert (first.document, first.fields) == (again.document, again.fields)
    assert first.document != other.document


def test_the_soak_keeps_a_wrong_document_and_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak.Worker, "answer", lambda *_: ("wrong", "ZeroDivisionError: a defect"))
    monkeypatch.setattr(sys, "argv", ["soak.py", "--count", "2", "--seed", "9", "--failures", str(tmp_path)])
    assert soak.main() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["9-0.json", "9-1.json"]
    assert "2 wrong" in capsys.readouterr().out


def test_a_document_that_ends_the_process_is_wrong_and_the_next_one_is_answered(monkeypatch):
    worker = soak.Worker()
    monkeypatch.setattr(soak, "answered", die)
    assert worker.answer(0, 1) == ("wrong", "the process died")
    monkeypatch.undo()
    assert worker.answer(0, 1)[1] == ""
    worker.close()


def die(seed: int, number: int) -> tuple[str, str]:
    os.abort()


@given(st.integers(0, 10**9))
def test_damage_changes_or_keeps_a_document_but_never_the_original(seed):
    document = chain(3)
    before = json.dumps(document)
    assert isinstance(damaged(document, random.Random(seed)), bytes)
    assert json.dumps(document) == before


def test_every_operator_from_floats_to_floats_has_a_gradient_or_a_reason():
    rows = ops.coverage()
    assert ops.gaps(rows) == []
    without = [row for row in rows if row.op not in ops.REASONS]
    assert ops.gaps(without) == [f"{op}: its reason in REASONS is not needed" for op in sorted(ops.REASONS)]


def test_an_operator_without_a_gradient_is_a_gap():
    row = next(row for row in ops.coverage() if row.op in ops.REASONS)
    unknown = replace(row, op="Unknown")
    assert "Unknown: no gradient, and no reason in REASONS" in ops.gaps([unknown])
