"""append_backward and calc_gradient: pruned paths, pairs, repeated calls, checks of arguments, double gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.formats.paddle.gradients import BackwardProgram, append_backward, forward_name
from graph.ir import Graph
from tests.graph.evaluate import evaluate
from tests.seeds.harness import Area, Case
from tests.seeds.numeric_area import FIELDS, Numeric
from tests.seeds.numeric_gradients import as_array
from tests.seeds.programs import given_names, opaque, ours

#: A program every argument check can be made with.
SMALL = [
    {"type": "mul", "inputs": ["x", "w"], "outputs": ["y"], "attrs": {}},
    {"type": "mean", "inputs": ["y"], "outputs": ["loss"], "attrs": {}},
]
#: Arguments in the words of a case.
ARGUMENTS = {
    "loss": "loss",
    "parameter list": "parameters",
    "no-gradient set": "no_grad",
    "callbacks": "callbacks",
    "targets": "targets",
    "inputs": "wanted",
    "target gradients": "head_gradients",
}
WRONG: dict[str, Any] = {
    "is a string": "w",
    "given as a string": "y",
    "contains a number": [7],
    "is a single variable": "w",
    "is a function instead of a list": print,
}


@dataclass
class Program:
    """One case as an opaque program; a variant is one call with a wrong argument."""

    case: Case
    arguments: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def stopped(self) -> set[str]:
        given = self.case["given"]
        names = given_names(self.case["ops"])
        frozen = set(names) - set(given["trainable"]) if "trainable" in given else set()
        return frozen | set(given.get("stop_gradient", ()))

    @cached_property
    def graph(self) -> Graph:
        return opaque(self.case, stopped=self.stopped)

    @property
    def trainable(self) -> list[str]:
        return [name for name in given_names(self.case["ops"]) if name not in self.stopped]

    def backward(self, graph: Graph | None = None, **given: Any) -> BackwardProgram:
        arguments = {"loss": list(self.case["wanted_gradients"]["targets"]), "parameters": self.trainable, **given}
        return append_backward(self.graph if graph is None else graph, **arguments)

    @cached_property
    def found(self) -> BackwardProgram:
        return self.backward()

    def gradients(self) -> dict[str, str]:
        """Gradients of every value there is, asked for one and all."""
        floating = [v.name for v in self.graph.values if v.type is not None and v.type.dtype == "float32"]
        return dict(self.backward(parameters=floating).pairs)

    def force(self) -> object:
        if not self.arguments:
            return self.found
        if self.arguments.keys() <= {"targets", "wanted", "head_gradients"}:
            return differentiate(self.graph, **{"targets": ["y"], "wanted": ["w"], **self.arguments})
        return self.backward(**self.arguments)


def argument_checks(case: Case) -> Sequence[Program]:
    small = {**case, "ops": SMALL, "wanted_gradients": {"targets": {"loss": None}}}
    found = []
    for words in case["given"]["variants"]:
        name = next(name for name in ARGUMENTS if words.startswith(name))
        found.append(Program(small, {ARGUMENTS[name]: WRONG[words.removeprefix(name).strip()]}))
    return found


def check_absent(run: Program, names: list[str]) -> None:
    assert set(names) <= {value.name for value in run.graph.values}
    assert not set(names) & run.gradients().keys()


def check_present(run: Program, names: list[str]) -> None:
    assert set(names) <= run.gradients().keys()


def check_op_types(run: Program, types: list[str]) -> None:
    """Ops in order; the constant that starts them and sums are compared where the list has any."""
    left_out = {"fill_constant", "sum"} - set(types)
    assert [type for type in run.found.op_types if type not in left_out] == types


def check_result_sizes(run: Program, sizes: list[int]) -> None:
    """Each call goes on with the program the one before left."""
    graph, found = run.graph, []
    for call in run.case["given"]["calls"]:
        made = run.backward(graph, **call)
        found.append(len(made.pairs))
        graph = made.graph
    assert found == sizes


def check_forward_names(run: Program, names: list[str]) -> None:
    assert [forward_name(name) for name in run.case["given"]["names"]] == names


BACKWARD = Area(
    Program,
    {
        "absent_gradient_for": check_absent,
        "has_gradient_for": check_present,
        "gradient_op_types": check_op_types,
        "result_sizes": check_result_sizes,
        "forward_names": check_forward_names,
    },
    force=lambda run: run.force(),
    variants=argument_checks,
)


@BACKWARD.sentence(r"no error")
def nothing_is_refused(run: Program, words: re.Match[str]) -> None:
    assert run.backward().graph.nodes[: len(run.graph.nodes)] == run.graph.nodes


@BACKWARD.sentence(r"no parameter has a gradient")
def no_parameter_has_one(run: Program, words: re.Match[str]) -> None:
    assert run.found.pairs == []


@BACKWARD.sentence(r"the source op is not on the gradient path")
def sources_are_not_differentiated(run: Program, words: re.Match[str]) -> None:
    sources = {op["outputs"][0] for op in run.case["ops"] if not op["inputs"]}
    assert sources
    wanted = [value.name for value in run.graph.values]
    made = run.backward(parameters=wanted).graph
    of = {node.annotations.get("gradient_of") for node in made.nodes[len(run.graph.nodes) :]}
    written = {node.name for node in run.graph.nodes for v in node.writes if run.graph.values[v].name in sources}
    assert of and not of & written


@BACKWARD.sentence(r"calling again on the same program is allowed; later gradients get fresh names")
def later_gradients_are_new(run: Program, words: re.Match[str]) -> None:
    once = run.backward()
    twice = run.backward(once.graph)
    names = [gradient for _, gradient in (*once.pairs, *twice.pairs)]
    assert len(set(names)) == len(names) == 2 * len(once.pairs) > 0


class Calculated(Numeric):
    """One case of calc_gradient; ops of type GRADIENT are requests of their own, made one after the other."""

    def __init__(self, case: Case, changed: dict[str, Any] | None = None):
        super().__init__(case)
        self.changed = changed or {}

    @cached_property
    def contents(self) -> dict[str, np.ndarray]:
        given = {name: as_array(content) for name, content in self.case["given"].get("values", {}).items()}
        return given or {name: np.ones((2, 2), np.float32) for name in given_names(self.case["ops"])}

    @cached_property
    def chained(self) -> tuple[Graph, dict[str, str]]:
        """The graph after every request, and what the values the case names are called in it."""
        from graph.ops.registry.onnx_fallback import type_of_array

        steps = [op for op in self.case["ops"] if op["type"] == "GRADIENT"]
        ops = [op for op in self.case["ops"] if op["type"] != "GRADIENT"]
        types = {name: type_of_array(array) for name, array in self.contents.items()}
        graph = ours(self.case, types, [name for op in ops for name in op["outputs"]], ops=ops)
        called: dict[str, str] = {}

        def of(names: Any) -> list[str]:
            return [called.get(name, name) for name in (names if isinstance(names, list) else [names])]

        for step in steps:
            targets, wanted, *heads = step["inputs"]
            before = len(graph.gradients)
            graph = differentiate(graph, of(targets), of(wanted), head_gradients=of(heads[0]) if heads else {})
            for (_, gradient), name in zip(graph.gradients[before:], step["outputs"], strict=True):
                called[name] = graph.values[gradient].name
        return graph, called

    def value(self, name: str) -> np.ndarray:
        if not any(op["type"] == "GRADIENT" for op in self.case["ops"]):
            return super().value(name)
        graph, called = self.chained
        return evaluate(graph, self.contents)[called.get(name, name)]

    @cached_property
    def asked(self) -> Graph:
        """The request, with what a variant changes in it."""
        from graph.ops.registry.onnx_fallback import type_of_array

        wanted = self.case["wanted_gradients"]
        contents = {**self.contents, **self.changed.get("more", {})}
        graph = ours(self.case, {name: type_of_array(array) for name, array in contents.items()}, [])
        targets = self.changed.get("targets", list(wanted["targets"]))
        heads = self.changed.get("head_gradients", list(wanted["targets"].values()))
        return differentiate(graph, targets, wanted["wrt"], head_gradients=heads)


def calls(case: Case) -> Sequence[Calculated]:
    """Requests whose target gradients do not fit."""
    (first, *_) = case["wanted_gradients"]["targets"]
    second = next(name for op in case["ops"] for name in op["outputs"] if name != first)
    counts = {"one": 1, "two": 2, "three": 3}
    found = []
    for words in case["given"]["variants"]:
        number = re.fullmatch(r"(\w+) targets? and (\w+) target gradients?", words)
        if number is not None:
            targets = [first, second][: counts[number[1]]]
            found.append(Calculated(case, {"targets": targets, "head_gradients": [None] * counts[number[2]]}))
        else:
            assert words == "target gradient of another shape than the target"
            more = {"wide": np.ones((5, 7), np.float32)}
            found.append(Calculated(case, {"more": more, "head_gradients": ["wide"]}))
    return found


def check_result(run: Calculated, expected: dict[str, str | None]) -> None:
    found = {run.asked.values[v].name for v, _ in run.asked.gradients}
    words: dict[str, str | None] = {name: "a gradient" if name in found else None for name in expected}
    assert words == expected


CALC = Area(Calculated, {**FIELDS, "result": check_result}, force=lambda run: run.asked, variants=calls)


@BACKWARD.sentence(
    r"the (?P<place>fourth) only holds in newer versions; older ones cut at the first marker and give (?P<old>\w+)"
)
def a_name_is_cut_at_its_own_marker(run: Program, words: re.Match[str]) -> None:
    name = run.case["given"]["names"][3]
    assert name.split("@GRAD")[0] == words["old"] != forward_name(name)


@BACKWARD.sentence(r"Upstream does not spell out the forward list of (?P<layer>fc); it only asserts the reversal\.")
def gradient_ops_are_reversed(run: Program, words: re.Match[str]) -> None:
    found = [type for type in run.found.op_types if type != "fill_constant"]
    assert found == [f"{op['type']}_grad" for op in reversed(run.case["ops"])]
