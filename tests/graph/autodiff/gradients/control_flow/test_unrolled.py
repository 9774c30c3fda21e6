"""Bodies equal their unrolled nodes, random draws included, forward and backward; nesting depth has a limit."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.ir import ABSENT, Graph, Role, TensorType
from graph.limits import Limits
from graph.ops.control_flow import CALL
from graph.training.train_mode import in_training_mode
from graph.transforms.replay import replay
from tests.graph.ops.control_flow.building import (
    COUNT,
    FLAG,
    ROW,
    ROWS,
    SQUARE,
    bodies,
    body_of,
    gradients_of,
    loss_of,
    random_feeds,
)

TRIPS = 4


def step_of(b: Builder, v, stream: str | None = None) -> int:
    """tanh(dropout(h w + x)); the dropout draws by `stream`."""
    (product,) = b.node("MatMul", [v["h"], v["w"]])
    (sum_,) = b.node("Add", [product, v["x"]])
    ratio, training = b.constant(np.float64(0.4)), b.constant(np.array(True))
    (kept,) = b.node("Dropout", [sum_, ratio, training], name="drop", stream=stream)
    return b.node("Tanh", [kept])[0]


def given(b: Builder) -> dict[str, int]:
    return {
        "h": b.value("h", ROW, Role.PARAMETER),
        "w": b.value("w", SQUARE, Role.PARAMETER),
        "xs": b.value("xs", ROWS, Role.PARAMETER),
    }


def scanned() -> Graph:
    b = Builder("scan")
    v = given(b)
    body = body_of(b, {"h": ROW, "x": ROW}, [v["w"]], lambda inner, u: [step_of(inner, u)] * 2)
    last, rows = b.node(
        "Scan",
        [v["h"], v["xs"]],
        name="steps",
        outputs=["last", "rows"],
        attributes={"num_scan_inputs": 1},
        bodies=bodies(body=body),
    )
    return loss_of(b, last, rows)


def looped() -> Graph:
    b = Builder("loop")
    v = given(b)

    def make(inner, u):
        (x,) = inner.node("Gather", [u["xs"], u["trip"]])
        h = step_of(inner, {**u, "x": x})
        return [u["going"], h, h]

    body = body_of(b, {"trip": COUNT, "going": FLAG, "h": ROW}, [v["w"], v["xs"]], make)
    last, rows = b.node(
        "Loop",
        [b.constant(np.array(TRIPS)), ABSENT, v["h"]],
        name="steps",
        outputs=["last", "rows"],
        bodies=bodies(body=body),
    )
    return loss_of(b, last, rows)


def called() -> Graph:
    b = Builder("calls")
    v = given(b)
    body = body_of(b, {"h": ROW, "x": ROW}, [v["w"]], lambda inner, u: [step_of(inner, u)])
    h, made = v["h"], []
    for t in range(TRIPS):
        (x,) = b.node("Gather", [v["xs"], b.constant(np.array(t))])
        (h,) = b.node(CALL, [h, x], name=f"call{t}", stream=f"steps#{t}/same", bodies=bodies(body=body))
        made.append(b.node("Unsqueeze", [h, b.constant(np.array([0]))])[0])
    (rows,) = b.node("Concat", made, outputs=["rows"], attributes={"axis": 0})
    return loss_of(b, h, rows)


def unrolled(stream: str) -> Graph:
    """The same nodes unrolled; `stream` is the random stream of iteration {t}."""
    b = Builder("unrolled")
    v = given(b)
    h, made = v["h"], []
    for t in range(TRIPS):
        (x,) = b.node("Gather", [v["xs"], b.constant(np.array(t))])
        h = step_of(b, {"h": h, "w": v["w"], "x": x}, stream.format(t=t))
        made.append(b.node("Unsqueeze", [h, b.constant(np.array([0]))])[0])
    (rows,) = b.node("Concat", made, outputs=["rows"], attributes={"axis": 0})
    return loss_of(b, h, rows)


@pytest.mark.parametrize(
    ("make", "stream"),
    [(scanned, "steps#{t}/drop"), (looped, "steps#{t}/drop"), (called, "steps#{t}/same#0/drop")],
    ids=["scan", "loop", "call"],
)
def test_a_body_equals_its_unrolled_nodes(make, stream: str):
    graph, plain = make(), unrolled(stream)
    at = random_feeds(plain)
    assert execute(graph, at).outputs["loss"] == pytest.approx(execute(plain, at).outputs["loss"], rel=1e-12)
    found, expected = (gradients_of(differentiate(g, ["loss"]), at) for g in (graph, plain))
    for name, gradient in expected.items():
        assert found[name] == pytest.approx(gradient, rel=1e-10, abs=1e-12), name


def test_every_iteration_draws_new_numbers_and_recomputation_draws_the_same():
    graph, _ = in_training_mode(scanned())
    at = {**random_feeds(graph), "w": np.eye(3), "xs": np.ones((4, 3))}
    rows = execute(graph, at).outputs["rows"]
    assert len({row.tobytes() for row in rows == 0}) > 1
    (scan,) = (n for n, node in enumerate(graph.nodes) if node.bodies)
    order = [*range(len(graph.nodes)), scan, *range(scan + 1, len(graph.nodes))]
    again = replay(graph, order)
    assert sum(node.op == "Scan" for node in again.nodes) == 2
    assert (execute(again, at).outputs["loss"] == execute(graph, at).outputs["loss"]).all()


def nested_calls(depth: int) -> Graph:
    b = Builder("deep")
    x = b.value("x", TensorType("float64", (2,)), Role.PARAMETER)

    def make(inner, v, level):
        (y,) = inner.node("Sin", [v["a"]])
        if level == 0:
            return [y]
        body = body_of(inner, {"a": TensorType("float64", (2,))}, [], lambda i, u: make(i, u, level - 1))
        return inner.node(CALL, [y], types=[TensorType("float64", (2,))], bodies=bodies(body=body))

    body = body_of(b, {"a": TensorType("float64", (2,))}, [], lambda i, u: make(i, u, depth - 1))
    (y,) = b.node(CALL, [x], types=[TensorType("float64", (2,))], bodies=bodies(body=body))
    return loss_of(b, y)


def test_bodies_nest_as_deep_as_the_limit():
    graph = nested_calls(Limits().depth)
    at = random_feeds(graph)
    slope = at["x"]
    expected = np.cos(np.arange(2.0))
    for _ in range(Limits().depth):
        expected, slope = expected * np.cos(slope), np.sin(slope)
    assert gradients_of(differentiate(graph, ["loss"]), at)["x"] == pytest.approx(expected)


def test_bodies_that_nest_deeper_are_refused():
    with pytest.raises(BadGraph, match="nested") as refused:
        nested_calls(Limits().depth + 1)
    assert [finding.code for finding in refused.value.findings] == ["too_deep"]
