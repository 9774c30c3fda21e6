"""Parts of programs: what some values need, borders, dead ops, reshape groups."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from graph.ir import Graph
from graph.ssa.naming import versions_of_graph
from graph.transforms.boundary import boundary
from graph.transforms.dead_code import without_dead_nodes
from graph.transforms.extract import extract
from graph.transforms.remove_reshapes import reshape_groups, without_reshapes
from tests.seeds.harness import Area, Case
from tests.seeds.mutable import document, first_read, graph_of, inputs_of, ops_of, outputs_of, read, same_ops


class Part:
    """One case; each part of the answer is made when it is asked for."""

    def __init__(self, case: Case):
        self.case, self.given = case, case["given"]

    @property
    def prefix(self) -> str:
        """What stands in front of new names, as the notes say."""
        match = re.search(r"prefixed '([^']*)'", self.case.get("notes", ""))
        return match[1] if match else ""

    @cached_property
    def rewritten(self) -> Graph:
        graph = graph_of(self.case)
        if "wanted_blobs" in self.given:
            given, wanted = self.given["given_blobs"], [f"{name}@last" for name in self.given["wanted_blobs"]]
            if isinstance(given, dict):
                return extract(graph, wanted, {f"{old}@last": new for old, new in given.items()}, self.prefix)
            return extract(graph, wanted, [f"{name}@last" for name in given], self.prefix)
        if "params" in self.given:
            return without_reshapes(graph)
        return without_dead_nodes(graph)

    def force(self) -> None:
        assert self.rewritten


def number_of_ops(run: Part, expected: int) -> None:
    assert len(run.rewritten.nodes) == expected


def ops(run: Part, expected: list[dict[str, Any]]) -> None:
    assert same_ops(ops_of(run.rewritten), expected)


def ops_either(run: Part, expected: list[list[dict[str, Any]]]) -> None:
    """Every alternative is what comes out under one choice of the side-effect flag of ops without outputs."""
    found = []
    for effect in ("pure", "once"):
        declared = first_read(run.case["ops"])
        given = document(run.case["ops"], declared, run.given.get("external_outputs", []))
        for node in given["nodes"]:
            if not node["outputs"]:
                node["effect"] = effect
        found.append(ops_of(without_dead_nodes(read(given))))
    assert all(any(same_ops(one, alternative) for one in found) for alternative in expected)


def external_inputs(run: Part, expected: list[str]) -> None:
    assert inputs_of(run.rewritten) == sorted(expected)


def external_outputs(run: Part, expected: list[str]) -> None:
    assert outputs_of(run.rewritten) == expected


def internal(run: Part, expected: list[str]) -> None:
    """Names beside the listed ones: the outside ones alone."""
    names = {name for op in ops_of(run.rewritten) for name in (*op["inputs"], *op["outputs"])}
    outside = {*inputs_of(run.rewritten), *outputs_of(run.rewritten)}
    assert names - outside <= set(expected) <= names


def border(run: Part, nodes: list[int]) -> dict[str, list[list[Any]]]:
    graph = graph_of(run.case)
    table, found = versions_of_graph(graph), boundary(graph, nodes)
    return {
        "inputs": [list(table.version(v)) for v in found.inputs],
        "outputs": [list(table.version(v)) for v in found.outputs],
    }


def boundary_inputs(run: Part, expected: list[list[Any]]) -> None:
    assert border(run, run.given["sub_graph"])["inputs"] == expected


def boundary_outputs(run: Part, expected: list[list[Any]]) -> None:
    assert border(run, run.given["sub_graph"])["outputs"] == expected


def also(run: Part, expected: dict[str, dict[str, Any]]) -> None:
    """Borders of further groups, each named by the list of its ops."""
    for group, sides in expected.items():
        assert border(run, json.loads(group)) == sides


def reshape_sub_graphs(run: Part, expected: list[list[int]]) -> None:
    assert reshape_groups(graph_of(run.case)) == expected


def params(run: Part, expected: list[str]) -> None:
    found = [value.name for value in run.rewritten.values if value.role == "parameter"]
    assert sorted(found) == sorted(expected)


def unchanged(run: Part, expected: bool) -> None:
    assert (ops_of(run.rewritten) == run.case["ops"]) is expected


AREA = Area(
    Part,
    {
        "number_of_ops": number_of_ops,
        "ops": ops,
        "ops_either": ops_either,
        "external_inputs": external_inputs,
        "external_outputs": external_outputs,
        "internal": internal,
        "inputs": boundary_inputs,
        "outputs": boundary_outputs,
        "also": also,
        "reshape_sub_graphs": reshape_sub_graphs,
        "params": params,
        "unchanged": unchanged,
    },
    Part.force,
)


@AREA.sentence("upstream drops it; a service must decide by a declared side-effect flag")
def side_effects_decide(run: Part, match: object) -> None:
    ops_either(run, run.case["expected"]["ops_either"])


@AREA.sentence(r"upstream also removes (?P<op>\w+) although (?P<reader>\w+) reads its result")
def what_is_read_stays(run: Part, words: re.Match[str]) -> None:
    (made,), (read) = ([op for op in ops_of(run.rewritten) if op["type"] == words[kind]] for kind in ("op", "reader"))
    assert any(set(made["outputs"]) & set(op["inputs"]) for op in read)


@AREA.sentence(
    r"New names are prefixed '(?P<prefix>[^']+)'; given blobs keep \(or take the mapped\) names, untouched parameters "
    r"keep theirs\."
)
def only_new_names_have_the_prefix(run: Part, words: re.Match[str]) -> None:
    given = run.given["given_blobs"]
    mapped = given if isinstance(given, dict) else {name: name for name in given}
    parameters = set(first_read(run.case["ops"])) - mapped.keys()
    found = ops_of(run.rewritten)
    written = {name for op in found for name in op["outputs"]}
    assert written and all(name.startswith(words["prefix"]) for name in written)
    assert {name.removeprefix(words["prefix"]) for name in written} <= {
        name for op in run.case["ops"] for name in op["outputs"]
    }
    assert {name for op in found for name in op["inputs"]} - written <= {*mapped.values(), *parameters}


@AREA.sentence(
    r"upstream also has gradient ops of (?P<of>\w+) between (?P<after>\w+) and (?P<before>\w+); they must be ignored"
)
def gradient_ops_are_left_out(run: Part, words: re.Match[str]) -> None:
    assert words["after"] == words["of"]
    ops = list(run.case["ops"])
    (place,) = (n for n, op in enumerate(ops) if words["of"] in op["outputs"])
    assert words["before"] in ops[place + 1]["outputs"]
    gradient = f"{words['of']}_grad"
    added = [
        {"type": "ConstantFill", "inputs": [words["of"]], "outputs": [gradient], "attrs": {}},
        {
            "type": "SumGradient",
            "inputs": [gradient],
            "outputs": [f"{name}_grad" for name in ops[place]["inputs"]],
            "attrs": {},
        },
    ]
    longer = Part({**run.case, "ops": [*ops[: place + 1], *added, *ops[place + 1 :]]})
    assert ops_of(longer.rewritten) == ops_of(run.rewritten)
    assert inputs_of(longer.rewritten) == inputs_of(run.rewritten)
