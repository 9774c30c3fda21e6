"""Programs of cases that write names more than once, as documents and back.

Ops we know by value run as ours; every other one is opaque. What a case calls the op, and its attributes, stay
as annotations, so that what comes out can be held against what is expected.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from graph.formats.document.schema import Document, NodeRow
from graph.formats.native.mutable_names import mutable_document
from graph.formats.readers import load
from graph.ir import Graph
from tests.seeds.harness import Case

Op = dict[str, Any]
SHAPE = (4, 4)  # of every value: square, so that dense ops fit
#: Ops of the cases that run as ours.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "FC": ("Gemm", {"transB": 1}),
    "Add": ("Add", {}),
    "Sum": ("Sum", {}),
    "Sub": ("Sub", {}),
    "Mul": ("Mul", {}),
    "Relu": ("Relu", {}),
    "Tanh": ("Tanh", {}),
    "Sigmoid": ("Sigmoid", {}),
}


def document(ops: Sequence[Op], declared: Sequence[str], outputs: Sequence[str], params: Sequence[str] = ()) -> Op:
    """A mutable document of the ops, in which the `declared` names come from outside."""
    made = dict.fromkeys(name for op in ops for name in op["outputs"])
    return {
        "format": "remat/1",
        "naming": "mutable",
        "values": [
            {"name": name, "shape": list(SHAPE), "dtype": "float32", "role": "parameter" if name in params else "input"}
            for name in declared
        ]
        + [{"name": name, "shape": list(SHAPE), "dtype": "float32"} for name in made if name not in declared],
        "nodes": [_node(n, op, all(op["type"] in OURS for op in ops)) for n, op in enumerate(ops)],
        "outputs": list(outputs),
    }


def _node(n: int, op: Op, runs: bool) -> dict[str, Any]:
    name, attributes = OURS[op["type"]] if runs else (f"caffe2::{op['type']}", {})
    attrs = {key: value for key, value in op["attrs"].items() if key != "device"}
    annotations = {"type": op["type"], "attrs": attrs}
    if "device" in op["attrs"]:
        annotations["device"] = op["attrs"]["device"]
    return {
        "name": f"op{n}",
        "op": name,
        "attributes": attributes,
        "annotations": annotations,
        "inputs": op["inputs"],
        "outputs": op["outputs"],
    }


def read(given: Op) -> Graph:
    return load(json.dumps(given).encode())


def parsed(given: Op) -> Document:
    return msgspec.convert(given, Document)


def first_read(ops: Sequence[Op]) -> list[str]:
    """Names that are read before any op writes them."""
    written: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update((name, None) for name in op["inputs"] if name not in written)
        written.update(op["outputs"])
    return list(found)


def graph_of(case: Case) -> Graph:
    """The main program of a case; what is read first comes from outside, in the declared order."""
    given = case["given"]
    declared = dict.fromkeys([*given.get("external_inputs", []), *first_read(case["ops"])])
    return read(document(case["ops"], list(declared), given.get("external_outputs", []), given.get("params", [])))


def ops_of(graph: Graph) -> list[Op]:
    """The ops of a graph as cases write them, under the names it has when names may be written again."""
    return [_op(node) for node in mutable_document(graph).nodes]


def _op(node: NodeRow) -> Op:
    notes = node.annotations or {}
    attrs = {**notes.get("attrs", {}), **({"device": notes["device"]} if "device" in notes else {})}
    kind = notes.get("type", node.op.rpartition("::")[2])
    return {"type": kind, "inputs": node.inputs, "outputs": node.outputs, "attrs": attrs}


def same_ops(found: Sequence[Op], expected: Sequence[Op]) -> bool:
    """True when the ops are those expected, in order; attributes that are not listed are left open."""
    return len(found) == len(expected) and all(
        {**one, "attrs": {}} == {**other, "attrs": {}} and other["attrs"].items() <= one["attrs"].items()
        for one, other in zip(found, expected, strict=True)
    )


def inputs_of(graph: Graph) -> list[str]:
    """What comes from outside, parameters included, by name."""
    return sorted(value.name for value in graph.values if value.role != "activation")


def outputs_of(graph: Graph) -> list[str]:
    return mutable_document(graph).outputs
