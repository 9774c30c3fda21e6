"""Recomputation of listed step values in the backward pass of a recurrent net, instead of saving them per step."""

from __future__ import annotations

from collections.abc import Collection

from graph.analysis.aliasing import is_view
from graph.errors import BadGraph, Findings, quoted
from graph.ir import Graph
from graph.loop_remat import BodyPair, JointGraph, joint_graphs, with_saved_values
from graph.recurrent.net import add_unknown_name, check_declared
from graph.recurrent.step_graph import STEP_OP, written_by
from graph.recurrent.tables import backward_scans, scan_pair


def recompute_values(graph: Graph, node: str, names: Collection[str]) -> Graph:
    """The differentiated `graph` with the values `names` of the step of `node` recomputed in the backward pass.

    A name stands for all its versions: every op that writes one reruns, in step order. Unlisted inputs of
    these ops are saved, and states keep their values. Raises BadGraph for a name that no op writes, and
    for an op of which only some outputs are listed.
    """
    pair = find_scan_pair(graph, node)
    (joint,) = joint_graphs(graph, pair)
    return _keeping_all_but(graph, pair, joint, recomputed_values(joint, node, names))


def recompute_preferred(graph: Graph) -> Graph:
    """The differentiated `graph` with the outputs of step ops marked `prefer` recomputed in every net."""
    back = backward_scans(graph)
    for name in [node.name for node in graph.nodes if node.op == "Scan" and node.name in back]:
        pair = find_scan_pair(graph, name)
        (joint,) = joint_graphs(graph, pair)
        nodes = joint.graph.nodes[: joint.split]
        preferred = {v for candidate in nodes if candidate.recompute == "prefer" for v in candidate.writes}
        if preferred:
            graph = _keeping_all_but(graph, pair, joint, preferred)
    return graph


def find_scan_pair(graph: Graph, node: str) -> BodyPair:
    """The pair of the Scan called `node` and its backward Scan. Raises BadGraph."""
    number = {scan.name: n for n, scan in enumerate(graph.nodes)}
    back = backward_scans(graph).get(node)
    if node not in number or back is None:
        raise BadGraph.one(
            "undefined_value",
            "recompute",
            quoted(node),
            "a differentiated recurrent net",
            "differentiate the graph first, and name its Scan",
        )
    return scan_pair(graph, number[node], back)


def _keeping_all_but(graph: Graph, pair: BodyPair, joint: JointGraph, again: Collection[int]) -> Graph:
    """The graph with the pair saving all values the backward pass needs, except `again` and views."""
    inside = joint.graph
    views = {v for node in inside.nodes[: joint.split] if is_view(inside, node) for v in node.writes}
    keep = [inside.values[v].name for v in range(joint.forward_values) if v not in views and v not in again]
    return with_saved_values(graph, pair, keep)


def recomputed_values(joint: JointGraph, node: str, names: Collection[str]) -> set[int]:
    """Values of the forward body with the listed names, and all other outputs of their ops."""
    inside, listed = joint.graph, set(names)
    again: set[int] = set()
    known: set[str] = set()
    findings = Findings()
    for inner in inside.nodes[: joint.split]:
        outputs = written_by(inside, inner)
        known.update(outputs)
        if listed.intersection(outputs):
            again.update(inner.writes)
            op = str(inner.annotations.get(STEP_OP, {}).get("type", inner.op))
            check_declared(node, op, outputs, listed, findings)
    for name in sorted(listed - known):
        add_unknown_name(node, name, findings)
    findings.settle()
    return again


def step_value_names(graph: Graph) -> set[str]:
    """Names that the steps of recurrent nets write."""
    return {
        name
        for node in graph.nodes
        if node.op == "Scan" and "gradient_of" not in node.annotations
        for inner in node.bodies["body"].graph.nodes
        for name in written_by(node.bodies["body"].graph, inner)
    }


def recompute_named(graph: Graph, names: Collection[str]) -> Graph:
    """`graph` with each differentiated net recomputing those of `names` that its step writes."""
    backwards = backward_scans(graph)
    for node in [node for node in graph.nodes if node.op == "Scan" and node.name in backwards]:
        body = node.bodies["body"].graph
        own = {name for inner in body.nodes for name in written_by(body, inner)}
        if own.intersection(names):
            graph = recompute_values(graph, node.name, own.intersection(names))
    return graph
