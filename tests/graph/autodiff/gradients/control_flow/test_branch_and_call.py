"""Gradients of If and Call: gradients of the branch taken only, and values saved for the backward body."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import Body, Graph, Phase, Role
from graph.ops.control_flow import CALL
from tests.graph.ops.control_flow.building import (
    FLAG,
    ROW,
    SQUARE,
    bodies,
    body_of,
    check_gradients,
    gradients_of,
    loss_of,
    random_feeds,
)


def two_branches(dropout: bool = False) -> Graph:
    """y = tanh(x w_a) or exp(x w_b) * x; each branch has its own weight."""
    b = Builder("branches")
    c = b.value("c", FLAG, Role.INPUT)
    x = b.value("x", ROW, Role.PARAMETER)
    w_a, w_b = b.value("w_a", SQUARE, Role.PARAMETER), b.value("w_b", SQUARE, Role.PARAMETER)

    def then(inner, v):
        (h,) = inner.node("MatMul", [v["x"], v["w_a"]])
        if dropout:
            ratio, training = inner.constant(np.float64(0.4)), inner.constant(np.array(True))
            (h,) = inner.node("Dropout", [h, ratio, training], name="drop")
        return inner.node("Tanh", [h])

    def other(inner, v):
        (h,) = inner.node("MatMul", [v["x"], v["w_b"]])
        (e,) = inner.node("Exp", [h])
        return inner.node("Mul", [e, v["x"]])

    (y,) = b.node(
        "If",
        [c],
        name="choose",
        outputs=["y"],
        types=[ROW],
        bodies=bodies(then_branch=body_of(b, {}, [x, w_a], then), else_branch=body_of(b, {}, [x, w_b], other)),
    )
    return loss_of(b, y)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
def test_parameters_of_the_branch_not_taken_have_zero_gradients(taken: bool, dropout: bool):
    graph = two_branches(dropout)
    at = {"c": np.array(taken)}
    step = check_gradients(graph, at)
    found = gradients_of(step, {**random_feeds(graph), **at})
    assert (found["w_b" if taken else "w_a"] == 0).all() and found["w_a" if taken else "w_b"].any()
    assert found["w_a"].shape == found["w_b"].shape == (3, 3)


def test_saved_values_of_both_branches_share_outputs_of_equal_type():
    step = differentiate(two_branches(), ["loss"])
    forward, backward = (n for n in step.nodes if n.op == "If")
    assert len(forward.outputs) == 2  # y, and one slot: tanh(x w_a) or exp(x w_b)
    assert backward.phase is Phase.BACKWARD and backward.inputs == forward.inputs
    assert backward.annotations["gradient_of"] == "choose"


@pytest.mark.parametrize("taken", [True, False])
def test_a_missing_else_keeps_the_previous_version(taken: bool):
    #   y0 ──▶ y1 ──▶ If(c): y = x w        y is y1 where c does not hold
    b = Builder("missing else")
    c = b.value("c", FLAG, Role.INPUT)
    x, w, y0 = (b.value(name, ROW, Role.PARAMETER) for name in ("x", "w", "y0"))
    (y1,) = b.node("Mul", [y0, y0])
    then = body_of(b, {}, [x, w], lambda inner, v: inner.node("Mul", [v["x"], v["w"]]))
    (y,) = b.node("If", [c, y1], outputs=["y"], types=[ROW], bodies=bodies(then_branch=then))
    graph = loss_of(b, y)
    at = {**random_feeds(graph), "c": np.array(taken)}
    assert (execute(graph, at).outputs["y"] == (at["x"] * at["w"] if taken else at["y0"] ** 2)).all()
    found = gradients_of(check_gradients(graph, at), at)
    assert found["y0"].any() == (not taken) and found["x"].any() == taken and found["w"].any() == taken


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_may_output_a_captured_value(taken: bool):
    b = Builder("pass")
    c, p, q = b.value("c", FLAG, Role.INPUT), b.value("p", ROW, Role.PARAMETER), b.value("q", ROW, Role.PARAMETER)
    then, other = (body_of(b, {}, [v], lambda inner, given: list(given.values())) for v in (p, q))
    (y,) = b.node("If", [c], outputs=["y"], types=[ROW], bodies=bodies(then_branch=then, else_branch=other))
    graph = loss_of(b, y)
    at = {**random_feeds(graph), "c": np.array(taken)}
    found = gradients_of(check_gradients(graph, at), at)
    assert (found["p" if taken else "q"] == np.cos(np.arange(3.0))).all()
    assert (found["q" if taken else "p"] == 0).all()


def nested_if(taken: Mapping[str, bool]) -> Graph:
    b = Builder("nested")
    outer, inner_flag = b.value("outer", FLAG, Role.INPUT), b.value("inner", FLAG, Role.INPUT)
    x = b.value("x", ROW, Role.PARAMETER)

    def leaf(op: str, middle: Builder, x: int) -> Body:
        def make(inner, v):
            (h,) = inner.node(op, [v["x"]])
            return inner.node("Mul", [h, v["x"]])

        return body_of(middle, {}, [x], make)

    def branch(first: str, second: str) -> Body:
        def make(middle, v):
            (h,) = middle.node(
                "If",
                [v["inner"]],
                types=[ROW],
                bodies=bodies(then_branch=leaf(first, middle, v["x"]), else_branch=leaf(second, middle, v["x"])),
            )
            return middle.node("Add", [h, v["x"]])

        return body_of(b, {}, [x, inner_flag], make)

    (y,) = b.node(
        "If",
        [outer],
        outputs=["y"],
        types=[ROW],
        bodies=bodies(then_branch=branch("Tanh", "Exp"), else_branch=branch("Sigmoid", "Sin")),
    )
    return loss_of(b, y)


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_branches_in_branches(outer: bool, inner: bool):
    taken = {"outer": outer, "inner": inner}
    check_gradients(nested_if(taken), {name: np.array(flag) for name, flag in taken.items()})


def called(dropout: bool = False) -> Graph:
    """z = tanh(x + y) * w and y itself, computed by a Call."""
    b = Builder("called")
    x, y, w = (b.value(name, ROW, Role.PARAMETER) for name in ("x", "y", "w"))

    def make(inner, v):
        (sum_,) = inner.node("Add", [v["a"], v["b"]])
        if dropout:
            ratio, training = inner.constant(np.float64(0.4)), inner.constant(np.array(True))
            (sum_,) = inner.node("Dropout", [sum_, ratio, training])
        (h,) = inner.node("Tanh", [sum_], outputs=["h"])
        (z,) = inner.node("Mul", [h, v["w"]])
        return [z, v["b"]]

    body = body_of(b, {"a": ROW, "b": ROW}, [w], make)
    z, again = b.node(CALL, [x, y], name="do", outputs=["z", "again"], types=[ROW, ROW], bodies=bodies(body=body))
    return loss_of(b, z, again)


@pytest.mark.parametrize("dropout", [True, False])
def test_a_call_saves_what_its_gradient_reads(dropout: bool):
    step = check_gradients(called(dropout))
    forward, backward = (n for n in step.nodes if n.op == CALL)
    saved = [step.values[v].name for v in forward.outputs[2:]]
    assert set(saved) == {"do/saved/h", "do/saved/Dropout_1:1"} if dropout else saved == ["do/saved/h"]
    assert set(forward.outputs[2:]) < set(backward.inputs)


def test_a_call_that_only_passes_through_has_gradients():
    #   z + x with nothing inside but an addition: no node comes of it, the gradients do
    b = Builder("pass")
    z, x = b.value("z", ROW, Role.PARAMETER), b.value("x", ROW, Role.PARAMETER)
    body = body_of(b, {"z": ROW, "x": ROW}, [], lambda inner, v: inner.node("Add", [v["z"], v["x"]]))
    (y,) = b.node(CALL, [z, x], outputs=["y"], types=[ROW], bodies=bodies(body=body))
    graph = loss_of(b, y)
    found = gradients_of(check_gradients(graph), random_feeds(graph))
    assert (found["z"] == np.cos(np.arange(3.0))).all() and (found["x"] == found["z"]).all()


def test_unused_incoming_gradients_are_not_passed_to_a_branch():
    #   y depends on w, z on nothing that is wanted
    b = Builder("unread")
    c, x = b.value("c", FLAG, Role.INPUT), b.value("x", ROW, Role.INPUT)
    w = b.value("w", ROW, Role.PARAMETER)

    def make(inner, v):
        return [inner.node("Tanh", [v["x"]])[0], inner.node("Mul", [v["x"], v["w"]])[0]]

    y, z = b.node(
        "If",
        [c],
        outputs=["z", "y"],
        types=[ROW, ROW],
        bodies=bodies(then_branch=body_of(b, {}, [x, w], make), else_branch=body_of(b, {}, [x, w], make)),
    )
    step = check_gradients(loss_of(b, y, z), {"c": np.array(True)}, wanted=["w"])
    (backward,) = (n for n in step.nodes if n.op == "If" and n.phase is Phase.BACKWARD)
    assert len(backward.bodies["then_branch"].captures) == 2  # x and the gradient of y
