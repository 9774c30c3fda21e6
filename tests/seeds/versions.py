"""Versions of names: tables, one name for each version, renaming of one version."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from graph.execution.interpreter import execute
from graph.formats.caffe2.compat.names import VersionedProgram, with_version_names
from graph.ir import Graph
from graph.ssa import VersionTable, versions_of
from graph.transforms.rename import rename_initial_graph, rename_input, rename_output
from tests.seeds.harness import Area, Case
from tests.seeds.mutable import document, graph_of, inputs_of, ops_of, outputs_of, parsed, read, same_ops


class Program:
    """One case; each part of the answer is made when it is asked for."""

    def __init__(self, case: Case):
        self.case, self.given = case, case["given"]

    @cached_property
    def table(self) -> VersionTable:
        declared = self.given.get("external_inputs", [])
        return versions_of(parsed(document(self.case["ops"], declared, [])), self.given.get("start_versions", {}))

    @cached_property
    def initial(self) -> Graph | None:
        ops = self.given.get("init_ops")
        return None if ops is None else read(document(ops, [], [name for op in ops for name in op["outputs"]]))

    @cached_property
    def versioned(self) -> VersionedProgram:
        return with_version_names(graph_of(self.case), "all", self.initial)

    @cached_property
    def rewritten(self) -> tuple[Graph, Graph | None]:
        """The program, and the one that makes its parameters, after what the case asks for."""
        graph = graph_of(self.case)
        if "rename_output" in self.given:
            asked = self.given["rename_output"]
            after = rename_output(graph, asked["op"], asked["index"], asked["to"])
        elif "rename_input" in self.given:
            asked = self.given["rename_input"]
            from_producer = asked.get("from_producer", False)
            after = rename_input(graph, asked["op"], asked["index"], asked["to"], from_producer=from_producer)
        else:
            return self.versioned.graph, self.versioned.initial
        return after, None if self.initial is None else rename_initial_graph(graph, after, self.initial)

    def force(self) -> None:
        assert self.table and self.rewritten


def ssa(run: Program, expected: list[dict[str, Any]]) -> None:
    sides = [run.table.versioned(op) for op in range(len(run.table.reads))]
    found = [{"in": list(map(list, read)), "out": list(map(list, written))} for read, written in sides]
    assert found == expected


def final_versions(run: Program, expected: dict[str, int]) -> None:
    assert run.table.final_numbers() == expected


def undefined(run: Program, expected: list[str]) -> None:
    assert sorted(run.table.names[v] for v in run.table.undefined()) == sorted(expected)


def undeclared(run: Program, expected: list[str]) -> None:
    assert sorted(run.table.names[v] for v in run.table.undeclared) == sorted(expected)


def producers(run: Program, expected: dict[str, list[int]]) -> None:
    """Op and output slot per version, such as {"y@1": [0, 0]}."""
    table = run.table
    found = {name(table, v): list(place) for v, place in enumerate(table.producers()) if place is not None}
    assert found == expected


def consumers(run: Program, expected: dict[str, list[list[int]]]) -> None:
    """Ops and input slots per version that is read, such as {"y@1": [[1, 0], [2, 0]]}."""
    table = run.table
    found = {name(table, v): list(map(list, places)) for v, places in enumerate(table.consumers()) if places}
    assert found == expected


def name(table: VersionTable, v: int) -> str:
    return "{}@{}".format(*table.version(v))


def ops(run: Program, expected: list[dict[str, Any]]) -> None:
    assert same_ops(ops_of(run.rewritten[0]), expected)


def external_inputs(run: Program, expected: list[str]) -> None:
    assert inputs_of(run.rewritten[0]) == sorted(expected)


def external_outputs(run: Program, expected: list[str]) -> None:
    assert outputs_of(run.rewritten[0]) == expected


def init_outputs(run: Program, expected: list[str]) -> None:
    assert run.rewritten[1] is not None
    assert outputs_of(run.rewritten[1]) == expected


def value_info(run: Program, expected: list[str]) -> None:
    """What is known of a value stays with it under its new name."""
    before, after = graph_of(run.case), run.rewritten[0]
    told = {before.value_named(name) for name in run.given["value_info"]}
    assert [after.values[v].name for v in sorted(told)] == expected
    assert all(before.values[v].type == after.values[v].type for v in told)


AREA = Area(
    Program,
    {
        "ssa": ssa,
        "final_versions": final_versions,
        "undefined": undefined,
        "undeclared": undeclared,
        "producers": producers,
        "consumers": consumers,
        "producer_map": producers,
        "consumer_map": consumers,
        "ops": ops,
        "external_inputs": external_inputs,
        "external_outputs": external_outputs,
        "init_outputs": init_outputs,
        "value_info": value_info,
    },
    Program.force,
)


@AREA.sentence("running the rewritten graph gives the same numbers")
def same_numbers(run: Program, match: object) -> None:
    before, after = graph_of(run.case), run.rewritten[0]
    feeds = {
        value.name: np.random.default_rng(v).standard_normal((4, 4), np.float32)
        for v, value in enumerate(before.values)
        if value.role != "activation"
    }
    renamed = {after.values[v].name: feeds[value.name] for v, value in enumerate(before.values) if value.name in feeds}
    one, other = execute(before, feeds), execute(after, renamed)
    for left, right in zip(one.outputs.values(), other.outputs.values(), strict=True):
        np.testing.assert_array_equal(left, right)


@AREA.sentence(
    "an undeclared read counts as version 0 but is absent from the final version map; "
    "a service should report it as an undeclared input"
)
def undeclared_is_told(run: Program, match: object) -> None:
    undeclared = [run.table.version(v) for v in run.table.undeclared]
    assert undeclared and all(version == 0 for _, version in undeclared)
    written = {name for op in run.case["ops"] for name in op["outputs"]}
    assert not {name for name, _ in undeclared} - written & run.table.final_numbers().keys()
    assert not {name for name, _ in undeclared} & set(run.given["external_inputs"])
