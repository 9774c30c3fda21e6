"""Gradient declarations in a document: values that stop gradients, and rules of user-defined ops."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from graph.autodiff.differentiate import differentiate
from graph.errors import BadGraph
from graph.formats.native.writer import dump
from graph.formats.onnx.writer import dump as dump_onnx
from graph.formats.readers import load
from graph.ir import Graph

RULES = {"acme::Scan": {"op": "acme::ScanBackward", "reads": ["inputs[1]", "incoming"], "writes": ["inputs[0]"]}}


def document(**fields: object) -> bytes:
    #   x, w ── acme::Scan ── h ── MatMul(h, frozen) ── y
    shape = {"shape": [2, 2], "dtype": "float32"}
    return json.dumps(
        {
            "format": "remat/1",
            "values": [
                {"name": "x", "role": "parameter", **shape},
                {"name": "w", "role": "parameter", **shape},
                {"name": "frozen", "role": "parameter", "stop_gradient": True, **shape},
                {"name": "h", **shape},
            ],
            "nodes": [
                {"name": "scan", "op": "acme::Scan", "inputs": ["x", "w"], "outputs": ["h"]},
                {"name": "fc", "op": "MatMul", "inputs": ["h", "frozen"], "outputs": ["y"]},
            ],
            "outputs": ["y"],
            "gradient_rules": RULES,
            **fields,
        }
    ).encode()


def names(graph: Graph) -> dict[str, str]:
    return {graph.values[v].name: graph.values[dv].name for v, dv in graph.gradients}


def test_a_value_that_stops_gradients_is_not_trained():
    graph = differentiate(load(document()), ["y"])
    assert set(names(graph)) == {"x"}


def test_a_declared_gradient_has_the_declared_operands():
    graph = differentiate(load(document()), ["y"])
    (node,) = [node for node in graph.nodes if node.op == "acme::ScanBackward"]
    assert [graph.values[v].name for v in node.inputs] == ["w", "grad/fc"]
    assert [graph.values[v].name for v in node.outputs] == [names(graph)["x"]]


@pytest.mark.parametrize("form", ["rows", "columns", "onnx"])
def test_stop_gradient_and_declared_rules_survive_every_format(form):
    graph = load(document())
    written = dump_onnx(graph) if form == "onnx" else dump(graph, form)
    again = load(written)
    assert again.gradient_rules == RULES
    assert [value.name for value in again.values if value.stop_gradient] == ["frozen"]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ({"reads": ["mystery"]}, "foreign_gradient_read"),
        ({"reads": ["inputs[7]"]}, "foreign_gradient_read"),
        ({"reads": "inputs"}, "bad_request"),
        ({"writes": ["outputs[0]"]}, "bad_request"),
        ({"writes": [{"rows_of": "inputs[0]", "count": -1}]}, "bad_request"),
        ({"writes": ["inputs[9]"]}, "foreign_gradient_read"),
        ({"reeds": []}, "unknown_field"),
        ({"op": 7}, "bad_request"),
        ("maybe", "bad_request"),
        ("refused", "gradient_refused"),
        ("missing", "no_gradient"),
    ],
)
def test_an_invalid_declaration_is_refused(rule, code):
    with pytest.raises(BadGraph) as raised:
        differentiate(load(document(gradient_rules={"acme::Scan": rule})), ["y"])
    assert code in [finding.code for finding in raised.value.findings]


def test_a_rule_none_stops_the_gradient():
    assert names(differentiate(load(document(gradient_rules={"acme::Scan": "none"})), ["y"])) == {}


def test_a_rule_of_the_request_overrides_the_document():
    graph = load(document())
    from graph.autodiff.resolve_names import GradientOptions

    found = differentiate(graph, ["y"], options=GradientOptions(gradient_rules={"acme::Scan": {"op": "acme::Other"}}))
    assert "acme::Other" in {node.op for node in found.nodes}
    assert names(found) == {"x": "grad/scan:0", "w": "grad/scan:1"}
    assert replace(graph, name="") != found
