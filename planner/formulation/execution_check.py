"""Execution check: run source and rewritten graph, and compare every value bit for bit.

The source runs without an arena. The rewritten graph runs inside one arena at the planned addresses, with freed bytes
overwritten. Inputs and parameters come from a seeded generator and are the same for both, by name. The gradients of the
source are compared with finite differences of its loss.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from graph import cancellation
from graph.analysis.cost import device_named, seconds_of
from graph.autodiff.objective import NotCompared
from graph.errors import ArenaFault, BadGraph, CannotExecute
from graph.execution.interpreter import Arena, execute
from graph.execution.node_count import expect
from graph.execution.sample_inputs import sample_arrays
from graph.execution.scheduled_memory import ScheduledArena
from graph.ir import Graph
from graph.training.gradient_check import NOT_COMPARED, GradientCheck, GradientProbe
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import with_copies_of
from planner.formulation.scheduled_arena import scheduled_arena
from planner.lowering.realize import NodeSequence, node_sequence, value_instances
from planner.problem.plan import Candidate, Plan
from planner.request.plan_request import Request

# Limits of `execute: auto`: predicted seconds and bytes of both runs together.
MAX_RUN_SECONDS = 5.0
MAX_RUN_BYTES = 2 << 30
_LIMITS = f"{MAX_RUN_SECONDS:.0f} s or {MAX_RUN_BYTES >> 30} GiB"

DIRECTIONS = 2  # of the finite differences

EQUAL, DIFFERENT, NOT_EXECUTED = "equal", "different", "not executed"
NOT_ASKED_FOR = "not asked for"  # `why` of a request without execution


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Result of the execution check."""

    status: str  # EQUAL, DIFFERENT or NOT_EXECUTED
    how: str = ""
    why: str = ""
    peak_bytes: int | None = None  # measured peak of the rewritten graph; None: not run at its full batch
    gradients: GradientCheck | None = None  # gradients beside finite differences; None: status is not EQUAL


@dataclass(frozen=True, eq=False, slots=True)
class SourceRun:
    """What a run of a source gives, for all of its plans."""

    digests: Mapping[str, bytes]  # of each value that a node writes, by name
    gradients: GradientCheck


@dataclass(frozen=True, eq=False, slots=True)
class RealizedPlan:
    """A plan as a node sequence and as a rewritten graph."""

    formulation: Formulation
    plan: Plan
    runs: NodeSequence

    @classmethod
    def from_plan(cls, formulation: Formulation, plan: Plan) -> RealizedPlan:
        """Realize a plan as it is, without a check."""
        return cls(formulation, plan, node_sequence(formulation.lowered, plan))

    @classmethod
    def of(cls, formulation: Formulation, candidate: Candidate) -> RealizedPlan:
        """Evaluate the candidate, place it with the layout `fast`, check it and realize it. Raises IllegalPlan."""
        plan = formulation.placed(formulation.plan_of(candidate), "fast")
        formulation.check(plan)
        return cls.from_plan(formulation, plan)

    @property
    def rewritten(self) -> Graph:
        return self.runs.rewritten

    @property
    def source(self) -> Graph:
        return self.formulation.lowered.source


def run_and_compare(
    planned: RealizedPlan,
    request: Request,
    smaller: Callable[[int], Formulation | None],
    cancel: threading.Event,
    source_runs: dict[int, SourceRun] | None = None,
) -> ExecutionResult:
    """Run both graphs and compare them, within the limits of `request.execute`.

    `smaller(batch)` returns the formulation of the model with a smaller batch, or None. Setting `cancel` ends the
    run with NOT_EXECUTED; ArenaFault becomes DIFFERENT. `source_runs` has the runs of the source by batch, for several
    plans of one model: those missing are added.
    """
    if request.execute == "no":
        return ExecutionResult(NOT_EXECUTED, why=NOT_ASKED_FOR)
    try:
        with cancellation.cancellation_scope(cancel):
            cancellation.check_cancelled()
            return _run_and_compare(planned, request, smaller, {} if source_runs is None else source_runs)
    except cancellation.CancellationError:
        return ExecutionResult(NOT_EXECUTED, why="stopped")
    except CannotExecute as error:
        return ExecutionResult(NOT_EXECUTED, why=str(error))
    except ArenaFault as error:
        return ExecutionResult(DIFFERENT, "arena", str(error))


def _run_and_compare(
    planned: RealizedPlan,
    request: Request,
    smaller: Callable[[int], Formulation | None],
    source_runs: dict[int, SourceRun],
) -> ExecutionResult:
    """Run at full batch, or for `execute: auto` at a batch within the limits, if there is one."""
    if planned.plan.offsets is None:
        planned = RealizedPlan.of(planned.formulation, planned.plan.candidate)
    share = _share(planned)
    if request.execute == "yes" or share >= 1:
        return compare(planned, "arena", request, source_runs)
    batch = _batch(planned.source)
    cut = _cut(planned, smaller, max(1, int(batch * share)), request) if batch > 1 else None
    if cut is not None and _share(cut) < 1 and _batch(cut.source) > 1:
        cut = _cut(planned, smaller, 1, request)
    if cut is None or _share(cut) < 1:
        why = f"predicted run exceeds {_LIMITS}, and the batch cannot be reduced further"
        return ExecutionResult(NOT_EXECUTED, why=why)
    ran = compare(cut, f"arena, batch cut to {_batch(cut.source)}", request, source_runs)
    return replace(ran, peak_bytes=None)


def compare(planned: RealizedPlan, how: str, request: Request, source_runs: dict[int, SourceRun]) -> ExecutionResult:
    """Run source and rewritten graph; each value of the rewritten graph must equal its origin bit for bit.

    A value that exists only under the chosen body plans has no origin; values computed from it do.
    A graph of views only has no steps and no arena: it runs without one.
    """
    rewritten = planned.rewritten
    # Inputs, parameters and states of both graphs are the same, so they are sampled once.
    feeds = {planned.source.values[v].name: array for v, array in sample_arrays(planned.source, request.seed).items()}
    batch = _batch(planned.source)
    expect(len(rewritten.nodes))
    if batch not in source_runs:
        source_runs[batch] = _run_source(planned, request, feeds)
    digests = source_runs[batch].digests
    output_names = {
        node.name: [planned.runs.graph.values[v].name for v in node.outputs] for node in planned.runs.graph.nodes
    }
    wrong: list[str] = []

    def watch(n: int, i: int, array: np.ndarray) -> None:
        origin, run = rewritten.nodes[n].annotations["origin"]
        name = output_names[origin][i]
        if name in digests and digests[name] != _digest(array):
            wrong.append(f"output {i} of run {run} of {origin}")

    ran = execute(
        rewritten, feeds, seed=request.seed, arena=arena_of(planned) if len(planned.plan.order) else None, watch=watch
    )
    if wrong:
        return ExecutionResult(DIFFERENT, how, f"{wrong[0]} differs from the original ({len(wrong)} values differ)")
    # Between the steps of engines side by side, a view has no time of its own.
    counted = np.ones(len(ran.step_bytes), bool) if planned.plan.schedule is None else _steps(planned)
    differs = counted & (ran.step_bytes != planned.runs.step_bytes)
    if request.runtime == "arena" and differs.any():
        entry = int(np.flatnonzero(differs)[0])
        return ExecutionResult(
            DIFFERENT,
            how,
            f"{rewritten.nodes[entry].name} held {ran.step_bytes[entry]:,} bytes, "
            f"predicted {planned.runs.step_bytes[entry]}",
        )
    return ExecutionResult(EQUAL, how, peak_bytes=ran.peak_bytes, gradients=source_runs[batch].gradients)


def _steps(planned: RealizedPlan) -> np.ndarray:
    """bool[entries]: those of the node sequence that are steps of the plan, not views."""
    return np.isin(np.arange(len(planned.runs.nodes)), planned.runs.position)


def _run_source(planned: RealizedPlan, request: Request, feeds: Mapping[str, np.ndarray]) -> SourceRun:
    """Run the source, and compare its gradients with finite differences."""
    source, probe = planned.source, _gradient_probe(planned, request)
    digests: dict[str, bytes] = {}
    expect(len(source.nodes) + (probe.nodes if isinstance(probe, GradientProbe) else 0))

    def watch(n: int, i: int, array: np.ndarray) -> None:
        digests[source.values[source.nodes[n].outputs[i]].name] = _digest(array)
        if isinstance(probe, GradientProbe):
            probe.watch(n, i, array)

    execute(source, feeds, seed=request.seed, watch=watch)
    return SourceRun(digests, _gradient_check(probe, feeds))


def _gradient_probe(planned: RealizedPlan, request: Request) -> GradientProbe | GradientCheck:
    """Probe of the source's gradients, or why there is none; within the limits of `execute: auto`."""
    objective, source = planned.formulation.objective, planned.source
    if objective is None:
        return GradientCheck(NOT_COMPARED, why="the graph was not differentiated here")
    try:
        probe = GradientProbe(source, objective, request.seed, DIRECTIONS)
    except NotCompared as reason:
        return GradientCheck(NOT_COMPARED, why=str(reason))
    if request.execute == "yes":
        return probe
    # A direction is two runs of the forward pass, and float64 takes twice the time and bytes.
    seconds = 4 * sum(_reference_seconds(probe.loss.graph))
    probe.directions = min(DIRECTIONS, int(MAX_RUN_SECONDS / max(seconds, 1e-9)))
    if not probe.directions or 3 * planned.formulation.baseline.score.peak_bytes > MAX_RUN_BYTES:
        return GradientCheck(NOT_COMPARED, why=f"predicted run in float64 exceeds {_LIMITS}")
    return probe


def _gradient_check(probe: GradientProbe | GradientCheck, feeds: Mapping[str, np.ndarray]) -> GradientCheck:
    try:
        return probe.compare(feeds) if isinstance(probe, GradientProbe) else probe
    except NotCompared as reason:
        return GradientCheck(NOT_COMPARED, why=str(reason))


def arena_of(planned: RealizedPlan) -> Arena | ScheduledArena:
    """Arena with the planned addresses, by value and by node of the rewritten graph; with copies, one in each space."""
    instances = value_instances(planned.formulation.lowered, planned.plan, planned.runs, planned.rewritten)
    arena = _device_arena(planned, instances)
    if planned.plan.schedule is None:
        return arena
    return scheduled_arena(planned.formulation.lowered, planned.plan, planned.runs, planned.rewritten, arena, instances)


def _device_arena(planned: RealizedPlan, instances: list[int]) -> Arena:
    plan = planned.plan
    assert plan.offsets is not None and plan.arena_bytes is not None
    count, value_offsets = len(plan.lifetimes.buffer), [int(plan.offsets[k]) for k in instances]
    workspace = {
        int(place): int(plan.offsets[count + step])
        for step, place in enumerate(planned.runs.position)
        if plan.offsets[count + step] >= 0
    }
    return Arena(plan.arena_bytes, value_offsets, workspace)


def _cut(
    planned: RealizedPlan, smaller: Callable[[int], Formulation | None], batch: int, request: Request
) -> RealizedPlan | None:
    """The same plan on the model with a smaller batch; None if its nodes, tasks or body alternatives differ."""
    try:
        formulation = smaller(batch)
    except BadGraph:
        return None
    names = [node.name for node in planned.source.nodes]
    if formulation is None or [node.name for node in formulation.lowered.graph.nodes] != names:
        return None
    formulation = replace(formulation, overlaps=planned.formulation.overlaps)
    if planned.formulation.lowered.copies is not None:
        buffers = planned.formulation.lowered.copies.buffer
        formulation = with_copies_of(formulation, request, buffers, planned.plan.order)
    if formulation.lowered.task_node != planned.formulation.lowered.task_node:
        return None
    if [group.savings for group in formulation.lowered.groups] != [
        g.savings for g in planned.formulation.lowered.groups
    ]:
        return None
    return RealizedPlan.of(formulation, planned.plan.candidate)


def _share(planned: RealizedPlan) -> float:
    """Limit of `auto` divided by the predicted work; 1 or more is within the limits."""
    seconds = _reference_seconds(planned.source)
    total = sum(seconds) + sum(seconds[n] for n in planned.runs.nodes if n < len(seconds))  # the rest are copies
    held = planned.formulation.baseline.score.peak_bytes + (planned.plan.arena_bytes or 0)
    return min(MAX_RUN_SECONDS / max(total, 1e-9), MAX_RUN_BYTES / max(held, 1))


def _reference_seconds(graph: Graph) -> list[float]:
    """Predicted seconds of each node in the interpreter."""
    reference = device_named("cpu-reference")
    return [seconds_of(graph, node, reference) if node.cost.seconds is None else 0.0 for node in graph.nodes]


def _batch(graph: Graph) -> int:
    """Leading length of the first input with a shape; 1 if there is none."""
    for v in graph.inputs:
        type = graph.values[v].type
        if type is not None and type.shape:
            return type.shape[0]
    return 1


def _digest(array: np.ndarray) -> bytes:
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    digest.update(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return digest.digest()
