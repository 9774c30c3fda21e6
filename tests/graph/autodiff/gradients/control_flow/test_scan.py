"""Gradients of Scan: one backward Scan over the saved values, for every use of states, elements and captures."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.ir import Graph, Phase, Role, TensorType
from tests.graph.ops.control_flow.building import (
    ROW,
    ROWS,
    SQUARE,
    bodies,
    body_of,
    check_gradients,
    gradients_of,
    loss_of,
    random_feeds,
)


def recurrence(
    trips: int = 4, backwards: bool = False, axis: int = 0, dropout: bool = False, squash: str = "Tanh"
) -> Graph:
    """h = squash(h w + x) for every row x; the loss reads the last h and all of them."""
    b = Builder("recurrence")
    h0 = b.value("h0", ROW, Role.PARAMETER)
    xs = b.value("xs", TensorType("float64", (trips, 3) if axis == 0 else (3, trips)), Role.PARAMETER)
    w = b.value("w", SQUARE, Role.PARAMETER)

    def make(inner, v):
        (product,) = inner.node("MatMul", [v["h"], v["w"]])
        (sum_,) = inner.node("Add", [product, v["x"]], outputs=["sum"])
        if dropout:
            ratio, training = inner.constant(np.float64(0.4)), inner.constant(np.array(True))
            (sum_,) = inner.node("Dropout", [sum_, ratio, training], name="drop")
        (h,) = inner.node(squash, [sum_] * (2 if squash == "Mul" else 1), outputs=["h_next"])
        return [h, h]

    body = body_of(b, {"h": ROW, "x": ROW}, [w], make)
    last, all_ = b.node(
        "Scan",
        [h0, xs],
        name="steps",
        outputs=["last", "all"],
        types=[ROW, b.values[xs].type],
        attributes={
            "num_scan_inputs": 1,
            "scan_input_axes": [axis],
            "scan_output_axes": [axis],
            "scan_input_directions": [int(backwards)],
            "scan_output_directions": [int(backwards)],
        },
        bodies=bodies(body=body),
    )
    return loss_of(b, last, all_)


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_recurrence_agrees_with_finite_differences(trips: int, backwards: bool, axis: int):
    check_gradients(recurrence(trips, backwards, axis))


def test_random_draws_in_a_body_equal_those_of_the_forward_pass():
    step = check_gradients(recurrence(dropout=True))
    saved = [v.name for v in step.values if v.name.startswith("steps/saved/")]
    assert saved == ["steps/saved/drop:1", "steps/saved/h"]  # the mask, and the state before each iteration


def test_the_backward_scan_reads_values_stacked_by_the_forward_scan():
    step = check_gradients(recurrence())
    forward, backward = (n for n in step.nodes if n.op == "Scan")
    assert backward.phase is Phase.BACKWARD and backward.annotations["gradient_of"] == forward.name
    scanned = backward.inputs[-backward.attributes["num_scan_inputs"] :]
    # h_next is emitted anyway, x is an element of a sequence that is there; only h is saved.
    assert [step.values[v].name for v in scanned if v in forward.outputs] == ["all", "steps/saved/h"]
    assert set(backward.attributes["scan_input_directions"]) == {1}


def test_zero_iterations_pass_the_gradient_through():
    graph = recurrence(0)
    found = gradients_of(differentiate(graph, ["loss"]), random_feeds(graph))
    assert (found["h0"] == np.cos(np.arange(3.0))).all()
    assert (found["w"] == 0).all() and found["xs"].shape == (0, 3)


def test_pass_through_states_unused_elements_and_absent_outputs():
    b = Builder("odd")
    kept, moved = b.value("kept", ROW, Role.PARAMETER), b.value("moved", ROW, Role.PARAMETER)
    xs, unused = b.value("xs", ROWS, Role.PARAMETER), b.value("unused", ROWS, Role.PARAMETER)

    def make(inner, v):
        (product,) = inner.node("Mul", [v["m"], v["x"]])
        (flat,) = inner.node("Reshape", [product, inner.constant(np.array([3, 1]))])
        (square,) = inner.node("Mul", [flat, flat])
        (back,) = inner.node("Reshape", [square, inner.constant(np.array([3]))])
        return [v["k"], back, v["x"], v["k"]]

    body = body_of(b, {"k": ROW, "m": ROW, "x": ROW, "u": ROW}, [], make)
    k, m, echoed, kept_rows = b.node(
        "Scan",
        [kept, moved, xs, unused],
        outputs=["k", "m", "echoed", "kept_rows"],
        types=[ROW, ROW, ROWS, ROWS],
        attributes={"num_scan_inputs": 2},
        bodies=bodies(body=body),
    )
    step = check_gradients(loss_of(b, k, m, echoed, kept_rows))
    saved = [v.name for v in step.values if "/saved/" in v.name]
    assert len(saved) == 2  # m and the product, which the reshaped square shows
    graph = loss_of(Builder.from_graph(step), k, name="passed")
    check_gradients(graph, loss="passed", wanted=["moved", "kept"])


def test_a_scan_in_a_scan():
    b = Builder("nested")
    h0, w = b.value("h0", ROW, Role.PARAMETER), b.value("w", SQUARE, Role.PARAMETER)
    blocks = b.value("blocks", TensorType("float64", (2, 4, 3)), Role.PARAMETER)

    def inner_make(inner, v):
        (product,) = inner.node("MatMul", [v["h"], v["w"]])
        (gated,) = inner.node("Mul", [product, v["scale"]])
        (sum_,) = inner.node("Add", [gated, v["x"]])
        (h,) = inner.node("Tanh", [sum_])
        return [h, sum_]

    def outer_make(middle, v):
        (scale,) = middle.node("Sigmoid", [v["h"]], outputs=["scale"])
        body = body_of(middle, {"h": ROW, "x": ROW}, [v["w"], scale], inner_make)
        h, sums = middle.node(
            "Scan",
            [v["h"], v["block"]],
            name="rows",
            outputs=2,
            types=[ROW, ROWS],
            attributes={"num_scan_inputs": 1},
            bodies=bodies(body=body),
        )
        (total,) = middle.node("ReduceSum", [sums, middle.constant(np.array([0]))], attributes={"keepdims": 0})
        return [h, total]

    body = body_of(b, {"h": ROW, "block": ROWS}, [w], outer_make)
    last, totals = b.node(
        "Scan",
        [h0, blocks],
        name="blocks_",
        outputs=2,
        types=[ROW, TensorType("float64", (2, 3))],
        attributes={"num_scan_inputs": 1},
        bodies=bodies(body=body),
    )
    step = check_gradients(loss_of(b, last, totals))
    inside = next(n for n in step.nodes if n.op == "Scan").bodies["body"].graph
    assert any("saved" in v.name for v in inside.values)


def test_a_gradient_of_a_gradient():
    graph = recurrence(squash="Mul")
    once = differentiate(graph, ["loss"], ["w"])
    (gradient,) = [dv for _, dv in once.gradients]
    check_gradients(loss_of(Builder.from_graph(once), gradient, name="second"), loss="second", wanted=["w", "h0"])
