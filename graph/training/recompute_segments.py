"""Segment recomputation: the backward pass recomputes the ops of each segment and reads the copies.

forward   mul ──t──▶ add ──ck──▶ mean              saved: ck
backward            mul' ──t'──▶ add_grad, mul_grad     t' is named after t and its segment

Copies are placed directly before the first backward op that reads one of them, and `after` the op in front, so that a
scheduler does not start them early. Outputs of ops that cannot be recomputed are saved. Source: Paddle's recompute
pass, except for the position of the copies (its search from the end may place them too late).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.analysis.effects import is_repeatable
from graph.errors import BadGraph, Findings, quoted
from graph.ir import ABSENT, Graph, Node, Phase, Role, Value
from graph.ir.names import reserve_name
from graph.ir.reachability import nodes_computing
from graph.ir.renumber import remap_node, restrict_values
from graph.training.segments import ForwardPath, SegmentRange, Segments, select_segments
from graph.validate.check import check

RECOMPUTED_ANNOTATION = "recomputed"  # annotation of a recomputed node


@dataclass(frozen=True, eq=False, slots=True)
class RecomputedGraph:
    """A training graph with recomputed segments, and the decisions. Names are those of the source graph."""

    graph: Graph
    saved: tuple[str, ...]  # values saved for backward: checkpoints, values crossing segments, inputs, seeds
    crossing: tuple[str, ...]  # saved values that cross segments and are no checkpoints: other cuts would avoid them
    renamed: Mapping[str, str]  # value -> name of its copy
    copied: tuple[str, ...]  # recomputed nodes
    notes: tuple[str, ...]


def recompute_segments(
    graph: Graph,
    loss: str,
    checkpoints: Sequence[str] | None = None,
    *,
    ranges: Sequence[Sequence[int]] | None = None,
    opt_out: Collection[int] = (),
    unknown: str = "warn",
    nested: str = "heavy",
) -> RecomputedGraph:
    """The training graph with its segments recomputed where the backward pass reads them.

    The segments come from `graph.training.segments.select_segments`. Raises BadGraph for an unknown loss, and as
    `select_segments` and `with_recomputation` do.
    """
    forward = ForwardPath.of(graph, [written_value(graph, loss)])
    return with_recomputation(
        graph, forward, select_segments(forward, checkpoints, ranges, opt_out, unknown), nested=nested
    )


def written_value(graph: Graph, loss: str) -> int:
    """Id of the loss. Raises BadGraph unless a node writes it."""
    for node in graph.nodes:
        for v in node.writes:
            if graph.values[v].name == loss:
                return v
    raise BadGraph.one(
        "unknown_loss", "loss", quoted(loss), "a value that an op of the graph writes", "name the value to minimize"
    )


def with_recomputation(
    graph: Graph,
    forward: ForwardPath,
    segments: Segments,
    *,
    nested: str = "heavy",
    needed_only: bool = True,
    suffix: Callable[[int], str] = "/{}".format,
    annotated: Callable[[Node, Mapping[str, str]], Mapping[str, Any]] | None = None,
) -> RecomputedGraph:
    """The training graph `graph` with the ops of `segments` recomputed where its backward pass reads them.

    Segments are numbered from the last; a copied value has the name of its source plus `suffix(number)`.
    `needed_only` omits copies without a reader. `annotated(node, renamed)` is the annotations of a node with renamed
    operands. Outputs of a node with bodies are saved; with `nested` "error" such a node raises BadGraph.
    """
    _check_nested(forward, segments, nested)
    saved, crossing = saved_values(forward, segments)
    rewriter = _RecomputeRewriter(graph, forward, saved, suffix, annotated or (lambda node, renamed: node.annotations))
    for number, segment in enumerate(reversed(segments.ranges)):
        rewriter.copy(number, segment)
    result = rewriter.graph(needed_only)
    check(result)
    names = [value.name for value in graph.values]
    return RecomputedGraph(
        result,
        tuple(names[v] for v in saved),
        tuple(names[v] for v in crossing),
        {names[v]: rewriter.values[new].name for v, new in rewriter.renamed.items() if new in rewriter.written},
        tuple(graph.nodes[n].name for n in rewriter.copied),
        segments.notes,
    )


def saved_values(forward: ForwardPath, segments: Segments) -> tuple[list[int], list[int]]:
    """(values saved for the backward pass, those of them that cross segments and are no checkpoints)."""
    crossing = dict.fromkeys(v for segment in segments.ranges for v in forward.crossing(segment))
    fixed = dict.fromkeys((*segments.checkpoints, *forward.seeds(), *forward.inputs()))
    for begin, end in segments.ranges:
        for position in range(begin, end):
            node = forward.node(position)
            if not _may_repeat(forward.graph, node):
                fixed.update(dict.fromkeys(node.writes))
    saved = [v for v in dict.fromkeys((*crossing, *fixed)) if not forward.is_persistent(v)]
    return saved, [v for v in crossing if v not in fixed]


def _may_repeat(graph: Graph, node: Node) -> bool:
    """True when a second run has the same result and no side effect."""
    if node.in_place or node.bodies or node.recompute == "never":
        return False
    return is_repeatable(graph, node)


def _check_nested(forward: ForwardPath, segments: Segments, nested: str) -> None:
    if nested != "error":
        return
    findings = Findings()
    for begin, end in segments.ranges:
        for position in range(begin, end):
            node = forward.node(position)
            if node.bodies:
                findings.add(
                    "nested_in_segment",
                    f"nodes[{forward.path[position]}]",
                    f"{quoted(node.name)} with a nested graph in a segment",
                    "segments of ops without nested graphs",
                    'end the segment before it, or set "nested" to "heavy" to save its outputs',
                )
    findings.settle()


@dataclass(slots=True)
class _SegmentCopies:
    """The nodes of one segment to recompute."""

    number: int  # of the segment, from the last
    nodes: list[int] = field(default_factory=list)  # ids in the source graph, ascending


class _RecomputeRewriter:
    """Rewrites one training graph; new values are appended to those of the source."""

    def __init__(
        self,
        graph: Graph,
        forward: ForwardPath,
        saved: Collection[int],
        suffix: Callable[[int], str],
        annotated: Callable[[Node, Mapping[str, str]], Mapping[str, Any]],
    ):
        self.source, self.forward, self.saved = graph, forward, frozenset(saved)
        self.suffix, self.annotated = suffix, annotated
        self.values: list[Value] = list(graph.values)
        self.value_names = {value.name for value in graph.values}
        self.node_names = {node.name for node in graph.nodes}
        self.renamed: dict[int, int] = {}  # value -> its copy
        self.places: list[_SegmentCopies] = []
        self.names: Mapping[str, str] = {}  # name of a value -> name of its copy
        self.written: set[int] = set()  # copies that a node writes
        self.copied: list[int] = []  # recomputed nodes

    def copy(self, number: int, segment: SegmentRange) -> None:
        """Register the ops of a segment to recompute: those that write a value neither saved nor persistent."""
        place = _SegmentCopies(number)
        for position in range(*segment):
            n = self.forward.path[position]
            node = self.source.nodes[n]
            dropped = [v for v in node.writes if v not in self.saved and not self.forward.is_persistent(v)]
            if dropped and _may_repeat(self.source, node):
                place.nodes.append(n)
                for v in dropped:
                    self._new_value(v, number)
        self.places.append(place)

    def _new_value(self, v: int, number: int) -> None:
        if v in self.renamed:
            return  # written by several segments: the copy belongs to the first one registered
        value = self.source.values[v]
        name = reserve_name(value.name + self.suffix(number), self.value_names, "/copy")
        annotations = {**value.annotations, "copy_of": [value.name, number]}
        self.renamed[v] = len(self.values)
        self.values.append(replace(value, name=name, role=Role.ACTIVATION, annotations=MappingProxyType(annotations)))

    def graph(self, needed_only: bool) -> Graph:
        """The rewritten graph; `needed_only` omits copies without a reader."""
        source = self.source
        self.names = {source.values[v].name: self.values[new].name for v, new in self.renamed.items()}
        before = self._placed(needed_only)
        nodes: list[Node] = []
        number: list[int] = []  # node of the source -> its new id
        for n, node in enumerate(source.nodes):
            for place in before.get(n, ()):
                nodes += self._copies(place, len(nodes))
            number.append(len(nodes))
            after = tuple(number[a] for a in node.after)
            read = node if node.phase is Phase.FORWARD else self._reading_copies(node)
            nodes.append(replace(read, after=after) if after else read)
        return self._dense(nodes)

    def _placed(self, needed_only: bool) -> dict[int, list[_SegmentCopies]]:
        """Node of the source -> the copies placed before it, the first node of the backward pass that reads one."""
        nodes = self.source.nodes
        first_reader: dict[int, int] = {}  # copied value -> first non-forward node that reads it
        for n in reversed(range(len(nodes))):
            if nodes[n].phase is not Phase.FORWARD:
                first_reader.update((v, n) for v in nodes[n].reads if v in self.renamed)
        before: dict[int, list[_SegmentCopies]] = {}
        for place in self.places:
            outputs = [v for n in place.nodes for v in nodes[n].writes]
            first = min((first_reader[v] for v in outputs if v in first_reader), default=None)
            if first is not None:
                before.setdefault(first, []).append(self._needed(place, first_reader) if needed_only else place)
        return before

    def _needed(self, place: _SegmentCopies, first_reader: Mapping[int, int]) -> _SegmentCopies:
        """The copies that a backward op reads, directly or through other copies."""
        needed = nodes_computing([self.source.nodes[n] for n in place.nodes], first_reader, given=self.saved)
        return _SegmentCopies(place.number, [place.nodes[i] for i in needed])

    def _copies(self, place: _SegmentCopies, at: int) -> list[Node]:
        """Recomputed nodes of a segment, from new id `at` on; those that read no copy run after node `at - 1`."""
        first = len(self.source.values)
        copies: list[Node] = []
        written: set[int] = set()
        for n in place.nodes:
            node = self.source.nodes[n]
            reads_a_copy = any(self.renamed.get(v, v) in written for v in node.reads)
            copy = self._reading_copies(node)
            copy = replace(copy, outputs=tuple(v if v >= first else ABSENT for v in copy.outputs))
            annotations = {**copy.annotations, "origin": [node.name, 1], RECOMPUTED_ANNOTATION: True}
            name = reserve_name(node.name + self.suffix(place.number), self.node_names, "/copy")
            after = (at - 1,) if at and not reads_a_copy else ()
            copies.append(
                replace(copy, name=name, phase=Phase.BACKWARD, after=after, annotations=MappingProxyType(annotations))
            )
            written.update(copy.writes)
            self.copied.append(n)
        self.written |= written
        return copies

    def _reading_copies(self, node: Node) -> Node:
        """The node with each operand replaced by its copy, if there is one."""
        touched = (*node.reads, *node.writes, *(node.gradient_reads or ()))
        if self.renamed.keys().isdisjoint(touched):
            return node
        return remap_node(node, lambda v: self.renamed.get(v, v), annotations=self.annotated(node, self.names))

    def _dense(self, nodes: Sequence[Node]) -> Graph:
        """The graph without copies that no node writes, under dense ids."""
        first = len(self.source.values)
        kept = [v for v in range(len(self.values)) if v < first or v in self.written]
        return restrict_values(self.source, kept, nodes, self.values)
