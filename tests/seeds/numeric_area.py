"""Gradients with numbers, and of one graph against another's."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from graph.autodiff.differentiate import differentiate
from tests.graph.evaluate import evaluate
from tests.seeds.harness import Area, Case, Check, check_tolerance
from tests.seeds.numeric_gradients import Numbers, numbers_of

GRADIENT = re.compile(r"grad:(\S+)")


class Numeric:
    """One case with numbers, and what else it compares with."""

    def __init__(self, case: Case):
        self.case = case

    @cached_property
    def numbers(self) -> Numbers:
        return numbers_of(self.case)

    @cached_property
    def second(self) -> Numbers:
        """The other graph of the case: a program for the same function."""
        ops = self.case["given"]["second_graph"]
        targets = {ops[-1]["outputs"][0]: None}
        case = {**self.case, "ops": ops, "wanted_gradients": {**self.case["wanted_gradients"], "targets": targets}}
        return numbers_of(case)

    def value(self, name: str) -> np.ndarray:
        """A gradient ("grad:x"), one of the gradient ("grad2:x"), or a value by its name."""
        numbers = self.numbers
        if name.startswith("grad2:"):
            return self.twice()[name.removeprefix("grad2:")]
        match = GRADIENT.fullmatch(name)
        if match is not None:
            return numbers.gradients[match[1]]
        return numbers.values[name] if name in numbers.values else self.second.values[name]

    def twice(self) -> dict[str, np.ndarray]:
        """Gradients of what `then` names, a gradient of the first time."""
        then = self.case["wanted_gradients"]["then"]
        numbers = self.numbers
        once = numbers.graph
        gradient = dict(once.gradients)[once.value_named(then["target"].removeprefix("grad:"))]
        graph = differentiate(once, [once.values[gradient].name], then["wrt"])
        found = evaluate(graph, numbers.contents)
        pairs = graph.gradients[len(once.gradients) :]
        return {graph.values[v].name: found[graph.values[dv].name] for v, dv in pairs}


def check_values(run: Any, expected: dict[str, Any]) -> None:
    tolerance = run.case["expected"].get("tolerance", 1e-6)
    for name, content in expected.items():
        np.testing.assert_allclose(run.value(name), np.asarray(content, np.float64), rtol=tolerance, atol=tolerance)
        assert run.value(name).shape == np.asarray(content).shape


FIELDS: dict[str, Check] = {"values": check_values, "tolerance": check_tolerance}
AREA = Area(Numeric, FIELDS, force=lambda run: run.numbers.gradients)


@AREA.sentence(r"both graphs agree")
def both_graphs_agree(run: Numeric, words: re.Match[str]) -> None:
    first, second = run.numbers, run.second
    (a,), (b,) = first.targets, second.targets
    np.testing.assert_allclose(first.values[a], second.values[b])
    assert first.gradients.keys() == second.gradients.keys()
    for name, gradient in first.gradients.items():
        np.testing.assert_allclose(gradient, second.gradients[name])


@AREA.sentence(r"(?P<output>\w+) == (?P<input>\w+)")
def the_output_is_the_input(run: Numeric, words: re.Match[str]) -> None:
    np.testing.assert_array_equal(run.value(words["output"]), run.numbers.contents[words["input"]])


@AREA.sentence(r"grad:(?P<input>\w+) == (?P<sign>-?)grad:(?P<output>\w+)")
def the_gradient_is_the_incoming_one(run: Numeric, words: re.Match[str]) -> None:
    both = run.numbers.asked_for([words["input"], words["output"]]).gradients
    sign = -1 if words["sign"] else 1
    np.testing.assert_array_equal(both[words["input"]], sign * both[words["output"]])


@AREA.sentence(r"the op may run in place")
def the_op_may_run_in_place(run: Numeric, words: re.Match[str]) -> None:
    """Writing its own input's name, it gives the same value and gradient."""
    (op,) = run.case["ops"]
    (source,), (made,) = op["inputs"], op["outputs"]
    name, target = f"{source}/1", {f"{source}/1": None}
    case = {**run.case, "ops": [{**op, "outputs": [source]}], "wanted_gradients": {"targets": target, "wrt": [source]}}
    over = numbers_of({**case, "given": {**run.case["given"], "graph_outputs": [source]}})
    np.testing.assert_array_equal(over.values[name], run.value(made))
    np.testing.assert_array_equal(over.gradients[source], run.value(f"grad:{source}"))
