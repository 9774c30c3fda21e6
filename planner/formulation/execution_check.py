"""Whether a rewritten graph computes what its source does: both are run, and every value is compared bit for bit.

The source runs plainly; the rewritten graph runs inside one arena at the planned addresses, freed
bytes overwritten. Inputs and parameters come from a seeded generator, the same for both by name.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from graph import cancellation
from graph.analysis.cost import device_named, seconds_of
from graph.errors import ArenaFault, BadGraph, CannotExecute
from graph.execution.interpreter import Arena, execute
from graph.execution.sample_inputs import sample_arrays
from graph.ir import Graph
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.lowering.realize import NodeSequence, node_sequence, realize, value_instances
from planner.problem.plan import Plan
from planner.request.plan_request import Request
from planner.verify.checker import check

# What "auto" executes: predicted seconds and bytes of both runs.
MAX_RUN_SECONDS = 5.0
MAX_RUN_BYTES = 2 << 30

EQUAL, DIFFERENT, NOT_EXECUTED = "equal", "different", "not executed"


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What running both graphs showed."""

    status: str  # EQUAL, DIFFERENT or NOT_EXECUTED
    how: str = ""
    why: str = ""
    peak_bytes: int | None = None  # that the rewritten graph held, as its run counted; None: not run at its own size


@dataclass(frozen=True, eq=False, slots=True)
class RealizedPlan:
    """A question with its answer, as a sequence and as a graph."""

    question: Formulation
    plan: Plan
    runs: NodeSequence
    rewritten: Graph

    @classmethod
    def of(cls, question: Formulation, order: np.ndarray, planner: str, choices: tuple[int, ...]) -> RealizedPlan:
        """The answer `order`, checked and with a layout."""
        plan = question.placed(question.evaluated(order, planner, choices), "fast")
        check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
        runs = node_sequence(question.lowered, plan)
        return cls(question, plan, runs, realize(runs))

    @property
    def source(self) -> Graph:
        return self.question.lowered.graph


def run_and_compare(
    planned: RealizedPlan, request: Request, smaller: Callable[[int], Formulation | None], cancel: threading.Event
) -> ExecutionResult:
    """Run both graphs and compare; `smaller(batch)` asks the same of the model with its batch cut down."""
    if request.execute == "no":
        return ExecutionResult(NOT_EXECUTED, why="not asked for")
    try:
        with cancellation.cancellation_scope(cancel):
            cancellation.check_cancelled()
            return _run_and_compare(planned, request, smaller)
    except cancellation.CancellationError:
        return ExecutionResult(NOT_EXECUTED, why="stopped")
    except CannotExecute as error:
        return ExecutionResult(NOT_EXECUTED, why=str(error))
    except ArenaFault as error:
        return ExecutionResult(DIFFERENT, "arena", str(error))


def _run_and_compare(
    planned: RealizedPlan, request: Request, smaller: Callable[[int], Formulation | None]
) -> ExecutionResult:
    if planned.plan.offsets is None:
        planned = RealizedPlan.of(planned.question, planned.plan.order, planned.plan.planner, planned.plan.choices)
    share = _share(planned)
    if request.execute == "yes" or share >= 1:
        return compare(planned, "arena", request)
    batch = _batch(planned.source)
    cut = _cut(planned, smaller, max(1, int(batch * share))) if batch > 1 else None
    if cut is not None and _share(cut) < 1 and _batch(cut.source) > 1:
        cut = _cut(planned, smaller, 1)
    if cut is None or _share(cut) < 1:
        limit = f"{MAX_RUN_SECONDS:.0f} s or {MAX_RUN_BYTES >> 30} GiB"
        why = f"a run is predicted above {limit}, and the batch cannot be cut"
        return ExecutionResult(NOT_EXECUTED, why=why + " further")
    ran = compare(cut, f"arena, batch cut to {_batch(cut.source)}", request)
    return replace(ran, peak_bytes=None)


def compare(planned: RealizedPlan, how: str, request: Request) -> ExecutionResult:
    """Run source and rewritten graph; every value of the second must be its origin's, bit for bit.

    A value that only the chosen body plans hand out has no origin; what comes of it has one.
    A graph of views alone has no step that could hold bytes, so no arena: it is run plainly.
    """
    source, rewritten = planned.source, planned.rewritten
    digests: dict[str, bytes] = {}
    made = {node.name: [planned.runs.graph.values[v].name for v in node.outputs] for node in planned.runs.graph.nodes}

    def remember(n: int, i: int, array: np.ndarray) -> None:
        digests[source.values[source.nodes[n].outputs[i]].name] = _digest(array)

    # A rewritten graph has the same inputs, parameters and states: they are drawn once.
    fed = {source.values[v].name: array for v, array in sample_arrays(source, request.seed).items()}
    execute(source, fed, seed=request.seed, watch=remember)
    wrong: list[str] = []

    def watch(n: int, i: int, array: np.ndarray) -> None:
        origin, run = rewritten.nodes[n].annotations["origin"]
        name = made[origin][i]
        if name in digests and digests[name] != _digest(array):
            wrong.append(f"output {i} of run {run} of {origin}")

    ran = execute(
        rewritten, fed, seed=request.seed, arena=arena_of(planned) if len(planned.plan.order) else None, watch=watch
    )
    if wrong:
        return ExecutionResult(DIFFERENT, how, f"{wrong[0]} is not what the original computes ({len(wrong)} in all)")
    if request.runtime == "arena" and not np.array_equal(ran.step_bytes, planned.runs.step_bytes):
        entry = int(np.flatnonzero(ran.step_bytes != planned.runs.step_bytes)[0])
        return ExecutionResult(
            DIFFERENT,
            how,
            f"{rewritten.nodes[entry].name} held {ran.step_bytes[entry]} bytes, "
            f"predicted {planned.runs.step_bytes[entry]}",
        )
    return ExecutionResult(EQUAL, how, peak_bytes=ran.peak_bytes)


def arena_of(planned: RealizedPlan) -> Arena:
    """The planned addresses, by value and node of the rewritten graph."""
    plan = planned.plan
    assert plan.offsets is not None and plan.arena_bytes is not None
    count = len(plan.lifetimes.buffer)
    value_offsets = [
        int(plan.offsets[k]) for k in value_instances(planned.question.lowered, plan, planned.runs, planned.rewritten)
    ]
    workspace = {
        int(place): int(plan.offsets[count + step])
        for step, place in enumerate(planned.runs.position)
        if plan.offsets[count + step] >= 0
    }
    return Arena(plan.arena_bytes, value_offsets, workspace)


def _cut(planned: RealizedPlan, smaller: Callable[[int], Formulation | None], batch: int) -> RealizedPlan | None:
    """The same plan on the model read again with a smaller batch; None when its nodes are others."""
    try:
        question = smaller(batch)
    except BadGraph:
        return None
    if question is None or [n.name for n in question.lowered.graph.nodes] != [n.name for n in planned.source.nodes]:
        return None
    if question.lowered.task_node != planned.question.lowered.task_node:
        return None
    if [group.savings for group in question.lowered.groups] != [g.savings for g in planned.question.lowered.groups]:
        return None
    return RealizedPlan.of(question, planned.plan.order, planned.plan.planner, planned.plan.choices)


def _share(planned: RealizedPlan) -> float:
    """How much of the work `auto` allows: 1 and more is within its limits."""
    reference, source = device_named("cpu-reference"), planned.source
    seconds = [seconds_of(source, node, reference) if node.cost.seconds is None else 0.0 for node in source.nodes]
    total = sum(seconds) + sum(seconds[n] for n in planned.runs.nodes)
    held = planned.question.baseline.score.peak_bytes + (planned.plan.arena_bytes or 0)
    return min(MAX_RUN_SECONDS / max(total, 1e-9), MAX_RUN_BYTES / max(held, 1))


def _batch(graph: Graph) -> int:
    """Leading length of the first input; 1 when there is none."""
    for v in graph.inputs:
        type = graph.values[v].type
        if type is not None and type.shape:
            return type.shape[0]
    return 1


def _digest(array: np.ndarray) -> bytes:
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    digest.update(np.asarray(array, order="C").reshape(-1).view(np.uint8).data)
    return digest.digest()
