"""Time and workspace of a node on a device: declared costs first, else a roofline model.

    seconds = max(flops / peak of the dtype, bytes moved / bandwidth, link if a collective) + overhead of one kernel

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
Architectures", CACM 52(4), 2009. An unknown op costs the transfer of its inputs and outputs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from graph.analysis.aliasing import inplace_candidates, is_view, last_uses, storage_roots
from graph.analysis.collectives import link_seconds
from graph.analysis.devices import DEFAULT_DEVICE, DEVICES, DeviceProfile, device_named, resolve_device
from graph.ir import ABSENT, FLOAT_DTYPES, UNKNOWN_COST, Body, Graph, Node, Role
from graph.ops.control_flow.checkpointed_scan import SNAPSHOT_GRAD, TAIL_GRAD, CheckpointedGrad
from graph.ops.control_flow.interface import ROWS, SCANS, SLICED, TAIL_SCAN, LoopInterface
from graph.ops.control_flow.interface import trip_count as bounded_trips
from graph.ops.registry import onnx_fallback
from graph.ops.registry.dispatch import work
from graph.ops.registry.registry import Call, Work, find_op, make_call

__all__ = [
    "DEFAULT_DEVICE",
    "DEVICES",
    "DeviceProfile",
    "device_named",
    "resolve_device",
    "seconds_of",
    "work_of",
    "workspace_of",
]

_CACHED = 200_000
_work: dict[Any, Work] = {}


def seconds_of(graph: Graph, node: Node, device: DeviceProfile) -> float:
    """Predicted seconds of one run of a node; 0 for a node whose outputs are all views."""
    declared = node.cost
    if declared.seconds is not None:
        return declared.seconds
    if is_view(graph, node):
        return 0.0
    if node.bodies:
        return _seconds_of_bodies(graph, node, device)
    estimate = _table_work(graph, node) if declared is UNKNOWN_COST else work_of(graph, node)
    moved = (estimate.traffic_bytes or 0) / device.bytes_per_second
    sent = link_seconds(graph, node, device)
    return max(estimate.flops / device.peak(_compute_dtype(graph, node)), moved, sent) + device.kernel_seconds


def workspace_of(graph: Graph, node: Node) -> int:
    """Bytes allocated only during one run, inputs and outputs excluded."""
    if node.cost.workspace_bytes is not None:
        return node.cost.workspace_bytes
    if node.bodies:
        body_bytes = max(_body_bytes(node, body) for body in node.bodies.values())
        return body_bytes + CheckpointedGrad.of(node).state_bytes() if node.op == SNAPSHOT_GRAD else body_bytes
    if find_op(node.op) is None or is_view(graph, node):
        return 0
    return _table_work(graph, node).workspace_bytes


def work_of(graph: Graph, node: Node) -> Work:
    """Flops, bytes moved and workspace of one run; declared costs take precedence over the op registry."""
    estimate, declared = _table_work(graph, node), node.cost
    flops = estimate.flops if declared.flops is None else declared.flops
    traffic = estimate.traffic_bytes if declared.traffic_bytes is None else declared.traffic_bytes
    workspace = estimate.workspace_bytes if declared.workspace_bytes is None else declared.workspace_bytes
    return Work(flops, traffic, workspace)


def _table_work(graph: Graph, node: Node) -> Work:
    """Work from the op registry, cached by op, attributes and types."""
    values, attributes = graph.values, node.attributes
    key = (
        node.op,
        graph.opset.get("", 21),
        onnx_fallback.freeze(attributes) if attributes else (),
        tuple([values[v].type if v >= 0 else None for v in node.inputs]),
        tuple([values[v].type if v >= 0 else None for v in node.outputs]),
    )
    estimate = _work.get(key)
    if estimate is None:
        if len(_work) >= _CACHED:
            _work.clear()
        call = make_call(graph, node)
        estimate = _work[key] = (
            work(call) if find_op(node.op) is not None or _is_standard(call) else Work(0, work(call).traffic_bytes)
        )
    if None not in key[3] and None not in key[4]:
        return estimate
    sized = [values[v] for v in (*node.inputs, *node.outputs) if v != ABSENT and values[v].type is None]
    extra = sum(value.nbytes for value in sized)  # the registry ignores values without a type
    return Work(estimate.flops, (estimate.traffic_bytes or 0) + extra, estimate.workspace_bytes)


def _is_standard(call: Call) -> bool:
    return onnx_fallback.schema_of(call.op, call.opset) is not None


def _compute_dtype(graph: Graph, node: Node) -> str:
    """The first floating-point dtype among inputs, then outputs; float32 if there is none."""
    for v in (*node.inputs, *node.outputs):
        if v != ABSENT:
            type = graph.values[v].type
            if type is not None and type.dtype in FLOAT_DTYPES:
                return type.dtype
    return "float32"


def _seconds_of_bodies(graph: Graph, node: Node, device: DeviceProfile) -> float:
    """Seconds of a node with bodies: the slower branch of an If, the body times the iterations of a loop."""
    seconds = {
        key: sum(seconds_of(body.graph, inner, device) for inner in body.graph.nodes)
        for key, body in node.bodies.items()
    }
    if node.op in (SNAPSHOT_GRAD, TAIL_GRAD):
        runs = CheckpointedGrad.of(node).runs()
        return sum(count * seconds[key] for key, count in runs.items()) + device.kernel_seconds
    return max(seconds.values()) * expected_trips(graph, node) + device.kernel_seconds


def expected_trips(graph: Graph, node: Node) -> int:
    """Iterations of a Loop or scan: its constant trip count, scanned length or `max_trips`; 1 if unknown or no loop."""
    if node.op != "Loop" and node.op not in SCANS:
        return 1
    count = bounded_trips(graph.values, node).bound
    return 1 if count is None else count


def external_storages(node: Node, body: Body) -> frozenset[int]:
    """Storages of a body that are counted outside it: captures, outputs, and states updated in place.

    A state lies in the storage of the node's output when the body writes its next content over the last one.
    """
    graph, roots = body.graph, storage_roots(body.graph)
    external = {inner for inner, _ in body.captures} | {roots[v] for v in graph.outputs}
    if node.op not in ("Loop", "Scan", TAIL_SCAN, TAIL_GRAD):
        return frozenset(external)
    last = last_uses(roots, (inner.reads for inner in graph.nodes))
    writer = {v: n for n, inner in enumerate(graph.nodes) for v in inner.writes}
    for before, after in _carried(node, body):
        n = writer.get(after, -1)
        if n >= 0 and last.get(before) == n and before not in external:
            inner = graph.nodes[n]
            pairs = [(inner.outputs[o], inner.inputs[source]) for o, source in inplace_candidates(graph, inner)]
            if (after, before) in pairs:
                external.add(before)
    if node.op == TAIL_GRAD and body is node.bodies.get("tail"):
        scan = CheckpointedGrad.of(node)
        external.update(graph.inputs[scan.gradients : scan.gradients + scan.rows])  # rows are read in place
    return frozenset(external)


def _carried(node: Node, body: Body) -> list[tuple[int, int]]:
    """(state before, state after) an iteration, as values of the body."""
    graph = body.graph
    if node.op == TAIL_GRAD:
        count = CheckpointedGrad.of(node).gradients
        return list(zip(graph.inputs[:count], graph.outputs[:count], strict=True))
    trips = LoopInterface.of(node)
    return [(trips.state_in(i), trips.state_out(i)) for i in range(trips.states)]


def _sliced_rows(node: Node, body: Body) -> frozenset[int]:
    """Rows of sequences that the runtime slices when the body reads them: annotation `rows` of a Scan is "sliced"."""
    if node.op != "Scan" or node.annotations.get(ROWS) != SLICED:
        return frozenset()
    return frozenset(body.graph.inputs[LoopInterface.of(node).states :])


def _body_bytes(node: Node, body: Body) -> int:
    """Peak bytes of one iteration in the body's node order, external storages excluded."""
    graph = body.graph
    roots = storage_roots(graph)
    outside = external_storages(node, body)
    size = {v: value.nbytes for v, value in enumerate(graph.values) if roots[v] == v and v not in outside}
    sliced = _sliced_rows(node, body).intersection(size)
    live = highest = sum(size[v] for v in size if graph.values[v].role is not Role.ACTIVATION and v not in sliced)
    freed = Counter[int]()  # node -> bytes that it uses last
    for v, n in last_uses(roots, ((*inner.reads, *inner.writes) for inner in graph.nodes)).items():
        if v in size and (graph.values[v].role is Role.ACTIVATION or v in sliced):
            freed[n] += size[v]
    for n, inner in enumerate(graph.nodes):
        live += sum(size.get(v, 0) for v in inner.writes) + sum(size[v] for v in sliced.intersection(inner.reads))
        sliced = sliced.difference(inner.reads)
        highest = max(highest, live + workspace_of(graph, inner))
        live -= freed[n]
    return highest
