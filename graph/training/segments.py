"""Segments of a forward part: runs of ops between checkpoints, what crosses them, and what has to be held.

path      0 ──a──▶ 1 ──b──▶ 2 ──c──▶ 3 ──d──▶ 4       checkpoints a, c:  [0, 1)  [1, 3)
          ╰──────────a───────────────▶                 a is held, and read again by 3: it crosses
Positions count the nodes of the path, ranges are half-open. Source: Paddle's recompute pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from graph.analysis.effects import effect_of
from graph.errors import Findings, quoted
from graph.ir import Effect, Graph, Node, Phase, Role

SegmentRange = tuple[int, int]


@dataclass(frozen=True, eq=False, slots=True)
class ForwardPath:
    """Who writes and reads what along the forward path of a graph."""

    graph: Graph
    path: list[int]  # forward nodes on which the targets depend, ascending
    writer: dict[int, int]  # value -> position on the path that writes it
    readers: dict[int, list[int]]  # value -> positions that read it, ascending

    @classmethod
    def of(cls, graph: Graph, targets: Collection[int] | None = None) -> ForwardPath:
        """Of the forward nodes `targets` depend on; all forward nodes without targets. O(nodes + reads)."""
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
        """A parameter, constant or state: it is there throughout, and never renamed."""
        return self.graph.values[v].role in (Role.PARAMETER, Role.CONSTANT, Role.STATE)

    def inputs(self) -> list[int]:
        """Values that are read but never written and not persistent, and what readers of data hand out."""
        given = [v for v in self.readers if v not in self.writer and not self.is_persistent(v)]
        return given + self._made_from_nothing(Effect.ONCE)

    def seeds(self) -> list[int]:
        """What ops without inputs draw: seeds, which are held so that a repeat draws the same."""
        return self._made_from_nothing(Effect.RANDOM)

    def _made_from_nothing(self, effect: Effect) -> list[int]:
        """Values of ops on the path that read nothing and have that effect."""
        nodes = [self.graph.nodes[n] for n in self.path]
        sources = [node for node in nodes if not node.reads and effect_of(self.graph, node) is effect]
        return [v for node in sources for v in node.writes]

    def crossing(self, segment: SegmentRange) -> list[int]:
        """Values written in the segment and read behind it, then those read in it and written before."""
        begin, end = segment
        out = [v for p in range(begin, end) for v in self.node(p).writes if self.readers.get(v, [-1])[-1] >= end]
        into = [v for p in range(begin, end) for v in self.node(p).reads if self.writer.get(v, end) < begin]
        return [v for v in dict.fromkeys((*out, *into)) if not self.is_persistent(v)]

    def between(self, before: int, after: int) -> SegmentRange | None:
        """From the first reader of one value to the writer of the other, None where that is no run of ops."""
        if before not in self.readers or after not in self.writer:
            return None
        begin, end = self.readers[before][0], self.writer[after]
        return (begin, end + 1) if begin < end else None


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint ranges of the path, ascending, and what was noticed on the way to them."""

    ranges: tuple[SegmentRange, ...]
    checkpoints: tuple[int, ...]  # values that are held because they end a segment
    notes: tuple[str, ...] = ()  # the last one says why there is no segment, where there is none


def segments_between(statistics: ForwardPath, names: Sequence[str], unknown: str = "warn") -> Segments:
    """One segment from the start to the first checkpoint, then one between each two neighbours.

    Inputs come first, the others by the op that writes them. Unknown names are left out with a note;
    with `unknown` "error" they raise BadGraph. Weights cast right before a segment belong to it.
    """
    ordered, notes = ordered_checkpoints(statistics, names, unknown)
    ranges: list[SegmentRange] = []
    if ordered and ordered[0] in statistics.writer:
        ranges.append((0, statistics.writer[ordered[0]] + 1))
    ranges += filter(None, (statistics.between(a, b) for a, b in pairwise(ordered)))
    return normalized_segments(statistics, ranges, ordered, notes)


def ordered_checkpoints(
    statistics: ForwardPath, names: Sequence[str], unknown: str = "warn"
) -> tuple[list[int], list[str]]:
    """(checkpoints in the order they are written, each once, what was left out in words). Raises BadGraph."""
    ids = {statistics.graph.values[v].name: v for v in (*statistics.readers, *statistics.writer)}
    findings, notes = Findings(), []
    for i, name in enumerate(names):
        if name not in ids:
            notes.append(f"checkpoint {quoted(name)} is no value of the forward part; it is left out")
            findings.add(
                "unknown_checkpoint",
                f"checkpoints[{i}]",
                quoted(name),
                "a value of the forward part",
                "correct the name, or leave it out",
            )
    if unknown == "error":
        findings.settle()
    found = dict.fromkeys(ids[name] for name in names if name in ids)
    return sorted(found, key=lambda v: statistics.writer.get(v, -1)), notes


def normalized_segments(
    statistics: ForwardPath, ranges: Iterable[SegmentRange], checkpoints: Sequence[int], notes: Sequence[str]
) -> Segments:
    """The segments with casts of weights pulled in, disjoint; with a note when there is none."""
    result: list[SegmentRange] = []
    end = 0
    for begin, stop in sorted(ranges):
        begin = max(begin, end)
        while begin > end and _casts_a_weight(statistics, begin - 1):
            begin -= 1
        if begin < stop:
            result.append((begin, stop))
            end = stop
    why = () if result else ("nothing is recomputed: " + _why(statistics, checkpoints),)
    return Segments(tuple(result), tuple(checkpoints), (*notes, *why))


def segments_from_ranges(
    statistics: ForwardPath, ranges: Sequence[Sequence[int]], opt_out: Collection[int] = ()
) -> Segments:
    """The segments a user lists as half-open ranges of the path, less those numbered in `opt_out`.

    Raises BadGraph for ranges that are empty, overlap or leave the path, and for numbers there are not.
    """
    findings, end = Findings(), len(statistics.path)
    taken: list[SegmentRange] = []
    for i, given in enumerate(ranges):
        begin, stop = (*given, -1, -1)[:2]
        if len(given) != 2 or not 0 <= begin < stop <= end:
            findings.add(
                "bad_segment",
                f"segments[{i}]",
                f"{list(given)!r:.80}",
                f"[begin, end) with 0 <= begin < end <= {end}",
                "count the ops of the forward part from 0",
            )
        taken.append((begin, stop))
    for (_, stop), (begin, end) in pairwise(sorted(taken)):
        if begin < stop:
            findings.add(
                "bad_segment",
                "segments",
                f"[{begin}, {end}), which overlaps another",
                "disjoint segments",
                "end one where the other begins",
            )
    findings.settle()
    check_segment_numbers(opt_out, len(taken))
    chosen = sorted(segment for number, segment in enumerate(taken) if number not in opt_out)
    last = [v for _, stop in taken for v in statistics.node(stop - 1).writes]
    notes = () if chosen else ("nothing is recomputed: no segment is given, or all opted out",)
    return Segments(tuple(chosen), tuple(last), notes)


def segments_from_annotations(
    statistics: ForwardPath, annotation: str = "segment", opt_out: Collection[int] = (), shortest: int = 2
) -> Segments:
    """Runs of ops whose annotation names the same segment; runs shorter than `shortest` are no segments.

    `opt_out` are numbers of segments that stay as they are. Raises BadGraph when a segment is scattered
    or a number is out of range.
    """
    findings = Findings()
    runs: dict[str, list[int]] = {}
    for position in range(len(statistics.path)):
        node = statistics.node(position)
        name = node.annotations.get(annotation)
        if name is None:
            continue
        run = runs.setdefault(str(name), [])
        if run and run[-1] != position - 1:
            findings.add(
                "scattered_segment",
                f"nodes[{statistics.path[position]}]",
                f"{quoted(node.name)} of segment {quoted(str(name))}, behind ops of no or another segment",
                "ops of one segment in a row",
                "reorder them, or give this part another name",
            )
        run.append(position)
    ranges = [(run[0], run[-1] + 1) for run in runs.values() if len(run) >= shortest]
    findings.settle()
    check_segment_numbers(opt_out, len(ranges))
    chosen = [segment for number, segment in enumerate(ranges) if number not in opt_out]
    inside = {position for begin, end in ranges for position in range(begin, end - 1)}
    held = [v for p in range(len(statistics.path)) if p not in inside for v in statistics.node(p).writes]
    notes = () if chosen else ("nothing is recomputed: no run of ops is tagged as a segment, or all opted out",)
    return Segments(tuple(chosen), tuple(held), notes)


def select_segments(
    statistics: ForwardPath,
    checkpoints: Sequence[str] | None = None,
    ranges: Sequence[Sequence[int]] | None = None,
    opt_out: Collection[int] = (),
    unknown: str = "warn",
    build: Callable[[ForwardPath, Sequence[str], str], Segments] = segments_between,
) -> Segments:
    """The `ranges` given, or what `build` makes of the checkpoints, or the segments that nodes are tagged with.

    Segments numbered in `opt_out` are left out. Raises BadGraph.
    """
    opt_out = frozenset(opt_out)
    if ranges is not None:
        return segments_from_ranges(statistics, ranges, opt_out)
    if checkpoints is None:
        return segments_from_annotations(statistics, opt_out=opt_out)
    found = build(statistics, checkpoints, unknown)
    check_segment_numbers(opt_out, len(found.ranges))
    return replace(found, ranges=tuple(r for number, r in enumerate(found.ranges) if number not in opt_out))


def check_segment_numbers(opt_out: Collection[int], segments: int) -> None:
    """Raises BadGraph for numbers of segments there are not."""
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
    needed = set(targets)
    path = []
    for n in reversed(forward):
        if needed.intersection(graph.nodes[n].writes):
            path.append(n)
            needed.update(graph.nodes[n].reads)
    return path[::-1]


def _why(statistics: ForwardPath, checkpoints: Sequence[int]) -> str:
    if not checkpoints:
        return "no checkpoint is a value of the forward part"
    return "between the checkpoints lies no run of ops"


def _casts_a_weight(statistics: ForwardPath, position: int) -> bool:
    node = statistics.node(position)
    is_cast = node.op.rpartition("::")[2].lower() == "cast"
    return is_cast and all(statistics.is_persistent(v) for v in node.reads)
