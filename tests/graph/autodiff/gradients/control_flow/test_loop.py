"""Gradients of Loop: as many backward as forward iterations, possibly none; weight gradients are summed over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import CannotExecute, NoGradient
from graph.execution.interpreter import execute
from graph.ir import ABSENT, Graph, Role, TensorType
from tests.graph.ops.control_flow.building import (
    COUNT,
    FLAG,
    ROW,
    bodies,
    body_of,
    check_gradients,
    gradients_of,
    loss_of,
    random_feeds,
)


def squares(b: Builder, rows: int) -> int:
    return b.node("Mul", [rows, rows])[0]


def powers(
    trips: int | None,
    max_trips: int | None = 6,
    emit: bool = False,
    op: str = "Mul",
    read: Callable[[Builder, int], int] = squares,
) -> Graph:
    """x becomes x w in each iteration; `trips` None: until a counter, an input, reaches zero.

    With `emit` the products are stacked, and the loss is the sum of what `read` makes of the stack.
    """
    b = Builder("powers")
    x, w = b.value("x", ROW, Role.PARAMETER), b.value("w", ROW, Role.PARAMETER)
    left = b.value("left", COUNT, Role.INPUT)
    (start,) = b.node("Greater", [left, b.constant(np.array(0))])

    def make(inner, v):
        one, zero = inner.constant(np.array(1)), inner.constant(np.array(0))
        (fewer,) = inner.node("Sub", [v["n"], one])
        (product,) = inner.node(op, [v["state"], v["w"]], outputs=["product"])
        going = v["going"] if trips is not None else inner.node("Greater", [fewer, zero])[0]
        return [going, fewer, product, product] if emit else [going, fewer, product]

    body = body_of(b, {"trip": COUNT, "going": FLAG, "n": COUNT, "state": ROW}, [w], make)
    count = ABSENT if trips is None else b.constant(np.array(trips))
    types = [COUNT, ROW, *([TensorType("float64", (max_trips or 0, 3))] if emit else [])]
    _, y, *rows = b.node(
        "Loop",
        [count, ABSENT if trips is not None else start, left, x],
        name="loop",
        outputs=["count", "y", *(["rows"] if emit else [])],
        types=types,
        bodies=bodies(body=body),
        annotations={} if max_trips is None else {"max_trips": max_trips},
    )
    if not emit:
        return loss_of(b, y)
    (sum_,) = b.node("ReduceSum", [read(b, rows[0])], attributes={"keepdims": 0})
    return b.build(
        [b.node("Add", [sum_, b.node("ReduceSum", [y], attributes={"keepdims": 0})[0]], outputs=["loss"])[0], *rows]
    )


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_counted_loop_agrees_with_finite_differences(trips: int):
    step = check_gradients(powers(trips, None), {"left": np.array(0)})
    stacks = [v.type for v in step.values if v.name.startswith("loop/saved/")]
    assert stacks == [TensorType("float64", (trips, 3))]


@pytest.mark.parametrize("made", [0, 1, 4, 6])
def test_backward_runs_as_many_iterations_as_a_loop_ended_by_its_condition(made: int):
    graph = powers(None)
    at = {**random_feeds(graph), "left": np.array(made)}
    found = gradients_of(check_gradients(graph, at), at)
    assert found["x"] == pytest.approx(np.cos(np.arange(3.0)) * at["w"] ** made)
    assert found["w"] == pytest.approx(np.cos(np.arange(3.0)) * at["x"] * made * at["w"] ** max(0, made - 1))


@pytest.mark.parametrize("made", [0, 1, 4, 6])
def test_a_stacked_output_has_one_row_per_iteration(made: int):
    graph = powers(None, emit=True)
    at = {**random_feeds(graph), "left": np.array(made)}
    assert execute(graph, at).outputs["rows"].shape == (made, 3)
    assert graph.values[graph.value_named("rows")].type == TensorType("float64", (6, 3))
    check_gradients(graph, at)


def last_row(b: Builder, rows: int) -> int:
    return b.node("Gather", [rows, b.constant(np.array(-1))])[0]


def rows_after(b: Builder, rows: int) -> int:
    """Squares of the stack with a parameter after it."""
    other = b.value("other", TensorType("float64", (3, 3)), Role.PARAMETER)
    return squares(b, b.node("Concat", [rows, other], attributes={"axis": 0})[0])


def rows_before(b: Builder, rows: int) -> int:
    other = b.value("other", TensorType("float64", (2, 3)), Role.PARAMETER)
    return squares(b, b.node("Concat", [other, rows], attributes={"axis": 0})[0])


def weighted(b: Builder, rows: int) -> int:
    weight = b.value("weight", TensorType("float64", (3, 5)), Role.PARAMETER)
    return squares(b, b.node("MatMul", [rows, weight])[0])


def scores(b: Builder, rows: int) -> int:
    """Attention of a query to the stack."""
    query = b.value("query", TensorType("float64", (3,)), Role.PARAMETER)
    (score,) = b.node("Softmax", [b.node("MatMul", [rows, query])[0]], attributes={"axis": 0})
    return b.node("MatMul", [score, rows])[0]


def norms(b: Builder, rows: int) -> int:
    return b.node("ReduceL2", [rows, b.constant(np.array([1]))], attributes={"keepdims": 0})[0]


@pytest.mark.parametrize("read", [last_row, rows_after, rows_before, weighted, scores, norms])
@pytest.mark.parametrize("made", [1, 4, 6])
def test_readers_of_a_stack_that_ended_early_have_right_gradients(made: int, read: Callable[[Builder, int], int]):
    graph = powers(None, emit=True, read=read)
    check_gradients(graph, {**random_feeds(graph), "left": np.array(made)})


def test_more_iterations_than_max_trips_are_refused_at_run_time():
    graph = powers(None)
    with pytest.raises(CannotExecute, match="more than its `max_trips` of 6"):
        execute(graph, {**random_feeds(graph), "left": np.array(7)})


@pytest.mark.parametrize("made", [0, 2, 6])
def test_a_loop_without_saved_values_records_its_iterations(made: int):
    graph = powers(None, op="Add")
    at = {**random_feeds(graph), "left": np.array(made)}
    step = check_gradients(graph, at)
    (mark,) = (v.type for v in step.values if v.name.startswith("loop/saved/"))
    assert mark == TensorType("bool", (6,))
    found = gradients_of(step, at)
    assert (found["w"] == made * np.cos(np.arange(3.0))).all()


def test_a_loop_without_a_bound_is_refused_when_it_saves():
    with pytest.raises(NoGradient, match="max_trips") as refused:
        differentiate(powers(None, None), ["loss"])
    assert [finding.code for finding in refused.value.findings] == ["unknown_trips"]


@pytest.mark.parametrize("outer", [0, 1, 3])
def test_an_inner_loop_may_run_a_different_number_of_iterations_each_time(outer: int):
    #   for t in 0, 1, ...:  while left > 0: y = y w     with left = t, so 0, 1, 2 trips inside
    b = Builder("ragged")
    y0, w = b.value("y0", ROW, Role.PARAMETER), b.value("w", ROW, Role.PARAMETER)
    count = b.value("count", COUNT, Role.INPUT)
    (some,) = b.node("Greater", [count, b.constant(np.array(0))])

    def trip(inner, v):
        (fewer,) = inner.node("Sub", [v["left"], inner.constant(np.array(1))])
        (again,) = inner.node("Greater", [fewer, inner.constant(np.array(0))])
        (product,) = inner.node("Mul", [v["state"], v["w"]])
        return [again, fewer, inner.node("Sin", [product])[0]]

    def round_(middle, v):
        (go,) = middle.node("Greater", [v["round"], middle.constant(np.array(0))])
        formals = {"trip": COUNT, "going": FLAG, "left": COUNT, "state": ROW}
        body = body_of(middle, formals, [v["w"]], trip)
        _, y = middle.node(
            "Loop",
            [ABSENT, go, v["round"], v["y"]],
            name="inner",
            outputs=2,
            bodies=bodies(body=body),
            annotations={"max_trips": 4},
        )
        (next_,) = middle.node("Add", [v["round"], middle.constant(np.array(1))])
        (again,) = middle.node("Less", [next_, v["count"]])
        return [again, middle.node("Add", [y, v["w"]])[0]]

    body = body_of(b, {"round": COUNT, "going": FLAG, "y": ROW}, [w, count], round_)
    (y,) = b.node(
        "Loop", [ABSENT, some, y0], name="outer", outputs=["y"], bodies=bodies(body=body), annotations={"max_trips": 5}
    )
    step = check_gradients(loss_of(b, y), {"count": np.array(outer)})
    saved = {v.name: v.type for v in step.values if v.name.startswith("outer/saved/")}
    assert saved["outer/saved/inner/saved/state/1"] == TensorType("float64", (5, 4, 3))
