"""Explicit random seeds: each random op reads a saved seed, so that recomputation draws the same numbers.

x ──▶ Dropout ──▶ y, mask            seed/Dropout ──▶ s      x, s ──▶ SeededDropout ──▶ y, mask

The seed is a few bytes and saved; y and mask can be recomputed from it. Source: Paddle's recompute pass,
which does this for dropout.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from graph.analysis.effects import effect_of
from graph.builder.builder import Builder
from graph.ir import Effect, Graph, Node, Phase
from graph.ops.registry import find_op
from graph.ops.registry.registry import make_call
from graph.ops.training.seeded_random import SEED_TYPE
from graph.training.device_mesh import MAPPING, MESH, only_mappings, with_replicated

#: Attributes that fix the seed of an op; removed when the seed becomes an input.
FIXED_SEED_ATTRIBUTES = ("fix_seed", "seed")


def with_seeds(graph: Graph, nodes: Collection[int] | None = None) -> Graph:
    """`graph` with an explicit seed for each random forward node among `nodes` (default: all).

    Dropout in training mode and unknown ops get the seed as an input and become pure; a fixed seed in their
    attributes, or a stream, moves to the seed node. Other random ops get a stream, which makes their draws
    repeatable. Ops that read a seed already are unchanged.
    """
    builder = Builder.from_graph(graph)
    builder.nodes = []
    seeds: set[int] = {v for node in graph.nodes if _is_seed(graph, node) for v in node.writes}
    place: list[int] = []  # node -> its new place
    for n, node in enumerate(graph.nodes):
        node = replace(node, after=tuple(place[a] for a in node.after))
        chosen = nodes is None or n in nodes
        if chosen and node.phase is Phase.FORWARD and _draws(graph, node) and seeds.isdisjoint(node.inputs):
            node = _seeded(builder, graph, node)
        place.append(len(builder.nodes))
        builder.nodes.append(node)
    return builder.build(graph.outputs)


def _is_seed(graph: Graph, node: Node) -> bool:
    """True for a random op without inputs: its output is a seed."""
    return not node.reads and effect_of(graph, node) is Effect.RANDOM


def _draws(graph: Graph, node: Node) -> bool:
    return effect_of(graph, node) is Effect.RANDOM and not node.bodies and not _is_seed(graph, node)


def _seeded(builder: Builder, graph: Graph, node: Node) -> Node:
    """The node with a new seed as input, or with its own stream."""
    ratio = _ratio(graph, node) if node.op == "Dropout" else None
    if find_op(node.op) is not None and ratio is None:
        return replace(node, stream=node.stream or node.name)
    seed = _new_seed(builder, node)
    annotations = with_replicated(node.annotations, builder.values[seed].name)
    if ratio is not None:
        operands = {builder.values[v].name for v in (node.inputs[0], seed, *node.writes)}
        return replace(
            node,
            op="remat::SeededDropout",
            inputs=(node.inputs[0], seed),
            attributes={"ratio": ratio},
            annotations=only_mappings(annotations, operands),
            stream=None,
        )
    attributes = {name: value for name, value in node.attributes.items() if name not in FIXED_SEED_ATTRIBUTES}
    return replace(
        node,
        inputs=(*node.inputs, seed),
        attributes=attributes,
        effect=Effect.PURE,
        annotations=annotations,
        stream=None,
    )


def _ratio(graph: Graph, node: Node) -> float | None:
    """The drop ratio of a Dropout in training mode; None when known at run time only."""
    call = make_call(graph, node)
    if len(call.inputs) > 2 and call.inputs[2] is not None and call.constant(2) is None:
        return None
    if len(call.inputs) < 2 or call.inputs[1] is None:
        return float(call.attribute("ratio", 0.5))
    known_ratio = call.constant(1)
    return None if known_ratio is None else float(known_ratio.reshape(-1)[0])


def _new_seed(builder: Builder, node: Node) -> int:
    """Id of a new seed for the node, on the mesh of the node if it has one."""
    fixed = int(node.attributes.get("seed", 0)) if node.attributes.get("fix_seed") else 0
    own = {name: entry for name, entry in node.annotations.items() if name != MAPPING}
    sharding = {MESH: own[MESH], MAPPING: [-1]} if MESH in own else {}
    seed = builder.value(f"seed/{node.name}", SEED_TYPE, annotations=sharding)
    builder.node(
        "remat::Seed",
        [],
        name=f"seed/{node.name}",
        outputs=[seed],
        attributes={"seed": fixed},
        annotations=with_replicated(own, builder.values[seed].name),
        stream=node.stream,
    )
    return seed
