"""Cases as programs: their ops as ops of ours, by the tables of the readers, or opaque as the originals name them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from graph.errors import Findings
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.mxnet.ops import MXNET
from graph.formats.mxnet.shapes import shapes_of_inputs
from graph.formats.paddle.ops import PADDLE
from graph.formats.readers import load
from graph.formats.shared.attributes import Attributes
from graph.formats.shared.op_table import OpTable
from graph.formats.shared.program import Program
from graph.ir import Graph, TensorType
from graph.limits import Limits
from tests.seeds.harness import Case

TABLES = {"caffe2": CAFFE2, "mxnet": MXNET, "paddle": PADDLE}
#: Ops whose gradient is what they are there for: ours, whatever a case calls them.
MARKS = {"StopGradient": "remat::StopGradient", "ZeroGradient": "remat::ZeroGradient"}
NONE: Mapping[str, Any] = MappingProxyType({})
SHAPE = (2, 3)  # of what a case says nothing of


def given_names(ops: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names read before any op writes them, in order."""
    written: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update(dict.fromkeys(name for name in op["inputs"] if name not in written))
        written.update(op["outputs"])
    return list(found)


def opaque(case: Case, extra: Sequence[str] = (), stopped: Collection[str] = ()) -> Graph:
    """The case's ops as opaque `system::Type`, names written more than once; `extra` are further inputs.

    Values are float32 [1], unless an op says by `dtype` what it makes. Gradients do not pass `stopped`.
    """
    system = case["source_project"]
    roles = dict.fromkeys([*given_names(case["ops"]), *extra], "input")
    dtypes = {name: op["attrs"].get("dtype", "float32") for op in case["ops"] for name in op["outputs"]}
    for name in dtypes:
        roles.setdefault(name, "activation")
    values = [
        {
            "name": name,
            "shape": [1],
            "dtype": dtypes.get(name, "float32"),
            "role": role,
            "stop_gradient": name in stopped,
        }
        for name, role in roles.items()
    ]
    nodes = []
    for n, op in enumerate(case["ops"]):
        notes = {"device": op["attrs"]["device"]} if "device" in op["attrs"] else {}
        nodes.append(
            {
                "name": f"op{n}",
                "op": MARKS.get(op["type"], f"{system}::{op['type']}"),
                "inputs": op["inputs"],
                "outputs": op["outputs"],
                "annotations": notes,
                "attributes": {k: v for k, v in op["attrs"].items() if k != "device"},
            }
        )
    targets = case["wanted_gradients"].get("targets")
    outputs = [target for target in targets if target in roles] if isinstance(targets, dict) else []
    document = {"format": "remat/1", "naming": "mutable", "values": values, "nodes": nodes, "outputs": outputs}
    return load(json.dumps(document).encode())


def ours(
    case: Case,
    types: Mapping[str, TensorType],
    outputs: Sequence[str],
    left_opaque: Mapping[str, int] = NONE,
    ops: Sequence[Mapping[str, Any]] | None = None,
) -> Graph:
    """The ops of a case as ops of ours. `types` are those of what is given; what is not has the type ops ask for.

    Op types `left_opaque` stay as they are, their outputs like the input at that place.
    """
    whole = TABLES[case["source_project"]]
    table = OpTable(whole.framework)
    table.rules = {type: rule for type, rule in whole.rules.items() if type not in left_opaque}
    program = Program(table, Limits(), Findings())
    ops = case["ops"] if ops is None else ops
    for name, type in types.items():
        program.give(name, type)
    for n, op in enumerate(ops):
        shapes = shapes_of_inputs(op["type"], Attributes(op["attrs"]), [program.types.get(v) for v in op["inputs"]])
        for name, shape in zip(op["inputs"], shapes, strict=True):
            if name not in program.types:
                program.give(name, TensorType("float32", shape or SHAPE))
        like = left_opaque.get(op["type"])
        declared = [] if like is None else [program.types[op["inputs"][like]]] * len(op["outputs"])
        program.op(op["type"], f"op{n}", op["inputs"], op["outputs"], dict(op["attrs"]), declared=declared)
    return program.graph("case", outputs, {})
