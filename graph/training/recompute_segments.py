"""Segments run again in the backward part: copies of their ops, and gradients that read the copies.

forward   mul ──t──▶ add ──ck──▶ mean              held: ck
backward            mul' ──t'──▶ add_grad, mul_grad     t' is called after t and its segment

Copies stand right before the first op that reads one of them, and come after the op in front of them,
so that a scheduler does not start them early. What cannot be repeated is held. Source: Paddle's
recompute pass; where copies stand is put right (its own search from the end may put them too late).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from graph.analysis.effects import is_repeatable
from graph.errors import BadGraph, Findings, quoted
from graph.ir import ABSENT, Graph, Node, Phase, Role, Value
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_node, restrict_values
from graph.training.segments import ForwardPath, SegmentRange, Segments, select_segments
from graph.validate.check import check

RECOMPUTED_ANNOTATION = "recomputed"  # annotation of a node that is a copy
NESTED_POLICIES = ("heavy", "error")  # what a nested graph in a segment is: one op that is held, or refused


@dataclass(frozen=True, eq=False, slots=True)
class RecomputedGraph:
    """A graph whose segments are run again, and what was decided. Names are those of the source."""

    graph: Graph
    held: tuple[str, ...]  # kept for the backward part: checkpoints, what crosses, inputs, draws
    crossing: tuple[str, ...]  # held though no checkpoint: better checkpoints would avoid these
    renamed: Mapping[str, str]  # value -> what its copy is called
    copied: tuple[str, ...]  # nodes that run again
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
    """The training graph with the segments of `graph.training.segments.chosen` run again where that is needed.

    Raises BadGraph for an unknown loss, and as `chosen` and `with_recomputation` do.
    """
    statistics = ForwardPath.of(graph, [written_value(graph, loss)])
    return with_recomputation(
        graph, statistics, select_segments(statistics, checkpoints, ranges, opt_out, unknown), nested=nested
    )


def written_value(graph: Graph, loss: str) -> int:
    """The loss, which an op must write. Raises BadGraph."""
    for node in graph.nodes:
        for v in node.writes:
            if graph.values[v].name == loss:
                return v
    raise BadGraph.one(
        "unknown_loss", "loss", quoted(loss), "a value that an op of the graph writes", "name the value to minimise"
    )


def with_recomputation(
    graph: Graph,
    statistics: ForwardPath,
    segments: Segments,
    *,
    nested: str = "heavy",
    needed_only: bool = True,
    suffix: Callable[[int], str] = "/{}".format,
    annotated: Callable[[Node, Mapping[str, str]], Mapping[str, Any]] | None = None,
) -> RecomputedGraph:
    """`graph`, a training graph, with the ops of `segments` run again where its backward part reads them.

    Segments are numbered from the last; `suffix` of the number is put behind the name of a copied value.
    `needed_only` leaves out copies nobody reads. `annotated` gives the annotations of a node whose values
    were renamed. A nested graph inside a segment is held, or raises BadGraph with `nested` "error".
    """
    _check_nested(statistics, segments, nested)
    held, crossing = saved_values(statistics, segments)
    work = _RecomputeRewriter(graph, statistics, held, suffix, annotated or (lambda node, renamed: node.annotations))
    for number, segment in enumerate(reversed(segments.ranges)):
        work.copy(number, segment)
    result = work.graph(needed_only)
    check(result)
    names = [value.name for value in graph.values]
    return RecomputedGraph(
        result,
        tuple(names[v] for v in held),
        tuple(names[v] for v in crossing),
        {names[v]: work.values[new].name for v, new in work.renamed.items() if new in work.written},
        tuple(graph.nodes[n].name for n in work.copied),
        segments.notes,
    )


def saved_values(statistics: ForwardPath, segments: Segments) -> tuple[list[int], list[int]]:
    """(values kept for the backward part, those of them that cross segments and are no checkpoints)."""
    crossing = dict.fromkeys(v for segment in segments.ranges for v in statistics.crossing(segment))
    fixed = dict.fromkeys((*segments.checkpoints, *statistics.seeds(), *statistics.inputs()))
    for begin, end in segments.ranges:
        for position in range(begin, end):
            node = statistics.node(position)
            if not _may_repeat(statistics.graph, node):
                fixed.update(dict.fromkeys(node.writes))
    held = [v for v in dict.fromkeys((*crossing, *fixed)) if not statistics.is_persistent(v)]
    return held, [v for v in crossing if v not in fixed]


def _may_repeat(graph: Graph, node: Node) -> bool:
    """A second run gives the same again, and changes nothing."""
    if node.in_place or node.bodies or node.recompute == "never":
        return False
    return is_repeatable(graph, node)


def _check_nested(statistics: ForwardPath, segments: Segments, nested: str) -> None:
    if nested != "error":
        return
    findings = Findings()
    for begin, end in segments.ranges:
        for position in range(begin, end):
            node = statistics.node(position)
            if node.bodies:
                findings.add(
                    "nested_in_segment",
                    f"nodes[{statistics.path[position]}]",
                    f"{quoted(node.name)} with a nested graph inside a segment",
                    "segments of plain ops",
                    "end the segment before it, or let it be held as one op",
                )
    findings.settle()


@dataclass(slots=True)
class _SegmentCopies:
    """Copies of one segment."""

    number: int
    nodes: list[int] = field(default_factory=list)  # of the source, in order


class _RecomputeRewriter:
    """One rewriting: copied values and nodes beside those of the source."""

    def __init__(
        self,
        graph: Graph,
        statistics: ForwardPath,
        held: Collection[int],
        suffix: Callable[[int], str],
        annotated: Callable[[Node, Mapping[str, str]], Mapping[str, Any]],
    ):
        self.source, self.statistics, self.held = graph, statistics, frozenset(held)
        self.suffix, self.annotated = suffix, annotated
        self.values: list[Value] = list(graph.values)
        self.value_names = {value.name for value in graph.values}
        self.node_names = {node.name for node in graph.nodes}
        self.renamed: dict[int, int] = {}  # value -> its copy
        self.places: list[_SegmentCopies] = []
        self.names: Mapping[str, str] = {}  # the same by name
        self.written: set[int] = set()
        self.copied: list[int] = []

    def copy(self, number: int, segment: SegmentRange) -> None:
        """Note which ops of a segment run again: those that write something that is neither held nor persistent."""
        place = _SegmentCopies(number)
        for position in range(*segment):
            n = self.statistics.path[position]
            node = self.source.nodes[n]
            gone = [v for v in node.writes if v not in self.held and not self.statistics.is_persistent(v)]
            if gone and _may_repeat(self.source, node):
                place.nodes.append(n)
                for v in gone:
                    self._new_value(v, number)
        self.places.append(place)

    def _new_value(self, v: int, number: int) -> None:
        if v in self.renamed:
            return  # the first segment that is looked at wins
        value = self.source.values[v]
        name = reserve_name(value.name + self.suffix(number), self.value_names, "/copy")
        annotations = {**value.annotations, "copy_of": [value.name, number]}
        self.renamed[v] = len(self.values)
        self.values.append(replace(value, name=name, role=Role.ACTIVATION, annotations=MappingProxyType(annotations)))

    def graph(self, needed_only: bool) -> Graph:
        source, phases = self.source, [node.phase for node in self.source.nodes]
        self.names = {source.values[v].name: self.values[new].name for v, new in self.renamed.items()}
        first_reader: dict[int, int] = {}  # copied value -> first node of the backward part that reads it
        for n in reversed(range(len(source.nodes))):
            if phases[n] is not Phase.FORWARD:
                first_reader.update((v, n) for v in source.nodes[n].reads if v in self.renamed)
        before: dict[int, list[_SegmentCopies]] = {}  # node of the source -> copies that stand in front of it
        for place in self.places:
            made = [v for n in place.nodes for v in source.nodes[n].writes]
            first = min((first_reader[v] for v in made if v in first_reader), default=None)
            if first is not None:
                before.setdefault(first, []).append(self._needed(place, first_reader) if needed_only else place)
        nodes: list[Node] = []
        number: list[int] = []  # node of the source -> its new place
        for n, node in enumerate(source.nodes):
            for place in before.get(n, ()):
                nodes += self._copies(place, len(nodes))
            number.append(len(nodes))
            after = tuple(number[a] for a in node.after)
            read = node if phases[n] is Phase.FORWARD else self._reading_copies(node)
            nodes.append(replace(read, after=after) if after else read)
        return self._dense(nodes)

    def _needed(self, place: _SegmentCopies, first_reader: Mapping[int, int]) -> _SegmentCopies:
        """The copies that a backward op reads, or that such copies are made from."""
        wanted: set[int] = set()
        chosen: list[int] = []
        for n in reversed(place.nodes):
            node = self.source.nodes[n]
            if any(v in first_reader or v in wanted for v in node.writes if v in self.renamed):
                chosen.append(n)
                wanted.update(node.reads)
        return _SegmentCopies(place.number, chosen[::-1])

    def _copies(self, place: _SegmentCopies, at: int) -> list[Node]:
        """The nodes of a segment again; those that read no copy come after the node in front of all."""
        first = len(self.source.values)
        copies: list[Node] = []
        made: set[int] = set()
        for n in place.nodes:
            node = self.source.nodes[n]
            reads_a_copy = any(self.renamed.get(v, v) in made for v in node.reads)
            copy = self._reading_copies(node)
            copy = replace(copy, outputs=tuple(v if v >= first else ABSENT for v in copy.outputs))
            annotations = {**copy.annotations, "origin": [node.name, 1], RECOMPUTED_ANNOTATION: True}
            name = reserve_name(node.name + self.suffix(place.number), self.node_names, "/copy")
            after = (at - 1,) if at and not reads_a_copy else ()
            copies.append(
                replace(copy, name=name, phase=Phase.BACKWARD, after=after, annotations=MappingProxyType(annotations))
            )
            made.update(copy.writes)
            self.copied.append(n)
        self.written |= made
        return copies

    def _reading_copies(self, node: Node) -> Node:
        """The node with copies for what it reads and writes, where there are any."""
        touched = (*node.reads, *node.writes, *(node.gradient_reads or ()))
        if self.renamed.keys().isdisjoint(touched):
            return node
        return remap_node(node, lambda v: self.renamed.get(v, v), annotations=self.annotated(node, self.names))

    def _dense(self, nodes: Sequence[Node]) -> Graph:
        """The graph without copies of values nobody writes."""
        first = len(self.source.values)
        stay = [v for v in range(len(self.values)) if v < first or v in self.written]
        return restrict_values(self.source, stay, nodes, self.values)
