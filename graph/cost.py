"""Seconds and workspace of a node on a device: a roofline, with what the document says first.

    seconds = max(flops / peak of the dtype, bytes moved / bandwidth) + overhead of one kernel

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 52(4), 2009. An op nobody knows moves its inputs and outputs at the bandwidth.
"""

from __future__ import annotations

from typing import Any

from graph.devices import DEFAULT_DEVICE, DEVICES, Device, device_named, device_of
from graph.ir import ABSENT, FLOATS, UNKNOWN_COST, Body, Graph, Node, Role, consumers
from graph.ops import standard_ops
from graph.ops.table import OPS, Call, Work, call_of, work
from graph.storage import is_view, storage_roots

__all__ = [
    "DEFAULT_DEVICE", "DEVICES", "Device", "device_named", "device_of", "seconds_of", "work_of", "workspace_of",
]  # fmt: skip

_CACHED = 200_000
_work: dict[Any, Work] = {}


def seconds_of(graph: Graph, node: Node, device: Device) -> float:
    """Predicted seconds of one run of a node; 0 for a node that only makes views."""
    said = node.cost
    if said.seconds is not None:
        return said.seconds
    if is_view(graph, node):
        return 0.0
    if node.bodies:
        return _seconds_of_bodies(graph, node, device)
    found = _table_work(graph, node) if said is UNKNOWN_COST else work_of(graph, node)
    moved = (found.traffic_bytes or 0) / device.bytes_per_second
    return max(found.flops / device.peak(_compute_dtype(graph, node)), moved) + device.kernel_seconds


def workspace_of(graph: Graph, node: Node) -> int:
    """Bytes a run holds beside its inputs and outputs."""
    if node.cost.workspace_bytes is not None:
        return node.cost.workspace_bytes
    if node.bodies:
        return max(_body_bytes(body) for body in node.bodies.values())
    if node.op not in OPS or is_view(graph, node):
        return 0
    return _table_work(graph, node).workspace_bytes


def work_of(graph: Graph, node: Node) -> Work:
    """Flops, bytes moved and workspace of one run; what the document says goes before the op table."""
    found, said = _table_work(graph, node), node.cost
    flops = found.flops if said.flops is None else said.flops
    traffic = found.traffic_bytes if said.traffic_bytes is None else said.traffic_bytes
    workspace = found.workspace_bytes if said.workspace_bytes is None else said.workspace_bytes
    return Work(flops, traffic, workspace)


def _table_work(graph: Graph, node: Node) -> Work:
    """What the op table says; asked once for all nodes with the same op, attributes and types."""
    values, attributes = graph.values, node.attributes
    key = (
        node.op, graph.opset.get("", 21), standard_ops.freeze(attributes) if attributes else (),
        tuple([values[v].type if v >= 0 else None for v in node.inputs]),
        tuple([values[v].type if v >= 0 else None for v in node.outputs]),
    )  # fmt: skip
    found = _work.get(key)
    if found is None:
        if len(_work) >= _CACHED:
            _work.clear()
        call = call_of(graph, node)
        found = _work[key] = work(call) if node.op in OPS or _is_standard(call) else Work(0, work(call).traffic_bytes)
    if None not in key[3] and None not in key[4]:
        return found
    sized = [values[v] for v in (*node.inputs, *node.outputs) if v != ABSENT and values[v].type is None]
    extra = sum(value.nbytes for value in sized)  # the table does not see values that are only a size
    return Work(found.flops, (found.traffic_bytes or 0) + extra, found.workspace_bytes)


def _is_standard(call: Call) -> bool:
    return standard_ops.schema_of(call.op, call.opset) is not None


def _compute_dtype(graph: Graph, node: Node) -> str:
    """The first floating type among inputs, then outputs; float32 when there is none."""
    for v in (*node.inputs, *node.outputs):
        if v != ABSENT:
            type = graph.values[v].type
            if type is not None and type.dtype in FLOATS:
                return type.dtype
    return "float32"


def _seconds_of_bodies(graph: Graph, node: Node, device: Device) -> float:
    """An If takes its slower branch, a loop its body once a trip."""
    once = [
        sum(seconds_of(body.graph, inner, device) for inner in body.graph.nodes) for body in node.bodies.values()
    ]  # fmt: skip
    return max(once) * trips_of(graph, node) + device.kernel_seconds


def trips_of(graph: Graph, node: Node) -> int:
    """How often the body of a node runs: by its constant trip count, its scanned length, or `max_trips`; else once."""
    said = node.annotations.get("max_trips", node.attributes.get("max_trips"))
    if said is not None:
        return int(said)
    if node.op == "Loop" and node.inputs and node.inputs[0] != ABSENT:
        data = graph.values[node.inputs[0]].data
        return 1 if data is None else int(data.reshape(-1)[0])
    if node.op == "Scan":
        count = int(node.attributes.get("num_scan_inputs", 1))
        scanned = graph.values[node.inputs[-count]].type
        axes = node.attributes.get("scan_input_axes") or [0]
        return 1 if scanned is None or not scanned.shape else scanned.shape[axes[0]]
    return 1


def _body_bytes(body: Body) -> int:
    """Most bytes one trip holds in its own order, without captures and without the body's outputs."""
    graph = body.graph
    roots, readers = storage_roots(graph), consumers(graph)
    outside = {inner for inner, _ in body.captures} | {roots[v] for v in graph.outputs}
    own = [v for v in range(len(graph.values)) if roots[v] == v and v not in outside]
    last: dict[int, int] = {}
    for v, reads in enumerate(readers):
        if reads:
            last[roots[v]] = max(last.get(roots[v], -1), reads[-1])
    size = {v: graph.values[v].nbytes for v in own}
    live = sum(size[v] for v in own if graph.values[v].role is not Role.ACTIVATION)
    highest, ending = live, {n: [v for v in own if last.get(v) == n] for n in set(last.values())}
    for n, node in enumerate(graph.nodes):
        made = [v for v in node.writes if v in size]
        live += sum(size[v] for v in made)
        highest = max(highest, live + workspace_of(graph, node))
        live -= sum(size[v] for v in made if v not in last)
        live -= sum(size[v] for v in ending.get(n, ()) if graph.values[v].role is Role.ACTIVATION)
    return highest
