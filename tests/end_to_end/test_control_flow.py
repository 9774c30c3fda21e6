"""Graphs with branches, loops and calls go the whole way: differentiated, planned, rewritten, executed equal."""

from __future__ import annotations

import numpy as np
import pytest

from graph.builder.builder import Builder
from graph.ir import ABSENT, Effect, Graph, Role, TensorType
from graph.ops.control_flow import CALL
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.graph.ops.control_flow.building import COUNT, FLAG, bodies, body_of

pytestmark = pytest.mark.usefixtures("quick_bounds")

ROW, SQUARE = TensorType("float32", (8, 16)), TensorType("float32", (16, 16))
TRIPS = 6


def _dropped(inner: Builder, x: int) -> int:
    return inner.node("Dropout", [x, inner.constant(np.float32(0.3))], name="drop")[0]


def _layer(inner: Builder, v, dropout: bool) -> int:
    (h,) = inner.node("MatMul", [v["h"], v["w"]])
    (h,) = inner.node("Tanh", [h])
    h = _dropped(inner, h) if dropout else h
    return inner.node("Add", [h, v["h"]])[0]


def _started(name: str) -> tuple[Builder, int, int]:
    """A builder, activations made of an input by a layer, and a weight."""
    b = Builder(name)
    x, w = b.value("x", ROW, Role.INPUT), b.value("w", SQUARE, Role.PARAMETER)
    (h,) = b.node("MatMul", [x, b.value("w_in", SQUARE, Role.PARAMETER)])
    for _ in range(3):
        (h,) = b.node("Sigmoid", b.node("MatMul", [h, w]))
    return b, h, w


def _finished(b: Builder, h: int) -> Graph:
    (h,) = b.node("Tanh", b.node("MatMul", [h, b.value("w_out", SQUARE, Role.PARAMETER)]))
    (loss,) = b.node("ReduceMean", [h], outputs=["loss"], attributes={"keepdims": 0})
    return b.build([loss])


def scanned(dropout: bool = True) -> Graph:
    """A Scan over the layers of a net, each with its own weight."""
    b, h, _ = _started("scan")
    ws = b.value("ws", TensorType("float32", (TRIPS, 16, 16)), Role.PARAMETER)
    body = body_of(b, {"h": ROW, "w": SQUARE}, [], lambda inner, v: [_layer(inner, v, dropout)])
    (h,) = b.node("Scan", [h, ws], outputs=["out"], attributes={"num_scan_inputs": 1}, bodies=bodies(body=body))
    return _finished(b, h)


def looped(dropout: bool = True) -> Graph:
    """A Loop that ends by its condition after as many trips as an input says."""
    b, h, w = _started("loop")
    count = b.value("count", COUNT, Role.INPUT)

    def make(inner, v):
        (next_,) = inner.node("Add", [v["trip"], inner.constant(np.array(1))])
        (again,) = inner.node("Less", [next_, v["count"]])
        return [again, _layer(inner, v, dropout)]

    body = body_of(b, {"trip": COUNT, "going": FLAG, "h": ROW}, [w, count], make)
    (first,) = b.node("Greater", [count, b.constant(np.array(0))])
    (h,) = b.node(
        "Loop", [ABSENT, first, h], outputs=["out"], bodies=bodies(body=body), annotations={"max_trips": TRIPS}
    )
    return _finished(b, h)


def branched(dropout: bool = True) -> Graph:
    """An If of which one branch is a Call and the other nothing."""
    b, h, w = _started("branch")
    (sum_,) = b.node("ReduceSum", [h], attributes={"keepdims": 0})
    (condition,) = b.node("Greater", [sum_, b.constant(np.float32(0))])

    def called(middle, v):
        body = body_of(middle, {"h": ROW}, [v["w"]], lambda inner, u: [_layer(inner, u, dropout)])
        return middle.node(CALL, [v[middle.values[0].name]], name="call", bodies=bodies(body=body))

    then = body_of(b, {}, [h, w], called)
    (h,) = b.node("If", [condition, h], outputs=["out"], bodies=bodies(then_branch=then))
    return _finished(b, h)


def nested(dropout: bool = True) -> Graph:
    """A Scan of Scans."""
    b, h, _ = _started("nested")
    ws = b.value("ws", TensorType("float32", (3, 2, 16, 16)), Role.PARAMETER)

    def outer(middle, v):
        body = body_of(middle, {"h": ROW, "w": SQUARE}, [], lambda inner, u: [_layer(inner, u, dropout)])
        return middle.node(
            "Scan", [v["h"], v["block"]], name="rows", attributes={"num_scan_inputs": 1}, bodies=bodies(body=body)
        )

    body = body_of(b, {"h": ROW, "block": TensorType("float32", (2, 16, 16))}, [], outer)
    (h,) = b.node("Scan", [h, ws], outputs=["out"], attributes={"num_scan_inputs": 1}, bodies=bodies(body=body))
    return _finished(b, h)


@pytest.mark.parametrize("make", [scanned, looped, branched, nested], ids=lambda make: make.__name__)
@pytest.mark.parametrize("budget", ["0", "60%", "100%"])
@pytest.mark.parametrize("planner", ["auto", "greedy"])
def test_a_planned_graph_computes_the_same_bit_for_bit(make, budget: str, planner: str):
    fields = {
        "loss": "loss",
        "budget": budget,
        "planner": planner,
        "execute": "yes",
        "search_seconds": 2,
        "counts": "activations",
    }
    outcome = solve(make(), parse_request(fields))
    assert outcome.report["executed"]["status"] == "equal", outcome.report["executed"]
    assert outcome.report["plan"]["peak_bytes"] <= outcome.report["baseline"]["peak_bytes"]


def test_a_node_draws_when_its_body_does():
    from graph.analysis.effects import effect_of
    from graph.training.train_mode import in_training_mode

    graph, _ = in_training_mode(scanned())
    (scan,) = (node for node in graph.nodes if node.bodies)
    assert effect_of(graph, scan) is Effect.RANDOM and scan.stream == scan.name
