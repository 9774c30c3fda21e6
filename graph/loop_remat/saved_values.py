"""Rewrite of pairs to save other values: bodies are rebuilt from sequences of joint nodes.

    saves s        F: x, h ─▶ a ─▶ s ─▶ h'        G: s, dh' ─▶ grad/a
    saves h        F: x, h ─▶ a ─▶ s ─▶ h'        G: x, h ─▶ a ─▶ s,  s, dh' ─▶ grad/a

An iteration saves the values that the backward body reads and does not compute; sequence elements and captures are
passed to the backward node instead. Forward nodes without remaining readers are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from graph.errors import BadGraph
from graph.ir import Graph, producers
from graph.ir.renumber import restrict_values
from graph.loop_remat.body_pairs import BodyPair, find_pairs
from graph.loop_remat.checkpoints import CheckpointRewrite
from graph.loop_remat.joint_body import JointGraph, joint_graphs
from graph.loop_remat.rewrite import PairRewrite, SavePolicy
from graph.validate.check import check


def with_saved_values(graph: Graph, pair: BodyPair, keep: Collection[str]) -> Graph:
    """`graph` with each iteration of `pair` saving the values `keep` of the forward body, and those not recomputable.

    Raises BadGraph for a name that no value of the body has.

    """
    joints = joint_graphs(graph, pair)
    rows = []
    for joint in joints:
        number = {value.name: v for v, value in enumerate(joint.graph.values[: joint.forward_values])}
        rows.append(just_in_time_backward(joint, [number[name] for name in keep if name in number]))
    names = {value.name for joint in joints for value in joint.graph.values[: joint.forward_values]}
    if unknown := sorted(set(keep) - names):
        raise BadGraph.one(
            "undefined_value",
            f"keep.{unknown[0]}",
            unknown[0],
            "the name of a value of the forward body",
            "name a value of the body",
        )
    return with_save_policies(graph, {pair: SavePolicy(tuple(rows))})


def just_in_time_backward(joint: JointGraph, keep: Collection[int]) -> tuple[int, ...]:
    """Nodes of the backward pass, each value outside `keep` recomputed just before its first read.

    Values that must not be recomputed are saved, as are values that depend on unavailable ones.
    """
    graph, producer = joint.graph, producers(joint.graph)
    available = _available_values(joint, set(keep), producer)
    order: dict[int, None] = {}
    for n in range(joint.split, len(graph.nodes)):
        stack = [n]
        while stack:
            node = graph.nodes[stack[-1]]
            if stack[-1] in order:  # computed for a reader that came after it on the stack
                stack.pop()
                continue
            missing = [producer[v] for v in node.reads if v not in available and producer[v] < joint.split]
            if missing:
                stack += missing
                continue
            order[stack.pop()] = None
            available.update(node.writes)
    unavailable = [v for v in joint.backward_outputs if v not in available and producer[v] >= 0]
    if unavailable:  # the backward body returns a value that only the forward body computes
        return just_in_time_backward(joint, {*keep, *unavailable})
    return tuple(order)


def _available_values(joint: JointGraph, keep: set[int], producer: Sequence[int]) -> set[int]:
    """Values that the backward pass does not recompute: kept, given from outside, or not recomputable."""
    graph = joint.graph
    available = {v for v in range(len(graph.values)) if producer[v] < 0 or (v in keep and joint.savable(v))}
    computed: set[int] = set()
    for node in graph.nodes[: joint.split]:
        is_recomputable = node.recompute != "never" and all(v in available or v in computed for v in node.reads)
        for v in node.writes:
            if not is_recomputable and joint.savable(v):
                available.add(v)
            elif is_recomputable and v not in available:
                computed.add(v)
    return available


def with_save_policies(graph: Graph, savings: Mapping[BodyPair, SavePolicy]) -> Graph:
    """`graph` with each pair rewritten to its `SavePolicy`; names and positions of nodes are unchanged."""
    result, gone = apply_save_policies(graph, savings)
    result = _without(result, gone)
    check(result)
    return result


def apply_save_policies(graph: Graph, savings: Mapping[BodyPair, SavePolicy]) -> tuple[Graph, set[int]]:
    """As `with_save_policies`, with old value ids unchanged and new ones appended; also the ids no longer written."""
    values, nodes, gone = list(graph.values), list(graph.nodes), set[int]()
    names = {value.name for value in values}
    for pair, saving in savings.items():
        now = structs.replace(graph, values=tuple(values))
        kind = CheckpointRewrite if saving.checkpoints else PairRewrite
        rewrite = kind(now, pair, saving, joint_graphs_under(now, pair, saving.inner), names)
        rewrite.rewrite()
        values, gone = rewrite.values, gone | rewrite.gone
        nodes[pair.forward], nodes[pair.backward] = rewrite.new_forward, rewrite.new_backward
    return structs.replace(graph, values=tuple(values), nodes=tuple(nodes)), gone


def joint_graphs_under(
    graph: Graph, pair: BodyPair, inner: Sequence[Sequence[SavePolicy | None]]
) -> tuple[JointGraph, ...]:
    """The joint graphs of a pair, with the pairs inside rewritten to the policies `inner`, as in `SavePolicy`."""
    joints = joint_graphs(graph, pair)
    if not inner:
        return joints
    result = []
    for joint, savings in zip(joints, inner, strict=True):
        chosen = {p: s for p, s in zip(find_pairs(joint.graph), savings, strict=True) if s is not None}
        result.append(replace(joint, graph=apply_save_policies(joint.graph, chosen)[0]) if chosen else joint)
    return tuple(result)


def _without(graph: Graph, gone: set[int]) -> Graph:
    """The graph without the unwritten values `gone`, with dense ids."""
    if not gone:
        return graph
    nodes = [
        node
        if node.gradient_reads is None or gone.isdisjoint(node.gradient_reads)
        else structs.replace(node, gradient_reads=tuple(v for v in node.gradient_reads if v not in gone))
        for node in graph.nodes
    ]
    return restrict_values(graph, [v for v in range(len(graph.values)) if v not in gone], nodes)
