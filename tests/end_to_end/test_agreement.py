"""Evaluator, checker and execution must agree to the byte; breaking one is seen by the others."""

from __future__ import annotations

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.ir import Graph, Phase, Role, TensorType
from planner.errors import IllegalPlan
from planner.formulation import formulate
from planner.formulation.formulation import Formulation
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.problem import liveness
from planner.request.plan_request import parse_request

F = TensorType("float32", (16, 16))


def training_chain(depth: int = 6) -> Graph:
    """x ─ tanh ─ a0 ─ tanh ─ a1 ...; backwards each node multiplies by what the forward kept."""
    b = Builder("chain")
    values = [b.value("x", F, Role.INPUT)]
    for i in range(depth):
        values += b.node("Tanh", [values[-1]], name=f"f{i}", outputs=[f"a{i}"])
    (grad,) = b.node("Neg", [values[-1]], name="head", outputs=["g"], phase=Phase.BACKWARD)
    for i in reversed(range(depth)):
        (grad,) = b.node("Mul", [grad, values[i]], name=f"b{i}", outputs=[f"g{i}"], phase=Phase.BACKWARD)
    return b.build([grad])


def planned(**fields: object) -> Outcome:
    request = {"budget": "70%", "execute": "yes", "planner": "segments", **fields}
    return solve(training_chain(), parse_request(request))


@pytest.mark.parametrize("planner", ["as_given", "mirror", "segments", "greedy", "auto"])
def test_prediction_execution_and_the_rewritten_graph_have_one_peak(planner: str) -> None:
    outcome = planned(planner=planner)
    assert outcome.report["executed"]["status"] == "equal", outcome.report["executed"]
    again = solve(outcome.graph, parse_request({"planner": "as_given"}))
    assert again.report["plan"]["peak_bytes"] == outcome.report["plan"]["peak_bytes"]


def off_by_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluator counts one byte too many in the last step."""
    right = liveness.profile

    def wrong(*arguments: object, **keywords: object) -> np.ndarray:
        steps = np.array(right(*arguments, **keywords))  # type: ignore[arg-type]
        steps[-1:] += 1
        return steps

    monkeypatch.setattr(liveness, "profile", wrong)


def test_the_checker_sees_an_evaluator_that_is_off_by_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_one_byte(monkeypatch)
    with pytest.raises(IllegalPlan):
        planned()


def test_execution_sees_an_evaluator_that_is_off_by_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    off_by_one_byte(monkeypatch)
    monkeypatch.setattr(Formulation, "check", lambda *_: None)
    outcome = planned()
    assert outcome.report["executed"]["status"] == "different"
    assert outcome.exit_code == 4


def test_execution_sees_a_value_that_lies_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    right = formulate.formulate_lowered

    def everything_at_zero(*arguments: object) -> object:
        question = right(*arguments)  # type: ignore[arg-type]
        place = type(question).placed

        def placed(self: object, plan: object, layout: str, *cancel: object) -> object:
            good = place(self, plan, layout)  # type: ignore[arg-type]
            good.offsets[good.offsets > 0] = 0
            return good

        monkeypatch.setattr(type(question), "placed", placed)
        return question

    monkeypatch.setattr(formulate, "formulate_lowered", everything_at_zero)
    monkeypatch.setattr(Formulation, "check", lambda *_: None)
    assert planned().report["executed"]["status"] == "different"


def test_a_graph_of_views_alone_has_nothing_to_plan_and_is_executed() -> None:
    b = Builder("views")
    x = b.value("x", F, Role.INPUT)
    (v,) = b.node("Reshape", [x, b.constant(np.array([256]), "flat")], name="view", outputs=["v"])
    report = solve(b.build([v]), parse_request({"budget": "50%", "execute": "yes"})).report
    assert report["executed"]["status"] == "equal"
    assert report["plan"]["order"] == [["view", 0]]


def test_an_empty_graph_has_an_empty_plan() -> None:
    report = solve(Builder("empty").build([]), parse_request({"execute": "yes"})).report
    assert report["plan"]["order"] == [] and report["plan"]["peak_bytes"] == 0
    assert report["executed"]["status"] == "equal"
