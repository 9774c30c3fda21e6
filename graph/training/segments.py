"""Segments of a forward pass: ranges of ops between checkpoints, and the values that cross them.

path      0 ──a──▶ 1 ──b──▶ 2 ──c──▶ 3 ──d──▶ 4       checkpoints a, c:  [0, 1)  [1, 3)
          ╰──────────a───────────────▶                 a is saved; node 3 reads it too: it crosses
Positions count the nodes of the path, ranges are half-open. Source: Paddle's recompute pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from graph.analysis.effects import effect_of
from graph.errors import Findings, quoted
from graph.ir import Effect, Graph, Node, Phase, Role
from graph.ir.reachability import nodes_computing

SegmentRange = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class ForwardPath:
    """Writers and readers of values along the forward path of a graph."""

    graph: Graph
    path: list[int]  # forward nodes on which the targets depend, ascending
    writer: dict[int, int]  # value -> position on the path that writes it
    readers: dict[int, list[int]]  # value -> positions that read it, ascending

    @classmethod
    def of(cls, graph: Graph, targets: Collection[int] | None = None) -> ForwardPath:
        """The path of forward nodes that `targets` depend on; None: all forward nodes. O(nodes + reads)."""
        path = _path(graph, targets)
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        for position, n in enumerate(path):
            node = graph.nodes[n]
            for v in node.reads:
                readers.setdefault(v, []).append(position)
            for v in node.writes:
                writer[v] = position
        return cls(graph, path, writer, readers)

    def node(self, position: int) -> Node:
        return self.graph.nodes[self.path[position]]

    def is_persistent(self, v: int) -> bool:
        """True for a parameter, constant or state: always live and never renamed."""
        return self.graph.values[v].role in (Role.PARAMETER, Role.CONSTANT, Role.STATE)

    def inputs(self) -> list[int]:
        """Values read but not written on the path and not persistent, and outputs of data readers."""
        given = [v for v in self.readers if v not in self.writer and not self.is_persistent(v)]
        return given + self._made_from_nothing(Effect.ONCE)

    def seeds(self) -> list[int]:
        """Outputs of random ops without inputs: seeds, saved so that recomputation draws the same numbers."""
        return self._made_from_nothing(Effect.RANDOM)

    def _made_from_nothing(self, effect: Effect) -> list[int]:
        """Outputs of ops on the path without inputs and with that effect."""
        nodes = [self.graph.nodes[n] for n in self.path]
        sources = [node for node in nodes if not node.reads and effect_of(self.graph, node) is effect]
        return [v for node in sources for v in node.writes]

    def crossing(self, segment: SegmentRange) -> list[int]:
        """Values written in the segment and read after it, then values read in it and written before it."""
        begin, end = segment
        out = [v for p in range(begin, end) for v in self.node(p).writes if self.readers.get(v, [-1])[-1] >= end]
        into = [v for p in range(begin, end) for v in self.node(p).reads if self.writer.get(v, end) < begin]
        return [v for v in dict.fromkeys((*out, *into)) if not self.is_persistent(v)]

    def between(self, before: int, after: int) -> SegmentRange | None:
        """Range from the first reader of `before` to the writer of `after`; None when it is empty."""
        if before not in self.readers or after not in self.writer:
            return None
        begin, end = self.readers[before][0], self.writer[after]
        return (begin, end + 1) if begin < end else None


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint ranges of the path, ascending, with checkpoints and notes for the user."""

    ranges: tuple[SegmentRange, ...]
    checkpoints: tuple[int, ...]  # values saved at the ends of segments
    notes: tuple[str, ...] = ()  # without any range, the last note is the reason


def segments_between(forward: ForwardPath, names: Sequence[str], unknown: str = "warn") -> Segments:
    """One segment from the start to the first checkpoint, then one between each pair of neighbours.

    Checkpoints are ordered by their writer, inputs first. Unknown names are ignored with a note; with `unknown`
    "error" they raise BadGraph. Casts of weights directly before a segment belong to it.
    """
    ordered, notes = ordered_checkpoints(forward, names, unknown)
    ranges: list[SegmentRange] = []
    if ordered and ordered[0] in forward.writer:
        ranges.append((0, forward.writer[ordered[0]] + 1))
    ranges += filter(None, (forward.between(a, b) for a, b in pairwise(ordered)))
    return normalized_segments(forward, ranges, ordered, notes)


def ordered_checkpoints(
    forward: ForwardPath, names: Sequence[str], unknown: str = "warn"
) -> tuple[list[int], list[str]]:
    """(checkpoints in the order of their writers, without repeats; notes on ignored names). Raises BadGraph."""
    ids = {forward.graph.values[v].name: v for v in (*forward.readers, *forward.writer)}
    findings, notes = Findings(), []
    for i, name in enumerate(names):
        if name not in ids:
            notes.append(f"checkpoint {quoted(name)} is not a value of the forward pass; ignored")
            findings.add(
                "unknown_checkpoint",
                f"checkpoints[{i}]",
                quoted(name),
                "a value of the forward pass",
                "correct the name, or remove it",
            )
    if unknown == "error":
        findings.settle()
    checkpoints = dict.fromkeys(ids[name] for name in names if name in ids)
    return sorted(checkpoints, key=lambda v: forward.writer.get(v, -1)), notes


def normalized_segments(
    forward: ForwardPath, ranges: Iterable[SegmentRange], checkpoints: Sequence[int], notes: Sequence[str]
) -> Segments:
    """Disjoint segments, with casts of weights directly before them included; with a note when there is none."""
    result: list[SegmentRange] = []
    end = 0
    for begin, stop in sorted(ranges):
        begin = max(begin, end)
        while begin > end and _casts_a_weight(forward, begin - 1):
            begin -= 1
        if begin < stop:
            result.append((begin, stop))
            end = stop
    reason = () if result else ("nothing is recomputed: " + _no_segment_reason(checkpoints),)
    return Segments(tuple(result), tuple(checkpoints), (*notes, *reason))


def segments_from_ranges(
    forward: ForwardPath, ranges: Sequence[Sequence[int]], opt_out: Collection[int] = ()
) -> Segments:
    """Segments from half-open `ranges` of the path, without those numbered in `opt_out`.

    Raises BadGraph for ranges that are empty, overlap or exceed the path, and for unknown numbers.
    """
    findings, end = Findings(), len(forward.path)
    taken: list[SegmentRange] = []
    for i, given in enumerate(ranges):
        begin, stop = (*given, -1, -1)[:2]
        if len(given) != 2 or not 0 <= begin < stop <= end:
            findings.add(
                "bad_segment",
                f"segments[{i}]",
                f"{list(given)!r:.80}",
                f"[begin, end) with 0 <= begin < end <= {end}",
                "count the ops of the forward pass from 0",
            )
        taken.append((begin, stop))
    for (_, stop), (begin, end) in pairwise(sorted(taken)):
        if begin < stop:
            findings.add(
                "bad_segment",
                "segments",
                f"[{begin}, {end}), which overlaps another",
                "disjoint segments",
                "end one range where the other begins",
            )
    findings.settle()
    check_segment_numbers(opt_out, len(taken))
    chosen = sorted(segment for number, segment in enumerate(taken) if number not in opt_out)
    last = [v for _, stop in taken for v in forward.node(stop - 1).writes]
    notes = () if chosen else ("nothing is recomputed: no segment is given, or all are opted out",)
    return Segments(tuple(chosen), tuple(last), notes)


def segments_from_annotations(
    forward: ForwardPath, annotation: str = "segment", opt_out: Collection[int] = (), shortest: int = 2
) -> Segments:
    """Segments from `annotation`: runs of at least `shortest` ops with the same entry.

    `opt_out`: numbers of segments not to recompute. Raises BadGraph when a segment is not contiguous or a number is
    out of range.
    """
    findings = Findings()
    runs: dict[str, list[int]] = {}
    for position in range(len(forward.path)):
        node = forward.node(position)
        name = node.annotations.get(annotation)
        if name is None:
            continue
        run = runs.setdefault(str(name), [])
        if run and run[-1] != position - 1:
            findings.add(
                "scattered_segment",
                f"nodes[{forward.path[position]}]",
                f"{quoted(node.name)} of segment {quoted(str(name))}, after ops of no or another segment",
                "contiguous ops in each segment",
                "reorder them, or give this part another segment name",
            )
        run.append(position)
    ranges = [(run[0], run[-1] + 1) for run in runs.values() if len(run) >= shortest]
    findings.settle()
    check_segment_numbers(opt_out, len(ranges))
    chosen = [segment for number, segment in enumerate(ranges) if number not in opt_out]
    inside = {position for begin, end in ranges for position in range(begin, end - 1)}
    held = [v for p in range(len(forward.path)) if p not in inside for v in forward.node(p).writes]
    notes = () if chosen else ("nothing is recomputed: no ops are annotated as a segment, or all are opted out",)
    return Segments(tuple(chosen), tuple(held), notes)


def select_segments(
    forward: ForwardPath,
    checkpoints: Sequence[str] | None = None,
    ranges: Sequence[Sequence[int]] | None = None,
    opt_out: Collection[int] = (),
    unknown: str = "warn",
    build: Callable[[ForwardPath, Sequence[str], str], Segments] = segments_between,
) -> Segments:
    """Segments from `ranges`, else from checkpoints by `build`, else from annotations of nodes.

    Segments numbered in `opt_out` are not recomputed. Raises BadGraph.
    """
    opt_out = frozenset(opt_out)
    if ranges is not None:
        return segments_from_ranges(forward, ranges, opt_out)
    if checkpoints is None:
        return segments_from_annotations(forward, opt_out=opt_out)
    segments = build(forward, checkpoints, unknown)
    check_segment_numbers(opt_out, len(segments.ranges))
    return replace(segments, ranges=tuple(r for number, r in enumerate(segments.ranges) if number not in opt_out))


def check_segment_numbers(opt_out: Collection[int], segments: int) -> None:
    """Raise BadGraph for numbers in `opt_out` that are not below `segments`."""
    findings = Findings()
    for number in opt_out:
        if not 0 <= number < segments:
            findings.add(
                "unknown_segment",
                "opt_out",
                f"segment {number} of {segments}",
                f"a number from 0 to {segments - 1}",
                "count the segments from 0",
            )
    findings.settle()


def _path(graph: Graph, targets: Collection[int] | None) -> list[int]:
    forward = [n for n, node in enumerate(graph.nodes) if node.phase is Phase.FORWARD]
    if targets is None:
        return forward
    return [forward[i] for i in nodes_computing([graph.nodes[n] for n in forward], targets)]


def _no_segment_reason(checkpoints: Sequence[int]) -> str:
    return "no ops between the checkpoints" if checkpoints else "no checkpoint is a value of the forward pass"


def _casts_a_weight(forward: ForwardPath, position: int) -> bool:
    node = forward.node(position)
    is_cast = node.op.rpartition("::")[2].lower() == "cast"
    return is_cast and all(forward.is_persistent(v) for v in node.reads)
