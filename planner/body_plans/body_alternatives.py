"""Body plans as choices: alternatives of the values that each pair of bodies saves for its backward pass.

For each distinct pair: minimum cuts of the joint graph of one iteration select the values to save; reordering and
recomputation lower the workspace of the backward body. The Pareto set over (forward seconds, backward seconds, forward
workspace, backward workspace, bytes saved by all iterations) becomes a group of alternatives. Pairs inside bodies are
planned first. The first alternative is the graph unchanged.
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
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import BodyAlternatives, LoweredGraph
from planner.lowering.realize import node_sequence
from planner.problem.evaluate import evaluate
from planner.problem.plan import Goal
from planner.request.target_runtime import Runtime

#: Alternatives of a pair that save the same in every iteration; a pair without tails has the places of tails too.
MAX_PER_PAIR = 8
#: Lengths of a tail of iterations that saves more, tried between two neighbouring policies; alternatives with a tail.
TAILS_BETWEEN, MAX_TAILS = 7, 48
#: Targets for the workspace of a backward body, as shares, reached by reordering and recomputation.
WORKSPACE_SHARES = (0.85, 0.6)
#: Policies of a pair for which a smaller workspace is tried.
MAX_WORKSPACE_REDUCED = 4
#: Runtime of a single body: exact bytes, no in-place outputs, no early outputs.
BODY_RUNTIME = Runtime("body", 1, 0.0, "one iteration of a body", places=True)
PICOSECOND = 1e-12  # seconds
#: Limits of planning time: pairs planned, distinct structures among them, alternatives in total.
MAX_PAIRS, MAX_KINDS, MAX_ALTERNATIVES = 400, 24, 1000
#: Combinations of plans for the pairs inside a body.
MAX_INNER = 4
#: Nodes of a joint graph above which only its cuts are tried.
LARGE_GRAPH_NODES = 300


def with_body_plans(
    lowered: LoweredGraph, device: DeviceProfile, runtime: Runtime, known: Sequence[BodyAlternatives] = ()
) -> LoweredGraph:
    """Add a group of alternatives for each pair of bodies with two or more alternatives.

    `known` are groups of the same model at another size; they are reused if all of them fit.
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
    """Groups of the pairs that save the most bytes, within MAX_PAIRS, MAX_KINDS and MAX_ALTERNATIVES."""
    saved = {pair: sum(graph.values[v].nbytes for v in pair.droppable) for pair in kind_of}
    by_bytes = sorted(kind_of, key=lambda pair: (-saved[pair], pair.forward))[:MAX_PAIRS]
    kinds = list(dict.fromkeys(kind_of[pair] for pair in by_bytes))[:MAX_KINDS]
    chosen = [pair for pair in by_bytes if kind_of[pair] in kinds]
    limit = max(2, MAX_ALTERNATIVES // max(1, len(chosen)))
    groups = []
    for pair in cancellable(sorted(chosen, key=lambda pair: pair.forward)):
        savings = body_plans_of(graph, pair, device)
        if len(savings) > 1:
            groups.append(BodyAlternatives(pair, tuple(savings[i] for i in evenly_spaced(len(savings), limit))))
    return groups


def _fits(graph: Graph, group: BodyAlternatives) -> bool:
    """Whether snapshots and tails of a group match the number of iterations in the graph."""
    limit = trip_count(graph.values, graph.nodes[group.pair.forward]).bound or 0
    policies = [saving.checkpoints for saving in group.savings if saving is not None]
    return all(policy is None or policy.fits(limit) for policy in policies)


_plans: dict[object, tuple[SavePolicy | None, ...]] = {}
_MAX_CACHED = 256


def body_plans_of(graph: Graph, pair: BodyPair, device: DeviceProfile) -> tuple[SavePolicy | None, ...]:
    """Save policies of a pair: None (the graph unchanged), then the rest of the Pareto set. Cached."""
    key = (structure_key(graph, pair), device.name, str(device))
    if key not in _plans:
        if len(_plans) >= _MAX_CACHED:
            _plans.clear()
        _plans[key] = _BodyPlanSearch(graph, pair, device).policies()
    return _plans[key]


class _BodyPlanSearch:
    """Search for the save policies of one pair."""

    def __init__(self, graph: Graph, pair: BodyPair, device: DeviceProfile):
        self.graph, self.pair, self.device = graph, pair, device
        self.forward = graph.nodes[pair.forward]
        self.limit = MAX_PER_PAIR + (0 if self.may_be_checkpointed() else MAX_TAILS)

    def policies(self) -> tuple[SavePolicy | None, ...]:
        """Pareto set of the policies: cuts, smaller workspaces, tails, then snapshots."""
        savings: list[SavePolicy | None] = [None]
        figures = [self.figures(None)]
        for saving in dict.fromkeys(self.candidates()):
            self.add(saving, savings, figures)
        joints = joint_graphs(self.graph, self.pair)
        recompute_all = SavePolicy(tuple(just_in_time_backward(joint, ()) for joint in joints))
        fixed = {i for i, saving in enumerate(savings) if saving == recompute_all}
        is_large = sum(len(joint.graph.nodes) for joint in joints) > LARGE_GRAPH_NODES
        if not is_large:
            self._add_smaller_workspaces(savings, figures, fixed)
        chosen = pareto(figures, self.limit, fixed)
        tails = self.tails([savings[i] for i in chosen], [] if is_large else list(savings), recompute_all)
        for saving in dict.fromkeys(tails):
            self.add(saving, savings, figures)
        chosen += self._best_tails(savings, figures, {savings[i] for i in chosen})
        savings, figures = [savings[i] for i in chosen], [figures[i] for i in chosen]
        for saving in self.snapshot_policies():
            self.add(saving, savings, figures)
        return tuple(savings[i] for i in pareto(figures, len(figures)))

    @staticmethod
    def _best_tails(
        savings: list[SavePolicy | None], figures: list[AlternativeCost], known: set[SavePolicy | None]
    ) -> list[int]:
        """Pareto set of the policies with a tail and of the unchanged graph, without the known ones."""
        rows = [i for i, saving in enumerate(savings) if saving is None or saving.checkpoints]
        best = [rows[k] for k in pareto([figures[i] for i in rows], MAX_TAILS)]
        return [i for i in best if savings[i] not in known]

    def _add_smaller_workspaces(
        self, savings: list[SavePolicy | None], figures: list[AlternativeCost], fixed: set[int]
    ) -> None:
        """Add variants with a smaller backward workspace of policies spread over the Pareto set."""
        front = pareto(figures, 2 * self.limit, fixed)[1:]
        for i in [front[k] for k in evenly_spaced(len(front), MAX_WORKSPACE_REDUCED)]:
            chosen = savings[i]
            assert chosen is not None
            for reduced in dict.fromkeys(self.with_less_workspace(chosen, figures[i])):
                self.add(reduced, savings, figures)

    def tails(
        self, best: Sequence[SavePolicy | None], tried: Sequence[SavePolicy | None], recompute_all: SavePolicy
    ) -> Iterator[SavePolicy]:
        """Policies whose last iterations save more: tails of several lengths between each two neighbours.

        For the policy that recomputes everything also tails of one iteration, which need no more memory.
        """
        count = trip_count(self.graph.values, self.forward)
        if not self.may_be_checkpointed() or not count.exact or count.bound is None or count.bound < 2:
            return
        policies = [saving for saving in best if saving is not None]
        for more, fewer in itertools.pairwise(policies):
            if more.inner == fewer.inner:
                for trips in evenly_spaced(count.bound + 1, TAILS_BETWEEN + 2)[1:-1]:
                    yield replace(fewer, checkpoints=TailPolicy(trips, more.backward[0]))
        for other in tried:
            if other is not None and other.inner == recompute_all.inner and other != recompute_all:
                yield replace(recompute_all, checkpoints=TailPolicy(1, other.backward[0]))

    def snapshot_policies(self) -> Iterator[SavePolicy]:
        """Policies that snapshot the states before some iterations only, with a Revolve schedule."""
        count = trip_count(self.graph.values, self.forward)
        if not self.may_be_checkpointed() or not count.exact or count.bound is None:
            return
        (joint,) = joint_graphs(self.graph, self.pair) or (None,)
        if joint is None:
            return
        keeps: list[list[int]] = [[*joint.emitted], [], self.states(), [*joint.emitted, *self.states()]]
        sequences = list(dict.fromkeys(just_in_time_backward(joint, keep) for keep in keeps))
        counts_of_rows = list(row_counts(count.bound))
        few = MAX_PER_PAIR if len(joint.graph.nodes) > LARGE_GRAPH_NODES else len(counts_of_rows)
        for i, rows in enumerate(counts_of_rows[k] for k in evenly_spaced(len(counts_of_rows), max(2, few))):
            snapshots = SnapshotPolicy(*backward_schedule(count.bound, rows))
            if not i:
                sequences = self.pareto_sequences(sequences, snapshots)
            for row in sequences:
                yield SavePolicy((row,), (), snapshots)

    def may_be_checkpointed(self) -> bool:
        """Whether iterations may save different values; a runtime that has no such loop says `checkpointed: false`."""
        return self.forward.op == "Scan" and self.forward.annotations.get("checkpointed") is not False

    def pareto_sequences(self, sequences: list[tuple[int, ...]], snapshots: SnapshotPolicy) -> list[tuple[int, ...]]:
        """Pareto set of the backward sequences that can be written with snapshots."""
        savings: list[SavePolicy | None] = []
        figures: list[AlternativeCost] = []
        for row in sequences:
            self.add(SavePolicy((row,), (), snapshots), savings, figures)
        best = [savings[i] for i in (pareto(figures, len(figures)) if figures else ())]
        return [saving.backward[0] for saving in best if saving is not None]

    def add(self, saving: SavePolicy, savings: list[SavePolicy | None], figures: list[AlternativeCost]) -> None:
        """Measure a policy and append it; skip one that cannot be written as a graph."""
        try:
            figures.append(self.figures(saving))
        except BadGraph:
            return
        savings.append(saving)

    def figures(self, saving: SavePolicy | None) -> AlternativeCost:
        """Cost of a policy: picoseconds, workspace bytes, and bytes saved."""
        pair, graph = self.pair, self.graph
        if saving is not None:
            graph, _ = apply_save_policies(graph, {pair: saving})
        forward, backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
        # Held for the backward node: outputs for it, and inputs that would be freed without it.
        around = {*forward.writes, *(v for v in forward.reads if graph.values[v].role is Role.ACTIVATION)}
        saved = sum(graph.values[v].nbytes for v in around.intersection(backward.reads))
        out, back = (round(seconds_of(graph, node, self.device) / PICOSECOND) for node in (forward, backward))
        return AlternativeCost(out, back, workspace_of(graph, forward), workspace_of(graph, backward), saved)

    def candidates(self) -> Iterator[SavePolicy]:
        """Policies from the cuts of every joint graph, for each combination of plans of the pairs inside."""
        for inner in self.inner():
            joints = joint_graphs_under(self.graph, self.pair, inner)
            rows = [self.backward_sequences(joint) for joint in joints]
            for i in range(max(map(len, rows), default=0)):
                yield SavePolicy(tuple(row[min(i, len(row) - 1)] for row in rows), inner)

    def inner(self) -> Iterator[tuple[tuple[SavePolicy | None, ...], ...]]:
        """Combinations of policies of the pairs inside: none, then spread over each pair's Pareto set."""
        joints = joint_graphs(self.graph, self.pair)
        plans = [[body_plans_of(j.graph, p, self.device) for p in find_pairs(j.graph)] for j in joints]
        yield ()
        for k in evenly_spaced(max((len(savings) for row in plans for savings in row), default=1), MAX_INNER + 1)[1:]:
            yield tuple(tuple(savings[min(k, len(savings) - 1)] for savings in row) for row in plans)

    def backward_sequences(self, joint: JointGraph) -> list[tuple[int, ...]]:
        """Node sequences of the backward body, from the most to the fewest bytes saved."""
        columns = lower(joint.graph, self.device, BODY_RUNTIME)
        values = columns.buffer_value
        crossing = SaveCosts(
            np.array([self.save_bytes(joint, v) for v in values], np.int64),
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
        """Values of the loop states before and after an iteration; saved once, the backward pass has both."""
        if self.forward.op not in ("Scan", "Loop"):
            return []
        trips = LoopInterface.of(self.forward)
        return [v for i in range(trips.states) for v in (trips.state_in(i), trips.state_out(i))]

    @staticmethod
    def must_cross(joint: JointGraph, v: int) -> bool:
        return joint.must_be_saved(v) and v not in joint.emitted

    def save_bytes(self, joint: JointGraph, v: int) -> int:
        """Bytes that saving a value takes over all iterations; UNSAVABLE if it cannot be saved."""
        if not self.must_cross(joint, v):
            return 0
        value = joint.graph.values[v]
        if self.forward.op in ("If", CALL):
            anywhere = joint.savable(v)
            return value.nbytes if anywhere else UNSAVABLE
        bounded = v in joint.saved or trip_count(self.graph.values, self.forward).bound is not None
        return value.nbytes * predicted_trips(self.graph, self.forward) if bounded else UNSAVABLE

    def with_less_workspace(self, saving: SavePolicy, figures: AlternativeCost) -> Iterator[SavePolicy]:
        """The policy with a backward sequence that holds less, by reordering and recomputation."""
        if figures.backward_workspace <= figures.forward_workspace:
            return
        graph, _ = apply_save_policies(self.graph, {self.pair: saving})
        backward = graph.nodes[self.pair.backward]
        for share in WORKSPACE_SHARES:
            rows = []
            for row, body in zip(saving.backward, _bodies(backward), strict=True):
                order = self.sequence_within(body, share)
                rows.append(tuple(row[n] for n in order))
            yield replace(saving, backward=tuple(rows))

    def sequence_within(self, body: Graph, share: float) -> list[int]:
        """Node sequence of a backward body of at most `share` of its own bytes, if found; outputs take 0 bytes."""
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
    """Bodies of a backward node in the order of its joint graphs."""
    keys = ("then_branch", "else_branch") if node.op == "If" else ("body",)
    return [node.bodies[key].graph for key in keys]
