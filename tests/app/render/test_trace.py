"""The predicted trace of a plan: slices by track without overlap, and a memory counter that peaks as the plan does."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import remat
from app.cli.typer_app import run
from app.render.plan.trace import PHASES, trace
from tests.app.conftest import chain
from tests.planner.pipeline import test_overlap


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "plan.json"
    report = remat.plan(json.dumps(chain(8, "traced")).encode(), "60%", planner="greedy", iterations=20)
    assert report.recomputed
    report.save(path)
    return path


def test_slices_follow_each_other_and_memory_peaks_as_planned(saved: Path) -> None:
    report = json.loads(saved.read_text())
    made = trace(report)
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in "MXC"}
    for event in made["traceEvents"]:
        by_kind[event["ph"]].append(event)
        assert event["pid"] == 1
    named = {event["tid"]: event["args"]["name"] for event in by_kind["M"] if event["name"] == "thread_name"}
    assert tuple(named.values()) == PHASES
    slices = by_kind["X"]
    for before, after in itertools.pairwise(slices):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.002)
    assert sum(event["dur"] for event in slices) == pytest.approx(1e6 * report["plan"]["seconds"], rel=0.01)
    runs = Counter(name for name, _ in report["plan"]["order"])
    repeated = [event["name"] for event in slices if named[event["tid"]] == "recompute"]
    assert repeated and Counter(repeated) == {name: count - 1 for name, count in runs.items() if count > 1}
    assert {named[event["tid"]] for event in slices} == {"forward", "backward", "recompute"}
    assert [event["args"]["bytes"] for event in by_kind["C"]] == report["timeline"]["step_bytes"]
    assert max(event["args"]["bytes"] for event in by_kind["C"]) == report["plan"]["peak_bytes"]
    assert [event["ts"] for event in by_kind["C"]] == sorted(event["ts"] for event in by_kind["C"])


def test_the_command_writes_the_trace(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", str(saved), "--trace", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text()) == trace(json.loads(saved.read_text()))
    assert "recomputed" in capsys.readouterr().out


def test_collectives_beside_compute_have_a_track_of_their_own() -> None:
    events = trace(test_overlap.planned(test_overlap.step()))["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tuple(named.values()) == (*PHASES, "communication")
    beside = [event for event in events if event["ph"] == "X" and named[event["tid"]] == "communication"]
    assert {event["name"] for event in beside} == {"gather0", "gather1", "reduce1", "reduce2"}
    assert {event["dur"] for event in beside} == {2000}
