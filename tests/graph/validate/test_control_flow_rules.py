"""Each way a node and its bodies can disagree has its own code, and the message names the node or the value."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from graph.errors import BadGraph, CannotExecute
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.ir import TensorType


def body(inputs: list[str], outputs: list[str], **more: Any) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs, "nodes": [], **more}


IF = {
    "name": "choose",
    "op": "If",
    "inputs": ["c"],
    "outputs": ["y"],
    "bodies": {
        "then_branch": body([], ["x"], captures={"x": "x"}),
        "else_branch": body([], ["z"], captures={"z": "x"}),
    },
}
LOOP = {
    "name": "again",
    "op": "Loop",
    "inputs": ["n", "", "x"],
    "outputs": ["y"],
    "bodies": {"body": body(["t", "going", "s"], ["going", "s"])},
}
SCAN = {
    "name": "steps",
    "op": "Scan",
    "inputs": ["x", "xs"],
    "outputs": ["y"],
    "attributes": {"num_scan_inputs": 1},
    "bodies": {"body": body(["s", "e"], ["s"])},
}


def document(node: dict[str, Any]) -> bytes:
    values = [
        {"name": "x", "shape": [3], "dtype": "float32", "role": "input"},
        {"name": "xs", "shape": [4, 3], "dtype": "float32", "role": "input"},
        {"name": "short", "shape": [2, 3], "dtype": "float32", "role": "input"},
        {"name": "c", "shape": [], "dtype": "bool", "role": "input"},
        {"name": "flags", "shape": [2], "dtype": "bool", "role": "input"},
        {"name": "n", "shape": [], "dtype": "int64", "role": "input"},
    ]
    outputs = [name for name in node["outputs"] if name]
    return json.dumps({"format": "remat/1", "values": values, "nodes": [node], "outputs": outputs}).encode()


def changed(node: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The node with fields replaced; `body`, `then_branch` and `else_branch` replace or remove a body."""
    found = copy.deepcopy(node)
    for key, value in fields.items():
        if key in ("body", "then_branch", "else_branch", "other"):
            found["bodies"].pop(key, None)
            if value is not None:
                found["bodies"][key] = value
        else:
            found[key] = value
    return found


@pytest.mark.parametrize("node", [IF, LOOP, SCAN], ids=["if", "loop", "scan"])
def test_types_inside_and_outside_are_found(node: dict[str, Any]):
    graph = load(document(node))
    assert graph.values[graph.value_named("y")].type == TensorType("float32", (3,))
    inside = next(iter(graph.nodes[0].bodies.values())).graph
    assert all(value.type is not None for value in inside.values)
    execute(graph)


FAULTS = {
    "no branch": ("missing_body", changed(IF, then_branch=None), "choose"),
    "no body": ("missing_body", changed(LOOP, body=None), "again"),
    "another body": ("unknown_body", changed(LOOP, other=body([], [])), "other"),
    "no condition": ("missing_condition", changed(IF, inputs=[]), "choose"),
    "branches of other lengths": ("branch_outputs", changed(IF, then_branch=body([], [])), "choose"),
    "branches of other types": ("type_conflict", changed(IF, else_branch=body([], ["z"], captures={"z": "xs"})), "y"),
    "one kept value too many": ("kept_values", changed(IF, else_branch=None, inputs=["c", "x", "x"]), "choose"),
    "kept beside a branch": ("body_inputs", changed(IF, inputs=["c", "x"]), "choose"),
    "a formal input too many": ("body_inputs", changed(LOOP, body=body(["t", "g", "s", "u"], ["g", "s"])), "again"),
    "no sequence": ("body_inputs", changed(SCAN, attributes={"num_scan_inputs": 3}), "steps"),
    "too few outputs": ("body_outputs", changed(LOOP, body=body(["t", "going", "s"], ["going"])), "again"),
    "a state of another type": ("state_type", changed(SCAN, body=body(["s", "e"], ["w"], captures={"w": "xs"})), "s"),
    "a condition of two": ("bad_condition", changed(IF, inputs=["flags"]), "flags"),
    "a condition of numbers": ("bad_condition", changed(LOOP, body=body(["t", "g", "s"], ["t", "s"])), "t"),
    "lengths that differ": (
        "type_conflict",
        changed(SCAN, inputs=["xs", "short"], attributes={"num_scan_inputs": 2}, body=body(["a", "b"], ["a"])),
        "short",
    ),
    "a stack of unknown length": (
        "unknown_trips",
        changed(LOOP, outputs=["y", "all"], body=body(["t", "going", "s"], ["going", "s", "s"])),
        "all",
    ),
}


ODD: list[Any] = ["x", -1, None, [], {}, 1e30, True, [5], ["a"], [[0]], 2**60, [99], [-99]]
SCANNED = ("num_scan_inputs", "scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_attributes_of_another_kind_are_refused_or_run(odd: Any):
    rows = changed(SCAN, outputs=["y", "rows"], body=body(["s", "e"], ["s", "e"]))
    nodes = [{**rows, "attributes": {"num_scan_inputs": 1, key: odd}} for key in SCANNED]
    nodes += [{**LOOP, kind: {"max_trips": odd}} for kind in ("annotations", "attributes")]
    for node in nodes:
        try:
            execute(load(document(node)), {"n": np.array(1)} if node["op"] == "Loop" else {})
        except BadGraph as refused:
            assert {finding.code for finding in refused.findings} & {"bad_attribute", "body_inputs", "unknown_size"}
        except CannotExecute as refused:
            assert "runs more than its `max_trips`" in str(refused)


@pytest.mark.parametrize(("code", "node", "named"), FAULTS.values(), ids=FAULTS)
def test_a_fault_has_its_code_and_names_its_value(code: str, node: dict[str, Any], named: str):
    with pytest.raises(BadGraph) as refused:
        load(document(node))
    assert code in [finding.code for finding in refused.value.findings], str(refused.value)
    assert repr(named) in str(refused.value)


def test_a_stack_has_the_bound_as_its_length():
    node = changed(LOOP, outputs=["y", "all"], body=body(["t", "going", "s"], ["going", "s", "s"]))
    graph = load(document({**node, "annotations": {"max_trips": 7}}))
    assert graph.values[graph.value_named("all")].type == TensorType("float32", (7, 3))
