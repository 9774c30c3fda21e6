"""Recomputation as in Paddle: its two segment builders, names of copies and op roles.

    t ──▶ t.subprog_0        segments are numbered from the last        copied ops have the role backward

`recompute_pass` transforms a training graph like the auto-parallel pass; segments are built from checkpoints as in
that pass or as in `append_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from msgspec import structs

from graph.ir import Graph, Node
from graph.training.device_mesh import check_mesh, renamed_mapping, without_stale_mappings
from graph.training.recompute_segments import RECOMPUTED_ANNOTATION, RecomputedGraph, with_recomputation, written_value
from graph.training.segments import (
    ForwardPath,
    SegmentRange,
    Segments,
    normalized_segments,
    ordered_checkpoints,
    segments_between,
    select_segments,
)

ROLE = "op_role"  # annotation of a node: "forward", "backward", "optimize", ...


def append_backward_segments(statistics: ForwardPath, names: Sequence[str], unknown: str = "warn") -> Segments:
    """Segments as built by `append_backward` from checkpoints in execution order.

    Several checkpoints: one segment between each pair of neighbours, and one before the first unless it starts at 0.
    A single checkpoint: from op 0 to its writer, unless op 0 writes it.
    """
    ordered, notes = ordered_checkpoints(statistics, names, unknown)
    ranges: list[SegmentRange] = [pair for a, b in pairwise(ordered) if (pair := statistics.between(a, b)) is not None]
    if len(ordered) == 1 and statistics.writer.get(ordered[0], 0) > 0:
        ranges = [(0, statistics.writer[ordered[0]] + 1)]
    elif ranges and ranges[0][0] > 0:
        ranges.insert(0, (0, ranges[0][0]))
    return normalized_segments(statistics, ranges, ordered, notes)


#: The two ways Paddle builds segments from checkpoints.
SEGMENT_BUILDERS: dict[str, Callable[[ForwardPath, Sequence[str], str], Segments]] = {
    "pass": segments_between,
    "append_backward": append_backward_segments,
}


def recompute_pass(
    graph: Graph,
    loss: str,
    checkpoints: Sequence[str] | None,
    *,
    rule: str = "pass",
    unknown: str = "warn",
    ranges: Sequence[Sequence[int]] | None = None,
    opt_out: Collection[int] = (),
    needed_only: bool = False,
    nested: str = "error",
) -> RecomputedGraph:
    """The training graph with segments recomputed, named and annotated as in Paddle.

    Segments are those of `graph.training.segments.select_segments`, built from checkpoints by one of
    `SEGMENT_BUILDERS`. Distribution annotations are copied with renamed values; they must be complete and consistent.
    Raises BadGraph for an unknown loss, invalid annotations and nested graphs in segments.
    """
    statistics = ForwardPath.of(graph, [written_value(graph, loss)])
    check_mesh(without_stale_mappings(graph))
    segments = select_segments(statistics, checkpoints, ranges, opt_out, unknown, SEGMENT_BUILDERS[rule])
    found = with_recomputation(
        graph,
        statistics,
        segments,
        nested=nested,
        needed_only=needed_only,
        suffix=".subprog_{}".format,
        annotated=_annotated,
    )
    found = replace(found, graph=_with_roles(without_stale_mappings(found.graph)))
    check_mesh(found.graph)
    return found


def _annotated(node: Node, renamed: Mapping[str, str]) -> dict[str, Any]:
    return renamed_mapping(node.annotations, renamed)


def _with_roles(graph: Graph) -> Graph:
    """The graph with role backward on recomputed nodes, when its nodes have roles."""
    if not any(ROLE in node.annotations for node in graph.nodes):
        return graph
    nodes = [
        structs.replace(node, annotations={**node.annotations, ROLE: "backward"})
        if node.annotations.get(RECOMPUTED_ANNOTATION)
        else node
        for node in graph.nodes
    ]
    return structs.replace(graph, nodes=tuple(nodes))
