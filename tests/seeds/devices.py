"""Devices: where values lie, copies that are missing, copies that only go there and back."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from graph.formats.caffe2.compat.devices import copy_name, copy_op, device_rule, operand_devices
from graph.ir import Graph
from graph.ssa.naming import versions_of_graph
from graph.transforms.copy_fusion import without_round_trips
from graph.transforms.device_placement import HOST, CopyStyle, OperandDevices, device_of, with_copies
from graph.transforms.status_propagation import infer_status
from tests.seeds.harness import Area, Case, check_refused
from tests.seeds.mutable import graph_of, ops_of, same_ops

CAFFE2 = CopyStyle(copy_op, copy_name, operand_devices)


class Placement:
    """One case; each part of the answer is made when it is asked for."""

    def __init__(self, case: Case):
        self.case, self.given = case, case["given"]

    @property
    def is_placed(self) -> bool:
        return any("device" in op["attrs"] for op in self.case["ops"])

    @cached_property
    def rewritten(self) -> Graph:
        graph = graph_of(self.case)
        if not self.is_placed:
            return without_round_trips(graph)
        return with_copies(graph, self.said, style=CAFFE2).graph

    @property
    def said(self) -> dict[str, str]:
        """Where names lie: `"data_device": "cpu"`, or a table of them."""
        said = {key.removesuffix("_device"): value for key, value in self.given.items() if key.endswith("_device")}
        return {**said, **self.given.get("blob_devices", {})}

    @cached_property
    def status(self) -> dict[str, str]:
        graph = graph_of(self.case)
        table = versions_of_graph(graph)
        found = infer_status(graph, device_rule, self.given.get("known", {}))
        return {"{}@{}".format(*table.version(v)): status for v, status in enumerate(found) if status is not None}

    def force(self) -> None:
        assert self.status if "known" in self.given else self.rewritten

    def with_op(self, kind: str, device: str, inputs: list[str], outputs: list[str]) -> Placement:
        op = {"type": kind, "inputs": inputs, "outputs": outputs, "attrs": {"device": device}}
        return Placement({**self.case, "ops": [*self.case["ops"], op]})


def variants(case: Case) -> list[Placement]:
    hints = case["given"].get("known_variants", [])
    return [Placement({**case, "given": {**case["given"], "known": known}}) for known in hints]


def ops(run: Placement, expected: list[dict[str, Any]]) -> None:
    assert same_ops(ops_of(run.rewritten), expected)


def unchanged(run: Placement, expected: bool) -> None:
    assert (ops_of(run.rewritten) == run.case["ops"]) is expected


def status(run: Placement, expected: dict[str, str]) -> None:
    assert run.status == expected


def blob_devices(run: Placement, expected: dict[str, str]) -> None:
    """Where the names of the program lie at its end."""
    placed = with_copies(graph_of(run.case), run.said, style=CAFFE2)
    assert {name: placed.devices.get(name) for name in expected} == expected


def input_devices(run: Placement, expected: list[str]) -> None:
    """Where the last op of the program has its inputs."""
    assert sides_of_last(run)[0] == expected


def output_devices(run: Placement, expected: list[str]) -> None:
    assert sides_of_last(run)[1] == expected


def sides_of_last(run: Placement) -> OperandDevices:
    node = graph_of(run.case).nodes[-1]
    return operand_devices(node, device_of(node) or HOST)


def then_adding(run: Placement, expected: dict[str, Any]) -> None:
    """The program with one more op, such as "Relu gpu:1: x -> y", is accepted or refused."""
    for text, outcome in expected.items():
        match = re.fullmatch(r"(\w+) (\S+): (.*) -> (.*)", text)
        assert match is not None, text
        longer = run.with_op(match[1], match[2], match[3].split(), match[4].split())
        if isinstance(outcome, dict):
            check_refused(longer.force, outcome["error"])
        else:
            assert outcome == "accepted"
            longer.force()


AREA = Area(
    Placement,
    {
        "ops": ops,
        "unchanged": unchanged,
        "status": status,
        "then_adding": then_adding,
        "blob_devices": blob_devices,
        "input_devices": input_devices,
        "output_devices": output_devices,
    },
    Placement.force,
    variants,
)
