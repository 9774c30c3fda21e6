"""Times of collectives on a link between devices."""

from __future__ import annotations

import json

import pytest

from graph.analysis.collectives import link_seconds, warnings_of
from graph.analysis.cost import seconds_of
from graph.analysis.devices import resolve_device
from graph.formats.readers import load
from graph.ir import Graph

KIB = 1024
LINKED = {"bandwidth": 1e15, "flops": 1e15, "kernel_seconds": 0, "link_bandwidth": KIB, "link_latency": 0.5}


def graph_of(op: str, read: int, written: int, **fields: object) -> Graph:
    node = {"name": "n", "op": op, "inputs": ["x"], "outputs": ["y"], "effect": "collective", **fields}
    values = [{"name": "x", "bytes": read * KIB, "role": "input"}, {"name": "y", "bytes": written * KIB}]
    document = {"format": "remat/1", "name": "m", "values": values, "nodes": [node], "outputs": ["y"]}
    return load(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("op", "read", "written", "ranks", "seconds"),
    [
        ("collective::AllGather", 2, 8, 4, 3 * 0.5 + 6),
        ("stablehlo::all_gather", 2, 8, None, 3 * 0.5 + 6),  # four ranks: the ratio of the bytes
        ("_c10d_functional::reduce_scatter_tensor.default", 8, 2, 4, 3 * 0.5 + 6),
        ("c10d::_reduce_scatter_base_.default", 8, 4, None, 0.5 + 4),
        ("stablehlo::all_reduce", 8, 8, 4, 6 * 0.5 + 12),
        ("stablehlo::all_reduce", 8, 8, None, 2 * 0.5 + 16),  # of many ranks, one message a round
        ("c10d::alltoall_base_.default", 8, 8, 2, 0.5 + 4),
        ("c10d::broadcast_.default", 8, 8, 4, 3 * 0.5 + 8),
        ("stablehlo::collective_permute", 8, 8, None, 0.5 + 8),
        ("collective::AllGather", 8, 8, 1, 0.0),
        ("stablehlo::all_reduce", 8, 8, 1, 0.0),
        ("c10d::broadcast_.default", 8, 8, 1, 0.0),
    ],
)
def test_a_collective_takes_its_messages_and_its_bytes_on_the_link(op, read, written, ranks, seconds):
    graph = graph_of(op, read, written, **({} if ranks is None else {"attributes": {"ranks": ranks}}))
    assert link_seconds(graph, graph.nodes[0], resolve_device(LINKED)) == pytest.approx(seconds)
    assert seconds_of(graph, graph.nodes[0], resolve_device(LINKED)) == pytest.approx(max(seconds, 1e-11), abs=1e-9)


def test_memory_that_a_collective_writes_over_is_not_sent():
    #   x, y ── reduce-scatter ── z in the bytes of y
    values = [{"name": "x", "bytes": 8 * KIB, "role": "input"}, {"name": "y", "bytes": 2 * KIB}]
    values.append({"name": "z", "bytes": 2 * KIB})
    empty = {"name": "e", "op": "aten::empty", "inputs": [], "outputs": ["y"]}
    node = {"name": "n", "op": "c10d::_reduce_scatter_base_.default", "inputs": ["y", "x"], "outputs": ["z"]}
    node |= {"in_place": {"z": "y"}, "effect": "collective"}
    document = {"format": "remat/1", "name": "m", "values": values, "nodes": [empty, node], "outputs": ["z"]}
    graph = load(json.dumps(document).encode())
    assert link_seconds(graph, graph.nodes[1], resolve_device(LINKED)) == pytest.approx(3 * 0.5 + 6)


def test_a_declared_time_counts_for_a_collective_too():
    graph = graph_of("collective::AllReduce", 8, 8, cost={"seconds": 3.0}, attributes={"ranks": 2})
    assert seconds_of(graph, graph.nodes[0], resolve_device(LINKED)) == 3.0


def test_collectives_of_a_device_without_a_link_are_warned_of():
    graph = graph_of("collective::AllReduce", 8, 8, attributes={"ranks": 2})
    (warning,) = warnings_of(graph, resolve_device("a100-80gb"))
    assert "a100-80gb has no link" in warning and "link_bandwidth" in warning and "n)" in warning
    assert not warnings_of(graph, resolve_device(LINKED))


def test_collectives_of_an_unknown_number_of_ranks_are_warned_of():
    (warning,) = warnings_of(graph_of("stablehlo::all_reduce", 8, 8), resolve_device(LINKED))
    assert "attribute `ranks`" in warning


def test_a_link_that_no_node_uses_is_warned_of():
    (warning,) = warnings_of(graph_of("collective::AllReduce", 8, 8, cost={"seconds": 3.0}), resolve_device(LINKED))
    assert "link_bandwidth: not used" in warning


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"link_bandwidth": 0}, "link_bandwidth is 0; give a finite number above 0"),
        ({"link_bandwidth": "fast"}, "link_bandwidth is 'fast'"),
        ({"link_latency": 1e-6}, "link_latency has no link_bandwidth beside it"),
        ({"link_bandwidth": 1e9, "link_latency": -1}, "link_latency is -1; give a finite number of at least 0"),
        ({"nvlink": 1e9}, "device has a field 'nvlink'; use name, like"),
    ],
)
def test_an_invalid_link_is_refused_by_its_field(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve_device({"like": "a100-80gb", **fields})


def test_a_link_keeps_the_rest_of_its_profile():
    device = resolve_device({"like": "h100-80gb", "link_bandwidth": 450e9})
    assert (device.link_bytes_per_second, device.link_latency) == (450e9, 0)
