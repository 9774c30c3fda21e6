"""The public face: one call, a report, clear errors."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import remat
from tests.app.conftest import chain, onnx_file
from tests.end_to_end.test_agreement import training_chain


def test_a_graph_is_planned_and_executed_in_one_call() -> None:
    report = remat.plan(training_chain(), budget="80%")
    assert report["executed"]["status"] == "equal"
    assert report["plan"]["peak_bytes"] <= 0.8 * report["baseline"]["peak_bytes"] + 1
    assert len(report.graph.nodes) > len(report.source.nodes)
    assert "saved" in repr(report)


def test_a_saved_report_verifies_from_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    remat.plan(training_chain(), budget="80%", **{"return": ["plan", "timeline", "layout"]}).save(path)
    assert remat.verify(path)["valid"]
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_a_model_is_called_by_its_file(tmp_path: Path) -> None:
    model, saved = tmp_path / "encoder.onnx", tmp_path / "plan.json"
    model.write_bytes(onnx_file(4))
    report = remat.plan(model, budget="90%", planner="greedy")
    assert (report["model"]["name"], report["model"]["graph_name"]) == ("encoder", "main_graph")
    assert report["model"]["hash"] == remat.plan(model.read_bytes(), budget="90%", planner="greedy")["model"]["hash"]
    report.save(saved)
    assert remat.verify(saved)["valid"]
    document = json.loads(saved.read_text())
    document["model"]["graph_name"] = "another"
    assert not remat.verify(document)["valid"]
    assert remat.curve(model, ["90%"], planner="greedy")["model"]["name"] == "encoder"
    assert remat.fit(model, "1MiB", planner="greedy")["model"]["name"] == "encoder"
    assert remat.fit(model, 1, planner="greedy")["model"] is None


@pytest.mark.parametrize("field", ["peak_bytes", "seconds", "overhead"])
def test_a_figure_that_was_changed_is_found(tmp_path: Path, field: str) -> None:
    path = tmp_path / "plan.json"
    remat.plan(training_chain(), budget="80%").save(path)
    document = json.loads(path.read_text())
    document["plan"][field] += 1
    assert remat.verify(document)["valid"] is False


def test_a_report_that_is_cut_off_or_damaged_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    remat.plan(training_chain(), budget="80%", iterations=1).save(path)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    damaged = json.loads(whole)
    damaged["plan"]["order"] = "n0"
    for report, where in ((path, str(path)), (damaged, "plan.order")):
        with pytest.raises(remat.BadInput) as told:
            remat.verify(report)
        assert told.value.findings[0].path == where


def test_an_address_that_was_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    remat.plan(training_chain(), budget="80%", **{"return": ["plan", "layout"]}).save(path)
    document = json.loads(path.read_text())
    document["layout"]["offset"][-1] = document["layout"]["offset"][0]
    assert remat.verify(document)["valid"] is False


def test_a_run_that_was_left_out_is_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    remat.plan(training_chain(), budget="80%").save(path)
    document = json.loads(path.read_text())
    document["plan"]["order"].pop(2)
    assert remat.verify(document)["valid"] is False


def test_bad_input_carries_its_findings() -> None:
    with pytest.raises(remat.BadInput) as caught:
        remat.plan(b"no model", budget="50%")
    assert caught.value.findings[0].code == "unknown_format"
    with pytest.raises(remat.BadInput) as caught:
        remat.plan(training_chain(), budget="a lot", seed=-1)
    assert [finding.path for finding in caught.value.findings] == ["seed", "budget"]
    with pytest.raises(remat.BadInput, match="host_memory without offload"):
        remat.plan(training_chain(), budget="50%", host_memory="1GiB")
    with pytest.raises(remat.BadInput, match="found host_bandwidth is 0"):
        remat.plan(training_chain(), budget="50%", offload=True, device={"like": "a100-80gb", "host_bandwidth": 0})
    with pytest.raises(remat.BadInput, match="no bandwidth between mi250x and its host"):
        remat.plan(training_chain(), budget="50%", offload=True, device="mi250x")
    with pytest.raises(remat.BadInput, match="host_memory: found 1 bytes"):
        remat.plan(training_chain(), budget="50%", offload=True, host_memory=1)


def test_a_stopped_search_hands_over_its_best() -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(remat.Stopped) as caught:
        remat.plan(training_chain(), budget="50%", cancel=cancel)
    assert caught.value.best["plan"]["stopped"] and caught.value.best["checked"]


def test_a_curve_is_a_document_with_a_plan_in_every_point() -> None:
    points = remat.curve(json.dumps(chain()).encode(), ["100%", 0], iterations=10)["points"]
    assert (points[0]["status"], points[0]["plan"]["overhead"]) == ("proven", 0)
    assert points[1]["peak_bytes"] < points[0]["peak_bytes"]
    with pytest.raises(remat.BadInput, match="budgets"):
        remat.curve(json.dumps(chain()).encode(), [])


def test_the_largest_batch_comes_with_its_plan() -> None:
    model = Path(__file__).parents[1] / "models" / "decoder.onnx"
    found = remat.fit(model, "400KB", dims={"sequence": 8}, iterations=10)
    assert found["size"] and found["plan"]["peak_bytes"] <= 400_000
    with pytest.raises(remat.BadInput, match="share"):
        remat.fit(model, "50%")
