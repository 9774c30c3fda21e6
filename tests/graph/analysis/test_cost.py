"""Seconds and workspace of nodes: the roofline by hand, what documents say, profiles and their faults."""

from __future__ import annotations

import numpy as np
import pytest

from graph.analysis.cost import DEVICES, expected_trips, resolve_device, seconds_of, work_of, workspace_of
from graph.analysis.devices import DEFAULT_DEVICE, device_named
from graph.builder.builder import Builder
from graph.ir import Body, Cost, Graph, Role, TensorType

PLAIN = resolve_device({"bandwidth": 1e9, "flops": {"float32": 1e12, "float16": 4e12}, "kernel_seconds": 1e-6})


def one(op: str, *shapes: tuple[int, ...], dtype: str = "float32", **rest: object) -> Graph:
    builder = Builder("one")
    inputs = [builder.value(f"x{i}", TensorType(dtype, shape), Role.INPUT) for i, shape in enumerate(shapes)]
    return builder.build(builder.node(op, inputs, name="n", **rest))  # type: ignore[arg-type]


def seconds(graph: Graph) -> float:
    return seconds_of(graph, graph.nodes[0], PLAIN)


def test_a_large_product_is_bound_by_arithmetic():
    graph = one("MatMul", (2048, 2048), (2048, 2048))
    assert seconds(graph) == pytest.approx(1e-6 + max(2 * 2048**3 / 1e12, 3 * 4 * 2048**2 / 1e9))
    half = one("MatMul", (2**14, 2**14), (2**14, 2**14), dtype="float16")
    assert seconds(half) == pytest.approx(1e-6 + 2 * 2**42 / 4e12), "the peak of its own dtype"


def test_an_elementwise_op_is_bound_by_traffic():
    assert seconds(one("Add", (1000, 1000), (1000, 1000))) == pytest.approx(1e-6 + 12e6 / 1e9)


def test_an_unknown_op_costs_the_transfer_of_its_inputs_and_outputs():
    types = [TensorType("float32", (10, 10))]
    assert seconds(one("acme::Fold", (1000, 1000), types=types)) == pytest.approx(1e-6 + 4.0004e6 / 1e9)


def test_values_that_are_only_a_size_are_moved_too():
    builder = Builder("sized")
    x = builder.value("x", None, Role.INPUT, bytes=3_000_000)
    y = builder.value("y", None, bytes=1_000_000)
    graph = builder.build(builder.node("acme::Fold", [x], outputs=[y]))
    assert seconds(graph) == pytest.approx(1e-6 + 4e6 / 1e9)


def test_what_a_document_says_goes_before_the_table():
    shapes = (1000, 1000), (1000, 1000)
    assert seconds(one("MatMul", *shapes, cost=Cost(seconds=3.5))) == 3.5
    assert seconds(one("MatMul", *shapes, cost=Cost(seconds=0.0))) == 0
    assert seconds(one("MatMul", *shapes, cost=Cost(flops=10**13))) == pytest.approx(10 + 1e-6)
    said = one("MatMul", *shapes, cost=Cost(traffic_bytes=10**10, workspace_bytes=77))
    assert seconds(said) == pytest.approx(10 + 1e-6)
    assert workspace_of(said, said.nodes[0]) == 77
    assert work_of(said, said.nodes[0]).flops == 2 * 10**9, "the rest is the table's"


def test_a_view_costs_nothing():
    builder = Builder("view")
    x = builder.value("x", TensorType("float32", (1000, 1000)), Role.INPUT)
    graph = builder.build(builder.node("Reshape", [x, builder.constant(np.array([-1]))]))
    assert seconds(graph) == 0 and workspace_of(graph, graph.nodes[0]) == 0
    declared = one("Transpose", (1000, 1000), views=((0, 0),))
    assert seconds(declared) == 0


def test_a_loop_costs_its_body_once_a_trip():
    small, scalar = TensorType("float32", (250, 1000)), TensorType("int64", ())
    inner = Builder("body")
    inner.value("i", scalar, Role.INPUT)
    going, state = inner.value("going", TensorType("bool", ()), Role.INPUT), inner.value("state", small, Role.INPUT)
    (again,), (grown,) = inner.node("Identity", [going]), inner.node("Exp", [state])
    (done,) = inner.node("Neg", [grown])
    body = Body(inner.build([again, done]))
    outer = Builder("loop")
    x = outer.value("x", small, Role.INPUT)
    graph = outer.build(outer.node("Loop", [outer.constant(np.int64(5)), -1, x], types=[small], bodies={"body": body}))
    assert expected_trips(graph, graph.nodes[0]) == 5
    assert seconds(graph) == pytest.approx(1e-6 + 5 * 2 * (1e-6 + 2e6 / 1e9))
    # Beside the state it carries and hands out, a trip holds `grown`, the trip's number and the condition.
    assert workspace_of(graph, graph.nodes[0]) == 2 * small.nbytes + 8


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_profile_is_complete_and_names_its_source(name: str):
    device = device_named(name)
    assert device.name == name and device.source
    assert device.memory_bytes >= 2**30 and device.bytes_per_second >= 1e9
    assert all(peak > 0 for peak in device.flops_per_second.values())
    assert device.peak("float16") >= device.peak("float32") >= device.peak("float64") or name.startswith(
        ("tpu", "rtx", "a10", "l4")
    )
    assert device.peak("int4") == device.peak("float32"), "where none is published"


def test_a_device_may_be_given_as_an_object():
    assert DEFAULT_DEVICE in DEVICES and resolve_device(DEFAULT_DEVICE) is DEVICES[DEFAULT_DEVICE]
    faster = resolve_device({"like": "a100-80gb", "bandwidth": 4e12, "name": "mine"})
    assert faster.name == "mine" and faster.bytes_per_second == 4e12
    assert faster.peak("bfloat16") == DEVICES["a100-80gb"].peak("bfloat16")
    assert resolve_device({"bandwidth": 1e9, "flops": 1e12}).peak("float64") == 1e12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a100", "device 'a100' is not known; name one of a100-80gb"),
        ({"bandwidth": 1e9}, "device has no flops"),
        ({"flops": 1e9}, "device has no bandwidth"),
        ({"bandwidth": 1e9, "flops": {"float16": 1.0}}, "flops has no float32"),
        ({"bandwidth": 1e9, "flops": {"float32": 1.0, "half": 1.0}}, "flops has a dtype 'half'"),
        ({"bandwidth": 0, "flops": 1}, "bandwidth is 0; give a finite number above 0"),
        ({"bandwidth": float("nan"), "flops": 1}, "bandwidth is nan"),
        ({"bandwidth": 1, "flops": True}, "flops is True"),
        (
            {"bandwidth": 1, "flops": 1, "kernel_seconds": -1},
            "kernel_seconds is -1; give a finite number of at least 0",
        ),
        ({"bandwidth": 5e-324, "flops": 1}, "bandwidth is 5e-324; give one between 1e-30"),
        ({"bandwidth": 10**400, "flops": 1}, "bandwidth is 1000"),
        ({"like": ["a100-80gb"]}, "like is ['a100-80gb']; give a name"),
        ({"like": "a100-80gb", "name": 3}, "name is 3; give a name"),
        ({"bandwidth": 1, "flops": 1, "speed": 3}, "device has a field 'speed'"),
        ({"like": "a100-80gb", "host_bandwidth": 0}, "host_bandwidth is 0; give a finite number above 0"),
        ({"like": "a100-80gb", "fetch_bandwidth": 0}, "fetch_bandwidth is 0; give a finite number above 0"),
        ({"like": "a100-80gb", "host_link": "token ring"}, "host_link is 'token ring'; use duplex"),
        ({"bandwidth": 0, "speed": 3}, "device has a field 'speed'.*; device has no flops.*; bandwidth is 0"),
    ],
)
def test_an_invalid_device_raises_an_error_naming_the_field(given: object, message: str):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        resolve_device(given)  # type: ignore[arg-type]
