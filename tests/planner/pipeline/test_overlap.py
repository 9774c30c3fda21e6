"""Collectives run beside compute: nodes move, reports have times, and saved reports are verified."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from planner.errors import BadRequest, IllegalPlan
from planner.pipeline.solve import solve
from planner.report.saved_report import certificate, verify
from planner.request.plan_request import parse_request
from planner.verify.certificate import CertificateRejected
from planner.verify.certificate import verify as verify_certificate

UNIT = 1e-3  # seconds
BYTES = 4096


def step(collective: bool = True) -> bytes:
    """Three layers on one of several ranks. Results are gathered forward and reduced backward before the next layer.

    Gradients of weights, which need no collective, stand at the end.
    """
    nodes: list[tuple[str, list[str], int, str]] = []
    for layer in range(3):
        nodes.append((f"layer{layer}", [f"gather{layer - 1}" if layer else "x", f"w{layer}"], 3, "forward"))
        if layer < 2:
            nodes.append((f"gather{layer}", [f"layer{layer}"], 2, "forward"))
    for layer in (2, 1, 0):
        nodes.append((f"back{layer}", [f"w{layer}", f"reduce{layer + 1}" if layer < 2 else "layer2"], 3, "backward"))
        if layer:
            nodes.append((f"reduce{layer}", [f"back{layer}"], 2, "backward"))
    for layer in range(3):
        reads = [f"gather{layer - 1}" if layer else "x", f"reduce{layer + 1}" if layer < 2 else "layer2"]
        nodes.append((f"weight{layer}", reads, 3, "backward"))
    inputs = [{"name": name, "role": "parameter"} for name in ("w0", "w1", "w2")] + [{"name": "x", "role": "input"}]
    values = [*inputs, *({"name": name, "role": "activation"} for name, *_ in nodes)]
    rows = [
        {"name": name, "op": name.rstrip("012"), "inputs": reads, "outputs": [name], "phase": phase}
        | {"cost": {"seconds": ticks * UNIT}}
        | ({"effect": "collective"} if collective and name.startswith(("gather", "reduce")) else {})
        for name, reads, ticks, phase in nodes
    ]
    outputs = [*(f"weight{layer}" for layer in range(3)), "back0"]
    values = [{**value, "bytes": BYTES} for value in values]
    return json.dumps({"format": "remat/1", "name": "m", "values": values, "nodes": rows, "outputs": outputs}).encode()


def planned(document: bytes, **fields: Any) -> dict[str, Any]:
    given = {"budget": 32 * BYTES, "iterations": 200, "overlap": True, "return": ["timeline", "source"], **fields}
    return solve(document, parse_request(given)).report


def test_collectives_start_early_and_compute_does_not_wait_for_them() -> None:
    report = planned(step())
    assert report["baseline"]["seconds"] == pytest.approx(35 * UNIT)  # 27 of compute, 8 of collectives
    assert report["plan"]["seconds"] == pytest.approx(31 * UNIT)  # nothing can run beside the two gathers
    assert report["plan"]["bound"]["seconds"] == pytest.approx(27 * UNIT)
    assert report["plan"]["overhead"] == pytest.approx(31 / 35 - 1)
    assert report["overlap"] == {
        "communication_seconds": pytest.approx(8 * UNIT),
        "waiting_seconds": pytest.approx(4 * UNIT),
        "baseline_waiting_seconds": pytest.approx(8 * UNIT),
    }


def test_a_budget_limits_what_runs_beside_collectives() -> None:
    loose, tight = planned(step(), budget=10 * BYTES), planned(step(), budget=9 * BYTES)
    assert loose["fits"] and tight["fits"] and tight["plan"]["peak_bytes"] <= 9 * BYTES
    assert loose["plan"]["seconds"] == pytest.approx(31 * UNIT)
    assert tight["plan"]["seconds"] > loose["plan"]["seconds"]


def test_a_share_of_the_budget_is_one_of_the_step_with_collectives_beside_compute() -> None:
    """A gather of each weight may begin at once: all of them are held where in line one is."""
    report = planned(wide(3), budget="100%", planner="as_given")
    assert report["fits"] and report["plan"]["overhead"] == 0 and report["plan"]["saved_bytes"] == 0
    assert report["baseline"]["needed_bytes"] == report["baseline"]["peak_bytes"] == report["plan"]["budget_bytes"]
    assert report["baseline"]["peak_bytes"] > planned(wide(3), overlap=False)["baseline"]["peak_bytes"]


def wide(layers: int) -> bytes:
    """Layers in turn; the gather of the next weight stands before each of them."""
    rows: list[tuple[str, list[str], int, dict[str, str]]] = [("use0", ["x"], 1, {})]
    for layer in range(1, layers + 1):
        rows.append((f"gather{layer}", [f"w{layer}"], 9, {"effect": "collective"}))
        rows.append((f"use{layer}", [f"gather{layer}", f"use{layer - 1}"], 3, {}))
    document = json.loads(step())
    weights = [{"name": f"w{layer}", "role": "parameter"} for layer in range(1, layers + 1)]
    values = [*weights, {"name": "x", "role": "input"}, *({"name": name, "role": "activation"} for name, *_ in rows)]
    document["values"] = [{**value, "bytes": BYTES} for value in values]
    document["nodes"] = [
        {"name": name, "op": "Op", "inputs": reads, "outputs": [name], "cost": {"seconds": ticks * UNIT}, **more}
        for name, reads, ticks, more in rows
    ]
    document["outputs"] = [f"use{layers}"]
    return json.dumps(document).encode()


def test_times_of_engines_are_those_of_the_plan() -> None:
    report = planned(step())
    engines = report["timeline"]["engines"]
    runs = dict(zip((name for name, _ in report["plan"]["order"]), zip(*engines.values(), strict=True), strict=True))
    assert {name for name, (engine, *_) in runs.items() if engine == "communication"} == {
        "gather0",
        "gather1",
        "reduce1",
        "reduce2",
    }
    assert runs["reduce2"][1] == runs["back2"][2]
    assert any(runs[f"weight{layer}"][1] == runs["reduce2"][1] for layer in range(3))
    assert max(end for *_, end in runs.values()) == pytest.approx(report["plan"]["seconds"])


def test_the_order_of_a_document_is_evaluated_without_a_search() -> None:
    report = planned(step(), planner="as_given")
    assert report["plan"]["order"] == [[name, 0] for name in (node["name"] for node in json.loads(step())["nodes"])]
    assert report["plan"]["seconds"] == report["baseline"]["seconds"] == pytest.approx(35 * UNIT)


def test_a_saved_report_is_verified_and_an_edited_one_is_refused() -> None:
    report = json.loads(json.dumps(planned(step())))
    assert verify(report)["seconds"] == report["plan"]["seconds"]
    (text,) = [text for text in verify_certificate(certificate(report)) if "ticks" in text]
    assert text.endswith("on engines side by side (order free, phases mixed)")
    edited = copy.deepcopy(certificate(report))
    (claim,) = [claim for claim in edited["claims"] if claim["of"] == "cost"]
    claim["value"] += 1
    with pytest.raises(CertificateRejected, match=f"{claim['value']} is claimed, {claim['value'] - 1} is proven"):
        verify_certificate(edited)
    inline = json.loads(json.dumps(planned(step(), overlap=False)))
    edited = copy.deepcopy(report)
    edited["plan"]["bound"]["certificate"] = inline["plan"]["bound"]["certificate"]
    with pytest.raises(IllegalPlan, match="not the bound of engines side by side"):
        verify(edited)
    for section, field in (("overlap", "waiting_seconds"), ("plan", "seconds"), ("baseline", "seconds")):
        edited = copy.deepcopy(report)
        edited[section][field] *= 0.9
        with pytest.raises(IllegalPlan, match=field):
            verify(edited)


@pytest.mark.parametrize(
    ("document", "fields", "why"),
    [
        (step(collective=False), {}, "the graph has no collectives"),
        (step(), {"runtime": "ort"}, "the runtime ort runs nothing beside compute"),
        (step(), {"budget": None, "max_overhead": 0.1}, "a budget above 0, in bytes or as a share, is needed"),
        (step(), {"budget": 0}, "a budget above 0, in bytes or as a share, is needed"),
    ],
)
def test_a_plan_in_line_says_why(document: bytes, fields: dict[str, Any], why: str) -> None:
    report = planned(document, **fields)
    assert "overlap" not in report and f"collectives run in line with compute: {why}" in report["warnings"]


@pytest.mark.parametrize("name", ["advise", "advise_checkpoints"])
def test_advice_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=f"overlap together with {name}"):
        parse_request({"overlap": True, name: True})


def test_the_reference_does_not_depend_on_the_budget() -> None:
    references = [planned(step(), budget=count * BYTES, planner="as_given")["reference"] for count in (6, 32)]
    assert references[0] == references[1]


def test_sets_of_shapes_are_refused() -> None:
    with pytest.raises(BadRequest, match="overlap together with several sets of shapes"):
        parse_request({"overlap": True, "shapes": [{"batch": 1}, {"batch": 2}]})
