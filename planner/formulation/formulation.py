"""Formulation: a lowered graph with a goal, byte accounting, a lower bound and the baseline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from graph.autodiff.objective import Objective
from planner.formulation.lower_bound import LowerBound
from planner.formulation.memory_accounting import MemoryAccounting
from planner.layout import place, place_again, place_by_sweeps, place_toward, place_within
from planner.layout.allocation_trace import Reservation, allocation_trace, reservation
from planner.layout.known_places import KnownPlaces
from planner.lowering.lowered_graph import LoweredGraph
from planner.problem import DEVICE, HOST, RESIDENT, Problem, liveness, schedule
from planner.problem.alternatives import aligned, resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.monitor import CostBound, Monitor
from planner.problem.plan import Candidate, Goal, Order, Plan, Score
from planner.request.budget import MAX_BYTES
from planner.search import lexicographic, portfolio
from planner.search.scores import goal_score
from planner.verify.checker import DisplayNames, check

ALIGNMENT = 64  # bytes; exists in layouts only
SWEEPS = 100  # iterations of a layout that no monitor limits, such as that in host memory


@dataclass(frozen=True, eq=False, slots=True)
class Formulation:
    """One problem and one goal, with the accounting that turns planner bytes into reported bytes."""

    lowered: LoweredGraph
    goal: Goal
    count: MemoryAccounting
    budget_bytes: int | None  # as reported; None if `goal.max_overhead` is the limit
    bound: LowerBound
    baseline: Plan
    memory_bytes: int  # of the device, or `request.fits`
    warnings: tuple[str, ...] = ()
    objective: Objective | None = None  # the function that the graph's gradients belong to; None: not known
    may_copy: bool = False  # copies to the host were searched for; `lowered` has those of one plan
    overlaps: bool = False  # collectives run beside compute
    places: bool = False  # the runtime uses the planned addresses, so that the budget limits the arena

    @property
    def has_engines(self) -> bool:
        """Whether engines run side by side, so that the cost of a plan is the makespan and its schedule has times."""
        return self.overlaps or self.lowered.copies is not None

    @property
    def baseline_cost(self) -> int:
        return self.baseline.score.cost

    @property
    def baseline_bytes(self) -> int:
        """Reported bytes of the step without a plan, which budgets in percent and savings refer to.

        The peak; where the runtime uses the planned addresses, with all sizes rounded up to the alignment.
        """
        rounded = self.in_arena_bytes()
        problem, order = rounded.lowered.problem, self.baseline.order
        unlimited = replace(self.goal, budget_bytes=None)
        peak = schedule.score(problem, unlimited, order).peak_bytes if self.overlaps else liveness.peak(problem, order)
        return rounded.count.counted(peak)

    def in_arena_bytes(self) -> Formulation:
        """The formulation with sizes and budget in bytes of the arena, for searches; unchanged if nothing is rounded.

        The plans found are to be evaluated by the formulation with exact sizes.
        """
        problem = aligned(self.lowered.problem, ALIGNMENT) if self.places else self.lowered.problem
        if problem is self.lowered.problem:
            return self
        count = replace(self.count, excluded_bytes=problem.resident_bytes() if self.count.excluded_bytes else 0)
        goal = self.goal
        if self.budget_bytes and goal.budget_bytes:
            goal = replace(goal, budget_bytes=held_budget(count, self.budget_bytes))
        return replace(self, lowered=replace(self.lowered, problem=problem, known={}), count=count, goal=goal)

    def monitor(
        self,
        on_progress: Callable[[Order, Score], None] | None = None,
        cancel: threading.Event | None = None,
        seconds: float | None = None,
    ) -> Monitor:
        """Monitor of one search for the goal, with the bounds that prove a plan optimal.

        It gets `seconds`, which may be over; without them, and under an iteration limit, those of the goal.
        """
        goal = self.goal if seconds is None else self.goal.limited(max(0.0, seconds), self.goal.iterations)

        def judge(order: Order) -> Score:
            return goal_score(self.lowered.problem, self.goal, order)

        return Monitor(
            judge,
            goal.seconds,
            goal.iterations,
            on_progress,
            cancel or threading.Event(),
            cost_bound=CostBound(self.bound.cost if self.goal.budget_bytes else 0),
            peak_bound=self.bound.peak_bytes,
        )

    def names(self) -> DisplayNames:
        """Names of tasks and buffers for messages."""
        return DisplayNames(self.lowered.name_of_task, self.lowered.name_of_buffer)

    def evaluated(self, order: Order, planner: str, choices: Sequence[int] = ()) -> Plan:
        """Evaluate an order into a plan; with copies or overlap, on engines side by side."""
        if self.has_engines:
            return schedule.evaluate(self.lowered.problem, self.goal, order, planner, choices)
        return evaluate(self.lowered.problem, self.goal, order, planner, choices)

    def search(self, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Plan:
        """Best plan that `planner` finds within the monitor's limits; no worse than any of the seeds.

        If none is within the budget, the lowest peak is not searched for.
        """
        return self.plan_of(lexicographic.search_budget(self.lowered.problem, self.goal, planner, monitor, seeds))

    def plan_of(self, candidate: Candidate) -> Plan:
        """Evaluate a candidate into a plan."""
        return self.evaluated(candidate.order, candidate.planner, candidate.choices)

    def check(self, plan: Plan) -> None:
        """Accept the plan, and its addresses if it has some, or raise IllegalPlan."""
        check(self.lowered.problem, self.goal, plan, ALIGNMENT, self.names())

    def checked(self, plan: Plan) -> Plan:
        """The plan, accepted by the independent checker. Raises IllegalPlan."""
        self.check(plan)
        return plan

    def check_baseline(self) -> None:
        """Accept the baseline or raise IllegalPlan; it was evaluated before the budget was known."""
        replace(self, goal=replace(self.goal, budget_bytes=None)).check(self.baseline)

    def mirrored(self) -> Plan:
        """Plan of MXNet's mirroring, for comparison; without copies."""
        if self.lowered.plain is not None:
            return replace(self, lowered=self.lowered.plain).mirrored()
        found = portfolio.search(self.lowered.problem, self.goal, "mirror", self.monitor())
        # On engines side by side, a budget would delay steps.
        free = replace(self, goal=replace(self.goal, budget_bytes=None)) if self.overlaps else self
        return free.checked(free.evaluated(found.order, "mirror"))

    def overhead(self, cost: int) -> float:
        """Extra time of so many ticks over the baseline: 0.034 = 3.4%."""
        return cost / self.baseline_cost - 1 if self.baseline_cost else 0.0

    def counted_peak(self, plan: Plan) -> int:
        """Peak of a plan in reported bytes."""
        return self.count.counted(plan.score.peak_bytes)

    def placed(self, plan: Plan, layout: str, monitor: Monitor | None = None) -> Plan:
        """The plan with an address for every instance and workspace; unchanged for the layout `none`.

        `monitor` limits the search for a better layout.
        """
        if layout == "none":
            return plan
        return self._with_addresses(plan, partial(place, layout), monitor or self.monitor())

    def swept(self, plan: Plan, monitor: Monitor | None = None) -> Plan:
        """The plan with an address for every instance and workspace, by quick sweeps alone.

        Without a monitor by SWEEPS iterations, whatever the goal.
        """
        return self._with_addresses(plan, place_by_sweeps, monitor or _counted(plan))

    def packed(self, plan: Plan, monitor: Monitor, only_within: bool = False) -> Plan:
        """The placed plan with device addresses within the budget if such a packing is found, else the plan.

        By the clock the plan has the smallest arena found, if that is smaller, unless `only_within`.
        """
        problem = resolve_choices(self.lowered.problem, plan.choices)
        capacity = (plan.arena_bytes or 0) - self.bytes_over_budget(plan)
        on_device, workspace = _on_device(problem), problem.workspace[plan.order]
        place_tighter = place_within if only_within or monitor.iterations is not None else place_toward
        found = place_tighter(capacity, plan.lifetimes, on_device, workspace, ALIGNMENT, monitor)
        if found is None or plan.offsets is None or found[1] >= (plan.arena_bytes or 0):
            return plan
        offsets = np.where(self.is_on_host(plan), plan.offsets, found[0])
        return replace(plan, offsets=offsets, arena_bytes=found[1])

    def packed_from(
        self, plan: Plan, known: Plan, origin: np.ndarray, moves: int, stop: Callable[[], bool]
    ) -> Plan | None:
        """The plan with addresses within the budget, by repair of those of a known plan; None if none are found.

        `origin`, int64[s], ascending: the step of the known plan that each step was. Repairs take at most `moves` for
        each storage, and end at `stop`. Not for plans on engines side by side.
        """
        problem = resolve_choices(self.lowered.problem, plan.choices)
        capacity = (known.arena_bytes or 0) - self.needed_bytes(known) + (self.budget_bytes or 0)
        assert known.offsets is not None
        places = KnownPlaces(known.lifetimes, problem.workspace[known.order], known.offsets)
        on_device, workspace = _on_device(problem), problem.workspace[plan.order]
        found = place_again(capacity, places, origin, plan.lifetimes, on_device, workspace, ALIGNMENT, moves, stop)
        return None if found is None else replace(plan, offsets=found[0], arena_bytes=found[1])

    def _with_addresses(self, plan: Plan, find: Callable[..., tuple[np.ndarray, int]], monitor: Monitor) -> Plan:
        """The plan with the addresses on the device that `find` returns, and those in host memory."""
        problem = resolve_choices(self.lowered.problem, plan.choices)
        workspace = problem.workspace[plan.order]
        offsets, arena_bytes = find(plan.lifetimes, _on_device(problem), workspace, ALIGNMENT, monitor)
        found = replace(plan, offsets=offsets, arena_bytes=arena_bytes)
        return self.with_host_addresses(found) if self.has_engines else found

    def with_host_addresses(self, plan: Plan) -> Plan:
        """The plan with addresses in host memory, which follow from its lifetimes; those on the device stay."""
        problem, lives = resolve_choices(self.lowered.problem, plan.choices), plan.lifetimes
        on_host, no_workspace = np.where(problem.space == HOST, problem.size, 0), np.zeros(len(plan.order), np.int64)
        found = place_by_sweeps(lives, on_host, no_workspace, ALIGNMENT, _counted(plan))
        limit = self.goal.host_bytes
        if limit is not None and found[1] > limit:
            found = place_within(limit, lives, on_host, no_workspace, ALIGNMENT, _counted(plan)) or found
        host, host_bytes = found
        offsets = None if plan.offsets is None else np.where(self.is_on_host(plan), host, plan.offsets)
        return replace(plan, offsets=offsets, host_arena_bytes=host_bytes)

    def is_on_host(self, plan: Plan) -> np.ndarray:
        """bool[k + s]: which of the plan's offsets are in host memory; workspaces are on the device."""
        on_host = self.lowered.problem.space[plan.lifetimes.buffer] == HOST
        return np.append(on_host, np.zeros(len(plan.order), bool))

    def reservation(self, plan: Plan) -> Reservation:
        """What allocators that choose addresses themselves reserve for the plan, all residents included."""
        problem = resolve_choices(self.lowered.problem, plan.choices)
        trace = allocation_trace(plan.lifetimes, _on_device(problem), problem.workspace[plan.order])
        return reservation(trace, self.memory_bytes - self.count.reserve_bytes)

    def arena_bytes(self, plan: Plan) -> int | None:
        """Arena of a plan in reported bytes; None without addresses.

        A graph without tasks has no addresses for its residents: they are in the peak.
        """
        if plan.arena_bytes is None:
            return None
        placed = plan.arena_bytes - self.resident_arena_bytes(plan) + self.count.reserve_bytes
        return max(placed, self.counted_peak(plan))

    def needed_bytes(self, plan: Plan) -> int:
        """Reported bytes that a plan needs: the arena where the runtime uses the planned addresses, else the peak."""
        arena = self.arena_bytes(plan) if self.places else None
        return self.counted_peak(plan) if arena is None else arena

    def needed_with_addresses(self, plan: Plan) -> int:
        """As `needed_bytes`, of a plan that may have no addresses yet: then with quick ones."""
        return self.needed_bytes(self.placed(plan, "fast") if self.places and plan.offsets is None else plan)

    def bytes_over_budget(self, plan: Plan) -> int:
        """Reported bytes that a plan needs above the budget; 0 without a budget, or if the lowest peak is the goal."""
        return max(0, self.needed_bytes(plan) - self.budget_bytes) if self.budget_bytes else 0

    def host_bytes_over_limit(self, plan: Plan) -> int:
        """Bytes that a plan needs above the limit on host memory; as `needed_bytes`, of the arena or of the peak."""
        if self.goal.host_bytes is None or plan.schedule is None:
            return 0
        arena = plan.host_arena_bytes if self.places else None
        needed = int(plan.schedule.host_bytes.max(initial=0)) if arena is None else arena
        return max(0, needed - self.goal.host_bytes)

    def is_within_budget(self, plan: Plan) -> bool:
        """Whether what a plan needs is within the budget, and in host memory within its limit."""
        return not self.bytes_over_budget(plan) and not self.host_bytes_over_limit(plan)

    def resident_arena_bytes(self, plan: Plan) -> int:
        """Bytes of uncounted residents at the bottom of the arena."""
        problem, lifetimes = self.lowered.problem, plan.lifetimes
        if not self.count.excluded_bytes or plan.offsets is None:
            return 0
        resident = np.flatnonzero((problem.hold[lifetimes.buffer] == RESIDENT) & (lifetimes.stop > lifetimes.start))
        ends = plan.offsets[resident] + problem.size[lifetimes.buffer[resident]]
        return -(-int(ends.max(initial=0)) // ALIGNMENT) * ALIGNMENT


def _counted(plan: Plan) -> Monitor:
    """Monitor of a layout of the plan that ends after SWEEPS iterations."""
    return Monitor(lambda order: plan.score, iterations=SWEEPS)


def held_budget(count: MemoryAccounting, budget_bytes: int) -> int:
    """The planner's bytes for a budget in reported bytes, at most the multiples of the alignment in 64 bits."""
    return min(max(0, count.held(budget_bytes)), MAX_BYTES // ALIGNMENT * ALIGNMENT)


def _on_device(problem: Problem) -> np.ndarray:
    """int64[m]: bytes of each buffer in device memory, 0 for the others."""
    return np.where(problem.space == DEVICE, problem.size, 0)
