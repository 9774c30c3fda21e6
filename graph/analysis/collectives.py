"""Time of collectives on the link between devices: latency of a message and bandwidth.

    n ranks, B bytes of the whole tensor        messages    bytes that a rank sends
    all-gather, reduce-scatter, all-to-all      n - 1       (n - 1)/n · B
    all-reduce                                  2 (n - 1)   2 (n - 1)/n · B
    broadcast, reduce                           n - 1       B
    send, receive, permute                      1           B

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005,
section 4: ring algorithms (pairwise exchange for all-to-all); a broadcast is a pipeline around the ring.
"""

from __future__ import annotations

from collections.abc import Iterator

from graph.analysis.devices import DeviceProfile
from graph.ir import ABSENT, Effect, Graph, Node

RANKS = "ranks"  # attribute of a node: number of processes of its group
#: Parts of op names, without "_" and in lower case; the first that matches counts.
_ROUNDS = {"allgather": 1, "reducescatter": 1, "alltoall": 1, "allreduce": 2}
_PIPELINES = ("broadcast", "reduce")
_MESSAGES = ("permute", "send", "recv")
_KINDS = (*_ROUNDS, *_PIPELINES, *_MESSAGES)


def communicates(node: Node) -> bool:
    """Whether a node is a collective whose time the link decides: known by its name, with no time of its own."""
    return (
        node.effect is Effect.COLLECTIVE and node.cost.seconds is None and any(kind in _plain(node) for kind in _KINDS)
    )


def link_seconds(graph: Graph, node: Node, device: DeviceProfile) -> float:
    """Seconds of a collective on the device's link; 0 where the device has none, or the node is no collective.

    Without an attribute `ranks`, an all-gather and a reduce-scatter have the ratio of their bytes; others take the time
    of one message and all of the bytes for each round, as of many ranks.
    """
    if not device.link_bytes_per_second or not communicates(node):
        return 0.0
    plain, ranks = _plain(node), ranks_of(graph, node)
    whole = _whole_bytes(graph, node)
    rounds = next((count for kind, count in _ROUNDS.items() if kind in plain), 0)
    if rounds:
        share = 1.0 if ranks is None else (ranks - 1) / ranks
        messages, sent = rounds * (1 if ranks is None else ranks - 1), rounds * share * whole
    elif any(kind in plain for kind in _MESSAGES):
        messages, sent = 1, whole
    else:
        alone = ranks == 1
        messages, sent = (1 if ranks is None else ranks - 1), 0.0 if alone else whole
    return messages * device.link_latency + sent / device.link_bytes_per_second


def ranks_of(graph: Graph, node: Node) -> int | None:
    """Ranks that take part in a collective: its attribute, else the ratio of what it gathers or scatters."""
    given = node.attributes.get(RANKS)
    if isinstance(given, int) and given > 0:
        return given
    plain = _plain(node)
    sizes = sorted((_read(graph, node), _written(graph, node)))
    if ("allgather" in plain or "reducescatter" in plain) and sizes[0] and sizes[1] % sizes[0] == 0:
        return sizes[1] // sizes[0]
    return None


def warnings_of(graph: Graph, device: DeviceProfile) -> list[str]:
    """What the times of the collectives of a graph leave out on a device."""
    found = list(_collectives(graph))
    nodes = [node for _, node in found]
    if nodes and not device.link_bytes_per_second:
        return [
            f"{len(nodes)} collectives (the first is {nodes[0].name}) take the time of a local copy: {device.name} has "
            'no link to other devices; name it, such as {"like": "a100-80gb", "link_bandwidth": 300e9, '
            '"link_latency": 5e-6}'
        ]
    unknown = [node.name for inner, node in found if ranks_of(inner, node) is None and _depends_on_ranks(node)]
    if unknown:
        return [
            f"{len(unknown)} collectives (the first is {unknown[0]}) do not say how many ranks take part (attribute "
            "`ranks`): their time is that of many ranks and one message for each round"
        ]
    if device.link_bytes_per_second and device.source == "given" and not nodes:
        return ["device.link_bandwidth: not used, the graph has no collective without a declared time"]
    return []


def _collectives(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    """Collectives of a graph and of its bodies, each with the graph that it is a node of."""
    for node in graph.nodes:
        if communicates(node):
            yield graph, node
        for body in node.bodies.values():
            yield from _collectives(body.graph)


def _depends_on_ranks(node: Node) -> bool:
    return not any(kind in _plain(node) for kind in _MESSAGES)


def _plain(node: Node) -> str:
    return node.op.rpartition("::")[2].replace("_", "").lower()


def _whole_bytes(graph: Graph, node: Node) -> int:
    """Bytes of the whole tensor: what an all-gather makes, and what a reduction or an exchange reads."""
    read, written = _read(graph, node), _written(graph, node)
    return written if "allgather" in _plain(node) or not read else read


def _read(graph: Graph, node: Node) -> int:
    """Bytes of inputs that the node does not write over."""
    over = {source for _, source in node.in_place}
    return sum(graph.values[v].nbytes for i, v in enumerate(node.inputs) if v != ABSENT and i not in over)


def _written(graph: Graph, node: Node) -> int:
    return sum(graph.values[v].nbytes for v in node.outputs if v != ABSENT)
