"""Fits: the plan of the largest size is within memory and overhead; the next size is not, with the reason."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.errors import BadRequest
from planner.formulation.formulation import Formulation
from planner.pipeline.fits import FitResult, fit, size_clock, size_trials
from planner.pipeline.fits.size_clock import SizeClock
from planner.pipeline.fits.size_search import MAX_TRIALS, SizeSearch
from planner.pipeline.fits.size_trials import SizeTrial, SizeTrials
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan
from planner.request.budget import parse_budget
from planner.request.curve_and_fit_request import parse_fit
from planner.request.plan_request import Request

pytestmark = pytest.mark.usefixtures("bounds")

DECODER = (Path(__file__).parents[3] / "models" / "decoder.onnx").read_bytes()


def layers(count: int = 6, lead: str | int = "N") -> bytes:
    """count × (MatMul, Relu) on [N, 16] and a mean: bytes are linear in N."""
    weight = numpy_helper.from_array(np.zeros((16, 16), np.float32), "w")
    nodes, x = [], "x"
    for i in range(count):
        nodes += [helper.make_node("MatMul", [x, "w"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        x = f"r{i}"
    nodes.append(helper.make_node("ReduceMean", [x], ["loss"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [lead, 16])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [weight],
    )
    model: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return model


def fit_of(model: bytes, **fields: Any) -> FitResult:
    return fit(model, parse_fit({"iterations": 30, **fields}))


def check(found: FitResult) -> None:
    """Invariants of every fit."""
    document = found.document
    plan, size = document["plan"], document["size"]
    assert plan["peak_bytes"] <= document["budget_bytes"]
    assert plan["overhead"] <= document["max_overhead"]
    assert [row["size"] for row in document["tried"] if row["fits"]][-1] == size
    assert not document["next"]["fits"] and document["next"]["why"] and document["next"]["said"]
    assert len(document["tried"]) <= MAX_TRIALS
    for row in document["tried"]:
        if row["why"] in ("", "not_found"):  # the figures shown say the same as `fits`
            within = row["needed_bytes"] <= document["budget_bytes"] and row["overhead"] <= document["max_overhead"]
            assert row["fits"] == within


def test_without_overhead_the_batch_is_the_largest_whose_baseline_fits():
    found = fit_of(layers(), budget="64KiB", max_overhead=0)
    check(found)
    size, most = found.document["size"], found.document["budget_bytes"]
    assert found.document["next"]["size"] == size + 1
    rows = {row["size"]: row for row in found.document["tried"]}
    per_item = rows[2]["peak_bytes"] - rows[1]["peak_bytes"]
    assert rows[1]["peak_bytes"] + (size - 1) * per_item <= most
    assert found.document["plan"]["overhead"] == 0


def test_recomputation_makes_room_for_a_larger_batch():
    sizes = [fit_of(layers(), budget="64KiB", max_overhead=extra).document["size"] for extra in (0, "40%")]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    check(fit_of(layers(), budget="64KiB", max_overhead="40%"))


def test_a_batch_that_was_baked_in_grows_as_well():
    baked, open_ = (fit_of(layers(lead=lead), budget="64KiB") for lead in (4, "N"))
    assert baked.document["size"] == open_.document["size"]


def test_a_sequence_grows_by_its_name():
    found = fit_of(DECODER, budget="1MB", batch=2, grow="sequence")
    check(found)
    assert found.document["dimension"] == "sequence"
    assert found.outcome is not None and found.outcome.report["request"]["dims"] == {"sequence": found.document["size"]}


def test_the_plan_is_one_that_verifies_alone():
    from graph.formats.native.writer import document
    from planner.report import saved_report

    found = fit_of(layers(), budget="64KiB", grow="N")
    assert found.document["dimension"] == "N" and found.outcome is not None
    report = json.loads(json.dumps({**found.outcome.report, "source": document(found.outcome.source)}))
    assert saved_report.verify(report)["valid"]
    assert report["plan"]["peak_bytes"] == found.document["plan"]["peak_bytes"]


def test_a_size_whose_addresses_exceed_the_memory_shows_the_memory_needed():
    found = fit_of(layers(2), budget=17_001, max_overhead="40%", iterations=5)
    check(found)
    (row,) = [row for row in found.document["tried"] if row["why"] == "not_found"]
    assert row["peak_bytes"] <= 17_001 < row["needed_bytes"]
    over = row["needed_bytes"] - 17_001
    assert row["said"] == f"the best plan found is {over:,} bytes over the memory with its addresses"


def test_the_plan_of_a_size_that_fits_is_kept_where_the_last_search_finds_none_that_fits(
    monkeypatch: pytest.MonkeyPatch,
):
    def solved_without_seeds(*given: Any, **options: Any) -> Outcome:
        if "known" not in options:
            given = (given[0], replace(given[1], planner="as_given", layout="fast"))
            options["seeds"] = ()
        return solve(*given, **options)

    monkeypatch.setattr("planner.pipeline.fits.largest_fit.solve", solved_without_seeds)
    found = fit_of(layers(), budget="64KiB", max_overhead="40%")
    check(found)
    assert found.document["plan"]["within_budget"] and found.document["plan"]["overhead"] > 0


def test_the_plan_of_a_size_that_fits_is_kept_where_the_last_one_is_slower(monkeypatch: pytest.MonkeyPatch):
    def solved_in_less_memory(*given: Any, **options: Any) -> Outcome:
        if "known" not in options:
            given, options["seeds"] = (given[0], replace(given[1], budget=parse_budget(64_000))), ()
        return solve(*given, **options)

    monkeypatch.setattr("planner.pipeline.fits.largest_fit.solve", solved_in_less_memory)
    check(fit_of(layers(), budget="64KiB", max_overhead="25%"))


#: A link so fast that copies take no time beside compute.
FAST_LINK = {"like": "cpu-reference", "host_bandwidth": 1e11, "kernel_seconds": 0}


def fit_with_copies(**fields: Any) -> FitResult:
    given = {"budget": "16KiB", "max_overhead": "5%", "device": FAST_LINK, "offload": True, "iterations": 8}
    return fit_of(layers(4), **given | fields)


@pytest.mark.heavy
def test_copies_to_the_host_make_room_for_a_larger_batch():
    from graph.formats.native.writer import document
    from planner.report import saved_report

    plain, copied = fit_with_copies(offload=False), fit_with_copies()
    check(copied)
    assert copied.document["size"] >= 1.5 * plain.document["size"]
    assert copied.document["plan"]["offloaded"] and copied.outcome is not None
    report = json.loads(json.dumps({**copied.outcome.report, "source": document(copied.outcome.source)}))
    assert saved_report.verify(report)["valid"] and report["copies"]["host_peak_bytes"] > 0
    proven = [row["said"] for row in copied.document["tried"] if row["why"] == "proven"]
    assert proven and all("minimum peak" in said for said in proven)  # bounds on time do not cover copies


def test_a_fit_keeps_its_copies_within_the_host_memory():
    found = fit_with_copies(host_memory="4KiB")
    check(found)
    assert found.outcome is not None and found.document["plan"]["offloaded"]
    assert found.outcome.report["copies"]["host_peak_bytes"] <= 4096


def test_a_fit_says_why_it_has_no_copies():
    other_runtime, none_fits = fit_with_copies(runtime="ort"), fit_with_copies(runtime="ort", budget=1000)
    small = fit_with_copies(host_memory=64)  # holds the smallest value of batch 1, and none of larger ones
    assert none_fits.document["size"] is None
    for found, why in ((other_runtime, "runtime ort"), (none_fits, "runtime ort"), (small, "host_memory")):
        warnings = found.document["warnings"]
        assert [text for text in warnings if "no copies to the host" in text and why in text]
        assert not [text for text in warnings if "add offload" in text]


def test_a_fit_with_copies_needs_a_link_and_host_memory_for_one_value():
    with pytest.raises(BadRequest, match="host_bandwidth"):
        fit_with_copies(device={"bandwidth": 1e12, "flops": 1e13})
    with pytest.raises(BadRequest, match="host_memory"):
        fit_with_copies(host_memory=10)
    with pytest.raises(BadRequest, match="host_memory without offload"):
        parse_fit({"budget": "64KiB", "host_memory": "1GiB"})


def test_a_size_too_large_for_any_plan_is_proven():
    tried = fit_of(layers(), budget="64KiB").document["tried"]
    proven = [row for row in tried if row["why"] == "proven"]
    assert proven and all(row["bound_peak_bytes"] > 64 * 1024 or row["bound_overhead"] > 0.1 for row in proven)


def test_nothing_fits_a_memory_too_small_for_one():
    found = fit_of(layers(), budget=1000)
    assert (found.document["size"], found.document["plan"], found.exit_code) == (None, None, 1)
    assert (found.document["next"]["size"], found.document["next"]["why"]) == (1, "proven")


def test_a_size_the_model_does_not_take_does_not_fit():
    """The mask has 12 columns: a row of length 1 broadcasts, a row of length 2 does not."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "mask"], ["y"]), helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)],
        "masked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, "T"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.zeros((1, 12), np.float32), "mask")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    found = fit_of(model, budget="1MB", grow="T", differentiate=False).document
    assert (found["size"], found["next"]["size"], found["next"]["why"]) == (1, 2, "refused")
    assert "mask" in found["next"]["said"] or "Add" in found["next"]["said"]


def seconds_of_layouts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that monitors of layouts get from now on."""
    given, placed = list[float](), Formulation.placed

    def counted(formulation: Formulation, plan: Plan, layout: str, monitor: Monitor | None = None) -> Plan:
        if monitor is not None:
            given.append(monitor.seconds)
        return placed(formulation, plan, layout, monitor)

    monkeypatch.setattr(Formulation, "placed", counted)
    return given


def test_addresses_of_a_size_get_no_time_once_that_of_the_sizes_is_over(monkeypatch: pytest.MonkeyPatch):
    given = seconds_of_layouts(monkeypatch)

    def final(sizes: SizeSearch, best: SizeTrial) -> Request:
        return replace(sizes.trials.request_at(best.size), iterations=5, search_seconds=0.5)

    monkeypatch.setattr(SizeClock, "seconds_left", lambda _: 0.5)
    monkeypatch.setattr(SizeSearch, "final_request", final)
    check(fit(layers(), parse_fit({"budget": "64KiB", "max_overhead": "40%", "search_seconds": 20, "layout": "best"})))
    assert 0.0 in given and max(given) < 1


@pytest.mark.parametrize(("reading", "searching", "is_cut"), [(0, 10, True), (10, 1, False)])
def test_sizes_are_tried_after_the_time_only_if_most_of_it_went_into_reading_them(
    reading: int, searching: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
):
    now, load_model, tried = 0, size_trials.load_model, SizeTrials._tried

    def read(*given: Any) -> Any:
        nonlocal now
        now += reading
        return load_model(*given)

    def searched(*given: Any) -> SizeTrial:
        nonlocal now
        now += searching
        return tried(*given)

    for module in (size_clock, size_trials):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(size_trials, "load_model", read)
    monkeypatch.setattr(SizeTrials, "_tried", searched)
    monkeypatch.setattr(
        SizeSearch, "final_request", lambda sizes, best: replace(sizes.trials.request_at(best.size), iterations=5)
    )
    request = {"budget": "64KiB", "max_overhead": "40%", "search_seconds": 30, "planner": "segments"}
    document = fit(layers(), parse_fit(request)).document
    ended = [warning for warning in document["warnings"] if warning.startswith("the search ended before sizes")]
    assert (len(document["tried"]) == 3, bool(ended)) == (is_cut, is_cut)


def test_cancel_keeps_the_best_result():
    stop = threading.Event()
    stop.set()
    found = fit(layers(), parse_fit({"budget": "64KiB"}), cancel=stop)
    assert found.document["stopped"] and found.document["size"] == 2
    assert found.exit_code == 3


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["budget"]),
    ({"budget": "50%"}, ["budget"]),
    ({"budget": 0}, ["budget"]),
    ({"budget": "1GB", "fits": "a100-80gb"}, ["fits"]),
    ({"budget": "1GB", "batch": 3, "grow": "batch", "seed": -1}, ["seed", "batch"]),
    ({"budget": "1GB", "dims": {"T": 3}, "grow": "T"}, ["dims.T"]),
    ({"budget": "1GB", "max_overhead": "much", "grow": 3, "return": "plan"}, ["return", "max_overhead", "grow"]),
    ({"budget": "1GB", "bugdet": 3, "fraction_of": "reducible"}, ["fraction_of", "bugdet"]),
]


@pytest.mark.parametrize(("fields", "paths"), BAD)
def test_all_faults_are_reported_with_place_and_remedy(fields: dict[str, Any], paths: list[str]):
    with pytest.raises(BadRequest) as caught:
        parse_fit(fields)
    assert sorted(finding.path for finding in caught.value.findings) == sorted(paths)
    assert all(finding.found and finding.expected and finding.remedy for finding in caught.value.findings)


SIZES_ONLY = b"""{"format": "remat/1", "outputs": ["b"],
  "values": [{"name": "a", "bytes": 100, "role": "input"}, {"name": "b", "bytes": 100}],
  "nodes": [{"name": "A", "op": "acme::A", "inputs": ["a"], "outputs": ["b"]}]}"""


def test_a_document_of_sizes_alone_is_refused_in_words():
    with pytest.raises(BadRequest, match="leading length"):
        fit_of(SIZES_ONLY, budget="1GB")
    with pytest.raises(BadRequest, match="every length is a number"):
        fit_of(SIZES_ONLY, budget="1GB", grow="sequence")


def test_an_ambiguous_dimension_is_refused():
    with pytest.raises(BadRequest, match="batch, sequence"):
        fit_of(DECODER, budget="1MB", grow="T")
    with pytest.raises(BadRequest, match="as large as at 2"):
        fit_of(layers(), budget="64KiB", dims={"N": 4})
