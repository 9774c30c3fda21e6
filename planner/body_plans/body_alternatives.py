"""Body plans as choices: what pairs of bodies may save instead, measured, and the graph under a choice.

For each distinct pair: cuts through one trip forth and back say what to save, the planners lower the
workspace of the way back, and the Pareto set over (seconds each way, workspace each way, bytes saved by all
trips) becomes a group of alternatives. Pairs inside bodies are planned first. The first alternative is the
graph as it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from graph.analysis.cost import DeviceProfile, seconds_of, workspace_of
from graph.analysis.cost import expected_trips as predicted_trips
from graph.cancellation import cancellable
from graph.errors import BadGraph
from graph.ir import Graph, Node, Role
from graph.loop_remat import (
    BodyPair,
    JointGraph,
    SavePolicy,
    SnapshotPolicy,
    TailPolicy,
    apply_save_policies,
    find_pairs,
    joint_graphs,
    joint_graphs_under,
    just_in_time_backward,
    structure_key,
)
from graph.ops.control_flow import CALL, LoopInterface, trip_count
from planner.algorithms.greedy.gap_closing import GapCloser
from planner.body_plans.alternative_columns import ChoiceTable
from planner.body_plans.frontier import (
    UNSAVABLE,
    AlternativeCost,
    SaveCosts,
    evenly_spaced,
    pareto,
    saved_sets,
    with_intermediate_sets,
)
from planner.body_plans.snapshot_schedules import backward_schedule, row_counts
from planner.lowering.lower import BodyAlternatives, LoweredGraph, lower
from planner.lowering.realize import node_sequence
from planner.problem.evaluate import evaluate
from planner.problem.plan import Goal
from planner.request.target_runtime import Runtime

#: Alternatives of a pair at most.
MAX_PER_PAIR = 8
#: Numbers of last trips that may save more, for two savings next to each other; of such alternatives at most.
TAILS_BETWEEN, MAX_TAILS = 7, 48
#: Shares of a backward body's workspace that are asked for by running more of it again.
WORKSPACE_SHARES = (0.85, 0.6)
#: Savings of a pair for which that is tried.
MAX_WORKSPACE_REDUCED = 4
#: A body by itself: exact bytes, nothing written over, nothing handed out early.
BODY_RUNTIME = Runtime("body", 1, False, False, True, 0.0, "one trip of a body")
PICOSECOND = 1e-12


def with_body_plans(
    lowered: LoweredGraph, device: DeviceProfile, runtime: Runtime, known: Sequence[BodyAlternatives] = ()
) -> LoweredGraph:
    """`lowered` with a group of alternatives for each pair of bodies that has any.

    `known` are groups of the same model in another size, which are taken as they are where they fit.
    """
    graph = lowered.graph
    pairs = find_pairs(graph)
    kinds: dict[object, int] = {}
    kind_of = {pair: kinds.setdefault(structure_key(graph, pair), len(kinds)) for pair in pairs}
    if known and all(group.pair in kind_of and _fits(graph, group) for group in known):
        groups = list(known)
    else:
        groups = _groups(graph, kind_of, device)
    if not groups:
        return lowered
    return ChoiceTable(lowered, groups, [kind_of[group.pair] for group in groups], device, runtime).lowered()


def _groups(graph: Graph, kind_of: Mapping[BodyPair, int], device: DeviceProfile) -> list[BodyAlternatives]:
    """Groups of the pairs that save most, as many and with as many alternatives as the limits allow."""
    saved = {pair: sum(graph.values[v].nbytes for v in pair.droppable) for pair in kind_of}
    by_bytes = sorted(kind_of, key=lambda pair: (-saved[pair], pair.forward))[:MAX_PAIRS]
    kinds = list(dict.fromkeys(kind_of[pair] for pair in by_bytes))[:MAX_KINDS]
    chosen = [pair for pair in by_bytes if kind_of[pair] in kinds]
    most = max(2, MAX_ALTERNATIVES // max(1, len(chosen)))
    groups = []
    for pair in cancellable(sorted(chosen, key=lambda pair: pair.forward)):
        savings = body_plans_of(graph, pair, device)
        if len(savings) > 1:
            groups.append(BodyAlternatives(pair, tuple(savings[i] for i in evenly_spaced(len(savings), most))))
    return groups


def _fits(graph: Graph, group: BodyAlternatives) -> bool:
    """Whether a group's ways over time are for as many trips as the graph has."""
    most = trip_count(graph.values, graph.nodes[group.pair.forward]).most or 0
    return all(
        (saving.snapshots is None or saving.snapshots.trips == most) and (not saving.tail or saving.tail.trips < most)
        for saving in group.savings
        if saving is not None
    )


#: Pairs planned at most, of how many kinds, and their alternatives altogether: what they take is bounded.
MAX_PAIRS, MAX_KINDS, MAX_ALTERNATIVES = 400, 24, 1000
#: Ways to plan the pairs inside a body that are tried for the body.
MAX_INNER = 4
#: Nodes of a joint graph above which only its cuts are looked at.
LARGE_GRAPH_NODES = 300

_plans: dict[object, tuple[SavePolicy | None, ...]] = {}
_REMEMBERED = 256


def body_plans_of(graph: Graph, pair: BodyPair, device: DeviceProfile) -> tuple[SavePolicy | None, ...]:
    """What a pair may save: None, which is what it saves as it stands, then the rest of the Pareto set."""
    key = (structure_key(graph, pair), device.name, str(device))
    if key not in _plans:
        if len(_plans) >= _REMEMBERED:
            _plans.clear()
        _plans[key] = _BodyPlanSearch(graph, pair, device).found()
    return _plans[key]


class _BodyPlanSearch:
    """The plans of one pair under way."""

    def __init__(self, graph: Graph, pair: BodyPair, device: DeviceProfile):
        self.graph, self.pair, self.device = graph, pair, device
        self.forward = graph.nodes[pair.forward]

    def found(self) -> tuple[SavePolicy | None, ...]:
        savings: list[SavePolicy | None] = [None]
        figures = [self.figures(None)]
        for saving in dict.fromkeys(self.candidates()):
            self.add(saving, savings, figures)
        joints = joint_graphs(self.graph, self.pair)
        least = SavePolicy(tuple(just_in_time_backward(joint, ()) for joint in joints))  # recomputes everything
        ends = {i for i, saving in enumerate(savings) if saving == least}
        large = sum(len(joint.graph.nodes) for joint in joints) > LARGE_GRAPH_NODES
        front = pareto(figures, 2 * MAX_PER_PAIR, ends)[1:]
        for i in [] if large else [front[k] for k in evenly_spaced(len(front), MAX_WORKSPACE_REDUCED)]:
            chosen = savings[i]
            assert chosen is not None
            for calmer in dict.fromkeys(self.calmer(chosen, figures[i])):
                self.add(calmer, savings, figures)
        best = [(savings[i], figures[i]) for i in pareto(figures, MAX_PER_PAIR, ends)]
        for saving in dict.fromkeys(self.tails([saving for saving, _ in best], [] if large else savings, least)):
            self.add(saving, savings, figures)
        known = {saving for saving, _ in best}
        more = [(saving, row) for saving, row in zip(savings, figures, strict=True) if saving is None or saving.tail]
        best += [more[i] for i in pareto([row for _, row in more], MAX_TAILS) if more[i][0] not in known]
        savings, figures = [saving for saving, _ in best], [row for _, row in best]
        for saving in self.over_time():
            self.add(saving, savings, figures)
        return tuple(savings[i] for i in pareto(figures, len(figures)))

    def tails(
        self, best: Sequence[SavePolicy | None], tried: Sequence[SavePolicy | None], least: SavePolicy
    ) -> Iterator[SavePolicy]:
        """Savings of which the last trips save more: between two that are next to each other, any number of them.

        Behind the one that recomputes everything also those that take no more memory than it: with one such trip.
        """
        count = trip_count(self.graph.values, self.forward)
        if self.forward.op != "Scan" or not count.exact or count.most is None or count.most < 2:
            return
        whole = [saving for saving in best if saving is not None]
        for more, fewer in itertools.pairwise(whole):
            if more.inner == fewer.inner:
                for trips in evenly_spaced(count.most + 1, TAILS_BETWEEN + 2)[1:-1]:
                    yield replace(fewer, tail=TailPolicy(trips, more.backward[0]))
        for other in tried:
            if other is not None and other.inner == least.inner and other != least:
                yield replace(least, tail=TailPolicy(1, other.backward[0]))

    def over_time(self) -> Iterator[SavePolicy]:
        """Savings that keep the states before some trips only, where a trip's way back needs no more."""
        count = trip_count(self.graph.values, self.forward)
        if self.forward.op != "Scan" or not count.exact or count.most is None:
            return
        (joint,) = joint_graphs(self.graph, self.pair) or (None,)
        if joint is None:
            return
        keeps: list[list[int]] = [[*joint.emitted], [], self.states(), [*joint.emitted, *self.states()]]
        ways = list(dict.fromkeys(just_in_time_backward(joint, keep) for keep in keeps))
        offered = list(row_counts(count.most))
        few = MAX_PER_PAIR if len(joint.graph.nodes) > LARGE_GRAPH_NODES else len(offered)
        for i, rows in enumerate(offered[k] for k in evenly_spaced(len(offered), max(2, few))):
            snapshots = SnapshotPolicy(*backward_schedule(count.most, rows))
            if not i:
                ways = self.unbeaten(ways, snapshots)
            for row in ways:
                yield SavePolicy((row,), (), snapshots)

    def unbeaten(self, ways: list[tuple[int, ...]], snapshots: SnapshotPolicy) -> list[tuple[int, ...]]:
        """The ways back that can be written with snapshots, and that no other beats."""
        savings: list[SavePolicy | None] = []
        figures: list[AlternativeCost] = []
        for row in ways:
            self.add(SavePolicy((row,), (), snapshots), savings, figures)
        best = [savings[i] for i in (pareto(figures, len(figures)) if figures else ())]
        return [saving.backward[0] for saving in best if saving is not None]

    def add(self, saving: SavePolicy, savings: list[SavePolicy | None], figures: list[AlternativeCost]) -> None:
        """Measure one more; one that cannot be written is left out."""
        try:
            figures.append(self.figures(saving))
        except BadGraph:
            return
        savings.append(saving)

    def figures(self, saving: SavePolicy | None) -> AlternativeCost:
        pair, graph = self.pair, self.graph
        if saving is not None:
            graph, _ = apply_save_policies(graph, {pair: saving})
        forward, backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
        # Held for the way back: what is handed out for it, and what is there but would be gone without it.
        around = {*forward.writes, *(v for v in forward.reads if graph.values[v].role is Role.ACTIVATION)}
        saved = sum(graph.values[v].nbytes for v in around.intersection(backward.reads))
        out, back = (round(seconds_of(graph, node, self.device) / PICOSECOND) for node in (forward, backward))
        return AlternativeCost(out, back, workspace_of(graph, forward), workspace_of(graph, backward), saved)

    def candidates(self) -> Iterator[SavePolicy]:
        """Savings by the cuts of every joint graph, for each way the pairs inside may be planned."""
        for inner in self.inner():
            joints = joint_graphs_under(self.graph, self.pair, inner)
            rows = [self.ways_back(joint) for joint in joints]
            for i in range(max(map(len, rows), default=0)):
                yield SavePolicy(tuple(row[min(i, len(row) - 1)] for row in rows), inner)

    def inner(self) -> Iterator[tuple[tuple[SavePolicy | None, ...], ...]]:
        """Savings of the pairs inside: the first of each, the second, and so on."""
        joints = joint_graphs(self.graph, self.pair)
        plans = [[body_plans_of(j.graph, p, self.device) for p in find_pairs(j.graph)] for j in joints]
        yield ()
        for k in evenly_spaced(max((len(savings) for row in plans for savings in row), default=1), MAX_INNER + 1)[1:]:
            yield tuple(tuple(savings[min(k, len(savings) - 1)] for savings in row) for row in plans)

    def ways_back(self, joint: JointGraph) -> list[tuple[int, ...]]:
        """Sequences of the way back, from saving much to saving as little as there is."""
        columns = lower(joint.graph, self.device, BODY_RUNTIME)
        values = columns.buffer_value
        crossing = SaveCosts(
            np.array([self.price(joint, v) for v in values], np.int64),
            np.array([not self.must_cross(joint, v) for v in values], bool),
        )
        handed = [columns.value_buffer[v] for v in joint.backward_outputs if joint.must_be_saved(v)]
        sets = [[values[b] for b in saved] for saved in saved_sets(columns.problem, crossing, handed)]
        sizes = {v: joint.graph.values[v].nbytes for v in values}
        if len(joint.graph.nodes) > LARGE_GRAPH_NODES:
            sets = [sets[k] for k in evenly_spaced(len(sets), MAX_PER_PAIR // 2)]
        sets = [list(joint.saved), *sets, []]
        if len(joint.graph.nodes) <= LARGE_GRAPH_NODES:
            sets = with_intermediate_sets(sets, sizes)
        states = self.states()
        keeps = [list(joint.saved), *([*keep, *joint.emitted] for keep in sets), []]
        keeps += [[*keep, *states] for keep in keeps]
        return list(dict.fromkeys(just_in_time_backward(joint, keep) for keep in keeps))

    def states(self) -> list[int]:
        """States as a trip finds and as it leaves them: saved once, both are there on the way back."""
        if self.forward.op not in ("Scan", "Loop"):
            return []
        trips = LoopInterface.of(self.forward)
        return [v for i in range(trips.states) for v in (trips.state_in(i), trips.state_out(i))]

    @staticmethod
    def must_cross(joint: JointGraph, v: int) -> bool:
        return joint.must_be_saved(v) and v not in joint.emitted

    def price(self, joint: JointGraph, v: int) -> int:
        """Bytes that saving a value takes in all trips."""
        if not self.must_cross(joint, v):
            return 0
        value = joint.graph.values[v]
        if self.forward.op in ("If", CALL):
            anywhere = joint.savable(v)
            return value.nbytes if anywhere else UNSAVABLE
        bounded = v in joint.saved or trip_count(self.graph.values, self.forward).most is not None
        return value.nbytes * predicted_trips(self.graph, self.forward) if bounded else UNSAVABLE

    def calmer(self, saving: SavePolicy, figures: AlternativeCost) -> Iterator[SavePolicy]:
        """The same with the way back in an order, or with runs again, that holds less."""
        if figures.backward_workspace <= figures.forward_workspace:
            return
        graph, _ = apply_save_policies(self.graph, {self.pair: saving})
        backward = graph.nodes[self.pair.backward]
        for share in WORKSPACE_SHARES:
            rows = []
            for row, body in zip(saving.backward, _bodies(backward), strict=True):
                order = self.within(body, share)
                rows.append(tuple(row[n] for n in order))
            yield replace(saving, backward=tuple(rows))

    def within(self, body: Graph, share: float) -> list[int]:
        """Nodes of a backward body in an order of `share` of what it holds in its own; its outputs take nothing."""
        columns = lower(body, self.device, BODY_RUNTIME)
        size = columns.problem.size.copy()
        size[[columns.value_buffer[v] for v in body.outputs]] = 0
        inputs = sum(v.nbytes for v in body.values if v.role.value == "input")
        problem = replace(columns.problem, size=size)
        columns = replace(columns, problem=problem)
        given = evaluate(columns.problem, Goal(), np.arange(problem.tasks), "as_given").score.peak_bytes
        order, _ = GapCloser(problem).reduce_to(np.arange(problem.tasks), inputs + int((given - inputs) * share))
        return node_sequence(columns, evaluate(columns.problem, Goal(), order, "greedy")).nodes


def _bodies(node: Node) -> list[Graph]:
    """The bodies of a backward node as its joint graphs come."""
    keys = ("then_branch", "else_branch") if node.op == "If" else ("body",)
    return [node.bodies[key].graph for key in keys]
