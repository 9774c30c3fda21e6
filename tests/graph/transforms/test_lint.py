"""Lint findings on legal graphs."""

from __future__ import annotations

from graph.transforms.lint import lint_findings
from tests.graph.ssa.programs import Program, program, read

GIVEN = {"x": "input"}


def codes(document: Program) -> list[tuple[str, str]]:
    return [(finding.code, finding.path) for finding in lint_findings(read(document))]


def test_a_graph_without_unused_parts_has_no_findings():
    assert codes(program("a: x -> y", "b: y -> y", given=GIVEN, outputs=["y"])) == []


def test_an_unread_barrier_is_reported_unless_it_overwrites_its_input():
    beside = program("StopGradient: x -> y", "a: x -> z", given=GIVEN, outputs=["z"])
    assert ("orphan_barrier", "nodes[0]") in codes(beside)
    behind = program("StopGradient: x -> x", "a: x -> z", given=GIVEN, outputs=["z"])
    assert codes(behind) == []
    in_place = program("a: x -> z", "StopGradient: x -> x", given=GIVEN, outputs=["z"])
    assert "orphan_barrier" not in [code for code, _ in codes(in_place)]


def test_a_version_overwritten_before_a_read_is_reported():
    document = program("a: x -> y", "b: x -> y", given=GIVEN, outputs=["y"])
    assert codes(document) == [("overwritten_unread", "nodes[0].outputs[0]"), ("dead_node", "nodes[0]")]


def test_unread_values_are_reported():
    document = program("a: x -> y", given={**GIVEN}, outputs=["y"])
    document["values"].append({"name": "w", "bytes": 4, "role": "parameter"})
    assert codes(document) == [("unused_value", "values[2]")]


def test_reads_from_another_device_are_reported():
    document = program("a: x -> y", "b: y -> z", given=GIVEN, outputs=["z"])
    for node, device in zip(document["nodes"], ("gpu:0", "gpu:1"), strict=True):
        node["annotations"] = {"device": device}
    assert codes(document) == [("device_conflict", "nodes[1]")]


def test_at_most_ten_findings_per_kind_are_reported():
    document = program(*[f"a{i}: x -> y{i}" for i in range(30)], given=GIVEN)
    assert [code for code, _ in codes(document)] == ["dead_node"] * 10
