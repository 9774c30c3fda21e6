"""Programs with mutable names: from lines of text, or random by hypothesis."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from graph.execution.interpreter import execute
from graph.formats.document.schema import Document
from graph.formats.readers import load
from graph.ir import Graph

Program = dict[str, Any]
SHAPE = (4,)
UNARY, BINARY = ("Relu", "Neg", "Tanh"), ("Add", "Sub", "Mul")


def program(*lines: str, outputs: Sequence[str] = (), given: Mapping[str, str] | None = None, **rest: Any) -> Program:
    """A mutable document of ops `a: x w -> y`, each named as its op; `given`: name -> role of inputs."""
    nodes = []
    for line in lines:
        name, _, names = line.partition(":")
        inputs, _, made = names.partition("->")
        nodes.append({"name": name, "op": f"my::{name}", "inputs": inputs.split(), "outputs": made.split()})
    used = dict.fromkeys(name for node in nodes for name in (*node["inputs"], *node["outputs"]))
    roles = given or {}
    values = [{"name": name, "bytes": 4, "role": roles.get(name, "activation")} for name in used]
    return {
        "format": "remat/1",
        "naming": "mutable",
        "values": values,
        "nodes": nodes,
        "outputs": list(outputs),
        **rest,
    }


def read(document: Program | Document) -> Graph:
    return load(msgspec.json.encode(document) if isinstance(document, Document) else json.dumps(document).encode())


def parsed(document: Program) -> Document:
    return msgspec.convert(document, Document)


@st.composite
def mutable_programs(draw: st.DrawFn, most_ops: int = 12) -> Program:
    """An executable program on float32[4] that overwrites a few names many times."""
    there = ["x", "w"]
    nodes: list[dict[str, Any]] = []
    for n in range(draw(st.integers(1, most_ops))):
        op = draw(st.sampled_from((*UNARY, *BINARY, "Split")))
        inputs = draw(st.lists(st.sampled_from(there), min_size=1 + (op in BINARY), max_size=1 + (op in BINARY)))
        names = ["x", "w", "a", "b", "a/1", "a/2"]
        if op == "Split":
            outputs = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
            nodes += [
                {
                    "name": f"n{n}",
                    "op": "Split",
                    "inputs": inputs,
                    "outputs": outputs,
                    "attributes": {"num_outputs": 2, "axis": 0},
                },
                {"name": f"m{n}", "op": "Concat", "inputs": outputs, "outputs": outputs[:1], "attributes": {"axis": 0}},
                {"name": f"k{n}", "op": "Neg", "inputs": outputs[:1], "outputs": outputs[1:]},
            ]
        else:
            outputs = [draw(st.sampled_from(names))]
            nodes.append({"name": f"n{n}", "op": op, "inputs": inputs, "outputs": outputs})
        there = list(dict.fromkeys([*there, *outputs]))
    written = sorted({name for node in nodes for name in node["outputs"]})
    return {
        "format": "remat/1",
        "naming": "mutable",
        "values": [
            {"name": "x", "shape": list(SHAPE), "dtype": "float32", "role": "input"},
            {"name": "w", "shape": list(SHAPE), "dtype": "float32", "role": "parameter"},
        ],
        "nodes": nodes,
        "outputs": draw(st.lists(st.sampled_from(written), min_size=1, max_size=3, unique=True)),
    }


def interpreted(document: Program, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the program, from an interpreter that overwrites names."""
    held = dict(feeds)
    kernels = {
        "Relu": lambda a: np.maximum(a, 0),
        "Neg": np.negative,
        "Tanh": np.tanh,
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Split": lambda a: np.split(a, 2),
        "Concat": lambda *parts: np.concatenate(parts),
    }
    for node in document["nodes"]:
        result = kernels[node["op"]](*[held[name] for name in node["inputs"]])
        results = result if node["op"] == "Split" else [result]
        held |= zip(node["outputs"], results, strict=True)
    return {name: held[name] for name in document["outputs"]}


FEEDS = {"x": np.array([1, -2, 3, 0.5], np.float32), "w": np.array([-1, 0.25, 2, 1], np.float32)}


def ran(graph: Graph) -> list[np.ndarray]:
    """Outputs of the graph on `FEEDS`, in their order."""
    done = execute(graph, {graph.values[v].name: FEEDS[graph.values[v].name] for v in given(graph)})
    return [done.outputs[graph.values[v].name] for v in graph.outputs]


def given(graph: Graph) -> list[int]:
    return [v for v, value in enumerate(graph.values) if value.name in FEEDS and value.role != "activation"]
