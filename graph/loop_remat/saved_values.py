"""A pair rewritten to save other values: bodies put together anew from sequences of joint nodes.

    saves s        F: x, h ─▶ a ─▶ s ─▶ h'        G: s, dh' ─▶ grad/a
    saves h        F: x, h ─▶ a ─▶ s ─▶ h'        G: x, h ─▶ a ─▶ s,  s, dh' ─▶ grad/a

What the way back needs and does not make is what a trip saves; elements of sequences and captures are
given to the backward node once more. What nobody needs any longer is not made on the way out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from graph.errors import BadGraph
from graph.ir import Graph, producers
from graph.ir.renumber import restrict_values
from graph.loop_remat.body_pairs import BodyPair, find_pairs
from graph.loop_remat.joint_body import JointGraph, joint_graphs
from graph.loop_remat.rewrite import PairRewrite, SavePolicy
from graph.loop_remat.snapshots import SnapshotRewrite
from graph.loop_remat.tails import TailRewrite
from graph.validate.check import check


def with_saved_values(graph: Graph, pair: BodyPair, keep: Collection[str]) -> Graph:
    """`graph` with each trip of `pair` saving the values `keep` of the forward body, and what cannot be made anew.

    Raises BadGraph for a name that is no value of the body.
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
    """The way back with all that is not in `keep` made again right before it is read first.

    What may not be made again, and what that would need, stays.
    """
    graph, producer = joint.graph, producers(joint.graph)
    there = _available_values(joint, set(keep), producer)
    order: list[int] = []
    for n in range(joint.split, len(graph.nodes)):
        waiting = [n]
        while waiting:
            node = graph.nodes[waiting[-1]]
            missing = [producer[v] for v in node.reads if v not in there and producer[v] < joint.split]
            if missing:
                waiting += missing
                continue
            order.append(waiting.pop())
            there.update(node.writes)
    ends = [v for v in joint.backward_outputs if v not in there and producer[v] >= 0]
    if ends:  # the backward body hands out something that only the forward body makes
        return just_in_time_backward(joint, {*keep, *ends})
    return tuple(order)


def _available_values(joint: JointGraph, keep: set[int], producer: Sequence[int]) -> set[int]:
    """Values that are not made on the way back: what is kept or given, and what is saved as it cannot be made."""
    graph = joint.graph
    there = {v for v in range(len(graph.values)) if producer[v] < 0 or (v in keep and joint.savable(v))}
    made: set[int] = set()
    for node in graph.nodes[: joint.split]:
        again = node.recompute != "never" and all(v in there or v in made for v in node.reads)
        for v in node.writes:
            if not again and joint.savable(v):
                there.add(v)
            elif again and v not in there:
                made.add(v)
    return there


def with_save_policies(graph: Graph, savings: Mapping[BodyPair, SavePolicy]) -> Graph:
    """`graph` with each of these pairs saving what its `SavePolicy` says; names and places of nodes stay."""
    result, gone = apply_save_policies(graph, savings)
    result = _without(result, gone)
    check(result)
    return result


def apply_save_policies(graph: Graph, savings: Mapping[BodyPair, SavePolicy]) -> tuple[Graph, set[int]]:
    """The same under the ids of `graph`, new values behind them; and the values that nobody writes now."""
    values, nodes, gone = list(graph.values), list(graph.nodes), set[int]()
    names = {value.name for value in values}
    for pair, saving in savings.items():
        now = replace(graph, values=tuple(values))
        kind = SnapshotRewrite if saving.snapshots else TailRewrite if saving.tail else PairRewrite
        made = kind(now, pair, saving, joint_graphs_under(now, pair, saving.inner), names)
        made.rewrite()
        values, gone = made.values, gone | made.gone
        nodes[pair.forward], nodes[pair.backward] = made.new_forward, made.new_backward
    return replace(graph, values=tuple(values), nodes=tuple(nodes)), gone


def joint_graphs_under(
    graph: Graph, pair: BodyPair, inner: Sequence[Sequence[SavePolicy | None]]
) -> tuple[JointGraph, ...]:
    """The joint graphs with the pairs inside them saving what `inner` says, as in `SavePolicy`."""
    joints = joint_graphs(graph, pair)
    if not inner:
        return joints
    result = []
    for joint, savings in zip(joints, inner, strict=True):
        chosen = {p: s for p, s in zip(find_pairs(joint.graph), savings, strict=True) if s is not None}
        result.append(replace(joint, graph=apply_save_policies(joint.graph, chosen)[0]) if chosen else joint)
    return tuple(result)


def _without(graph: Graph, gone: set[int]) -> Graph:
    """The graph without values that nobody writes or reads, under dense ids."""
    if not gone:
        return graph
    nodes = [
        node
        if node.gradient_reads is None or gone.isdisjoint(node.gradient_reads)
        else replace(node, gradient_reads=tuple(v for v in node.gradient_reads if v not in gone))
        for node in graph.nodes
    ]
    return restrict_values(graph, [v for v in range(len(graph.values)) if v not in gone], nodes)
