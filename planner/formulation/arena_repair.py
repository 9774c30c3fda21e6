"""Arena repair: if the addresses of a plan exceed the budget, pack them tighter, else walk on to a plan that fits.

    bytes  |         +----+         No step holds more than the budget, yet b lies past it, because no hole is as
    budget |- - - - -|- b-|- -      large as b. The tasks that run while b is live are charged the excess, as if their
           |  +------+-+--+         workspace were larger. The next plan holds less during these steps, by another
           +--+--------+--- steps   order or more recomputation, and as much as before during the other steps.

    pack the same order ──▶ charge ──▶ re-plan ──▶ fits ──▶ bisect the charge back
                              ▲           │
                              ╰─ exceeds ◀╯

By the clock, `auto` first tries the same runs in a flat order, which holds less near the budget: holes do no harm then.
With the order given it tries other recomputation that holds less there.
Next it walks on from the plan: it reorders the same runs, then changes recomputation too. All tasks are
charged what the addresses waste, so that the peak falls by as much. If no addresses fit, quick plans follow.
With LOWERED_TASKS and more, where walks make few moves in the time, gaps are closed in the plan first, which takes less
time than a new plan.

Other planners re-plan, and under an iteration limit `auto` walks on after that. The first charges are to the tasks that
run during the excess, the last lower the budget for all tasks, which is more likely to succeed.

The result is the plan with the least time whose addresses fit; else the first plan, by the clock with `auto` the plan
whose addresses exceed the budget least.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from planner.formulation.arena_charges import with_excess, with_extra_workspace
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.near_targets import NearTargets
from planner.formulation.repair_shares import LARGE_SHARES, SHARES, WALK_SHARES, Shares, has_time
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Plan
from planner.search import continuation, portfolio
from planner.search.improver_beside import WALK, cores

#: Share of the search time reserved for the repair, and more of it once a plan within the budget has an arena above it:
#: so much with LARGE_TASKS tasks and an arena LARGE_EXCESS of the budget above it, and less in proportion with less.
RESERVED_PART, EXCEEDED_PART, LARGE_TASKS, LARGE_EXCESS = 0.125, 0.55, 250, 0.06
#: Share of the repair by the clock for quick plans, if the addresses of none that a walk finds fit; and share that is
#: too short for another walk.
QUICK_PART, LEAST_PART = 0.2, 0.03
#: Shares of the goal's iterations for a packing and for a plan.
PACK_ITERATIONS, PLAN_ITERATIONS = 1 / 75, 0.125
#: Charges to the tasks that run during the excess; then steps of the charge to all tasks, in multiples of the excess.
TASK_CHARGES, UNIFORM_STEPS = 3, (1, 1, 2)
#: A plan whose addresses fit is walked on from for the budget rounded up to the alignment, if that adds such a share.
MIN_ROUNDED = 1e-4
#: Plans whose addresses exceed the budget by at most this share are packed in such a share of the time left.
NEAR_EXCESS, NEAR_PACK = 0.01, 0.6
#: Orders of the same runs that are tried by the clock where the addresses of the first plan exceed the budget.
FLAT_TRIES = 2
#: The first charge, as a share of the budget, where the addresses of none of them fit.
FLAT_CHARGE = 0.03
#: Bisections between the last charge that missed and the first that fitted; by the clock until they are so near, as a
#: share of the budget.
BISECTIONS, MIN_CHARGE = 5, 2e-3
#: With so many tasks, the peak of the plan is lowered before walks, each time within such a share of the time left, and
#: after so many charges whose addresses miss nothing more is tried.
LOWERED_TASKS, LOWER_PART, MAX_LOWERED = 4_000, 0.4, 8
#: Walks without a better plan that end the repair by the clock, once the addresses of one fit.
MAX_IDLE = 4
#: With the order given, shares of the time left for each walk to a plan that holds less near the budget and for its
#: packing; and share left for what follows these, once the addresses of a plan fit.
FLAT_WALK, FLAT_PACK, FLAT_REST = 0.15, 0.1, 0.1
#: With the order given, a plan that holds more near the budget than so many times the budget, summed over steps, is not
#: packed at first: no packing would fit.
MAX_PACKED_NEAR = 4


@dataclass(frozen=True, eq=False, slots=True)
class Repaired:
    """A plan with addresses, notes for the report, and whether a clock ended a search for it."""

    plan: Plan
    notes: tuple[str, ...] = ()
    stopped_by_clock: bool = False


def repair_arena(
    formulation: Formulation,
    plan: Plan,
    layout: str,
    planner: str,
    cancel: threading.Event,
    until: float = math.inf,
    seeds: Sequence[Candidate] = (),
    goes_on: bool = False,
) -> Repaired:
    """`plan` with addresses if they fit the budget, else the plan with the least time found whose addresses fit.

    `planner` re-plans; "auto" also walks on from the plan. `seeds` are other plans, best first, tried before new ones.
    No search begins once `cancel` is set, or after `until` (seconds of the monotonic clock) unless the goal counts
    iterations. With `goes_on`, plans with less time are searched from then on too if the addresses of `plan` fit.
    If nothing fits, returns `plan`, by the clock with "auto" the plan whose addresses exceed the budget least.
    """
    repair = _Repair(formulation, layout, planner, cancel, until)
    first = repair.first(plan)
    excess = formulation.bytes_over_budget(first)
    if excess and may_follow(formulation) and not cancel.is_set() and not repair.misses_budget(first):
        repair.run(first, seeds)
    elif not excess and may_follow(formulation):
        repair.fill_last_unit(first)
        if goes_on:
            repair.walk_on(first)
    best = repair.best or repair.closest
    if best is None or best is first:
        return Repaired(first, (), repair.stopped_by_clock)
    before, after = (formulation.overhead(each.score.cost) for each in (first, best))
    if not excess or np.array_equal(best.order, first.order):
        return Repaired(best, (), repair.stopped_by_clock)
    left, budget = formulation.bytes_over_budget(best), formulation.budget_bytes or 1
    fits = f"that needs {left / budget:.1%} more" if left else "whose addresses fit"
    note = (
        f"arena repair: a plan with {before:.2%} overhead needs {excess / budget:.1%} more than the budget after "
        f"layout; replaced by a plan with {after:.2%} overhead {fits}"
    )
    return Repaired(best, (note,), repair.stopped_by_clock)


def may_follow(formulation: Formulation) -> bool:
    """Whether the addresses of a plan are repaired where they exceed the budget."""
    return formulation.places and bool(formulation.goal.budget_bytes)


def probable_part(formulation: Formulation, order: Order) -> float:
    """Share of the search time for the repair, beside RESERVED_PART: 0 to EXCEEDED_PART.

    From a quick layout of an order within the budget, under the first alternatives.
    """
    monitor = formulation.monitor()
    monitor.seconds = 0.0
    over = formulation.bytes_over_budget(formulation.placed(formulation.evaluated(order, ""), "fast", monitor))
    excess, tasks = over / (formulation.budget_bytes or 1), formulation.lowered.problem.tasks
    return EXCEEDED_PART * min(1.0, tasks / LARGE_TASKS) * min(1.0, excess / LARGE_EXCESS)


@dataclass(eq=False, slots=True)
class _Repair:
    """Search for plans whose addresses fit, with the best of them so far."""

    formulation: Formulation
    layout: str
    planner: str
    cancel: threading.Event
    until: float
    best: Plan | None = None  # least time whose addresses fit
    closest: Plan | None = None  # by the clock: least bytes above the budget of those that did not become `best`
    stopped_by_clock: bool = False
    shares: Shares = SHARES
    rounded: Formulation = field(init=False)  # in bytes of the arena
    raised: Formulation = field(init=False)  # with the budget rounded up too: what ends an arena need not be rounded

    def __post_init__(self) -> None:
        self.rounded = self.formulation.in_arena_bytes()
        goal = self.rounded.goal
        budget = -(-(goal.budget_bytes or 0) // ALIGNMENT) * ALIGNMENT
        self.raised = replace(self.rounded, goal=replace(goal, budget_bytes=budget))

    def misses_budget(self, plan: Plan) -> bool:
        """Whether the peak of a plan exceeds the budget, with sizes as in the arena: no addresses help."""
        return bool(self.raised.plan_of(plan.candidate).score.bytes_over_budget)

    def run(self, first: Plan, seeds: Sequence[Candidate]) -> None:
        """Find `best`, starting from the first plan: first by quick plans, then by walks from the plan."""
        if self._walks_by_clock():
            self._run_by_clock(first, seeds)
            return
        self._offer(first)
        self._try_seeds(first, seeds)
        # Under an iteration limit, which walks do not share with quick plans, only walks bisect from a walk's plan.
        by_walks = self.planner == "auto" and first.planner == WALK and math.isinf(self.until)
        self._descend(first, self._quick_plan, 0 if by_walks else BISECTIONS, uniform_first=True)
        if self.planner == "auto":
            self._descend(first, self._walk, BISECTIONS)

    def _run_by_clock(self, first: Plan, seeds: Sequence[Candidate]) -> None:
        """Walk on from the plan in most of the time; quick plans follow if the addresses of none fit."""
        if self._is_large():
            self.shares = LARGE_SHARES
        is_near, budget = self._is_near(first), self.rounded.goal.budget_bytes or 0
        packed = flat = self._with_flat_order(first, FLAT_TRIES)
        if flat is first:
            is_hopeless = self._may_recompute_flat() and self._near_bytes(first) > MAX_PACKED_NEAR * budget
            packed = self._tried(first, pack=not (is_near or is_hopeless))  # `_pack_near` has more time for it
        is_spent = not is_near and self._flatten_down(packed)
        missed = self._try_seeds(packed, seeds)
        self._pack_near([packed, *missed] if flat is first else missed)
        is_spent = is_spent or (is_near and self._flatten_down(packed))
        if self.formulation.lowered.problem.tasks >= LOWERED_TASKS:
            self._lower_down(packed)
        if self.best is not None or not is_spent:
            self.walk_on(packed)
        if self.best is None:
            self._descend(packed, self._quick_plan, BISECTIONS, uniform_first=True)

    def _may_flatten(self) -> bool:
        """Whether orders of the same runs are tried."""
        return not self.rounded.goal.order_is_given and self.formulation.lowered.problem.tasks < LOWERED_TASKS

    def _with_flat_order(self, plan: Plan, tries: int = 1) -> Plan:
        """The plan, or the same runs in an order that holds less near the budget, if the arena is smaller then."""
        over, problem, goal = self.formulation.bytes_over_budget, self.rounded.lowered.problem, self.rounded.goal
        for number in range(tries if self._may_flatten() else 0):
            is_better = self.best is None or plan.score < self.best.score
            if not over(plan) or not is_better or self._is_over(plan):
                break
            monitor = self._monitor(self.rounded, self.shares.flat, PLAN_ITERATIONS)
            flat = continuation.flattened(problem, replace(goal, seed=goal.seed + number), plan.candidate, monitor)
            self._note_clock(monitor)
            if flat.order is not plan.order:
                plan = min(plan, self._tried(self._swept(flat, self.shares.layout)), key=over)
        return plan

    def _may_recompute_flat(self) -> bool:
        """Whether recomputation is searched that holds less near the budget, with the first runs as they are."""
        return self.rounded.goal.order_is_given and self.formulation.lowered.problem.tasks < LOWERED_TASKS

    def _near_bytes(self, plan: Plan) -> int:
        """Bytes that a plan holds near the budget, summed over steps."""
        return continuation.near_bytes(self.rounded.lowered.problem, self.rounded.goal, plan.candidate)

    def _flatten_down(self, first: Plan) -> bool:
        """Walk on to plans that hold less near the budget until the addresses of one fit, then to cheaper ones.

        Only with the order given, where the same runs cannot be rearranged, and if no addresses fit yet. Returns
        whether its time is over.
        """
        if self.best is not None or not self._may_recompute_flat():
            return False
        targets = NearTargets.of(self._near_bytes(first), self.rounded.goal.budget_bytes or 0)
        until, left, shares = self.until, max(0.0, self.until - time.monotonic()), self.shares
        loose, idle = first, 0
        for number in itertools.count():
            self.until = until - (QUICK_PART if self.best is None else FLAT_REST) * left
            now, before = self.until - time.monotonic(), self.best
            if self._is_over(first) or idle == MAX_IDLE or now < FLAT_WALK * left / 2:
                break
            walk, pack = (min(1.0, part * left / now) for part in (FLAT_WALK, FLAT_PACK))
            self.shares = shares._replace(walk=walk, pack=pack)
            pair = targets.pair()[: cores()]
            plans = self._flatter(loose, pair, number)
            tried = [
                (target, self._offer(plan, pack=False))
                for target, plan in zip(pair, plans, strict=True)
                if plan is not loose and _is_cheaper(plan, before)
            ]
            targets.update([target for target, fits in tried if not fits], [target for target, fits in tried if fits])
            if not tried:
                targets.loosen()
            idle = 0 if self.best is not before or (before is None and tried) else idle + 1
            loose = min((loose, *plans), key=lambda plan: plan.score)
        self.shares, self.until = shares, until
        return idle < MAX_IDLE

    def _flatter(self, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
        """Plans with addresses by other recomputation that hold about so many bytes near the budget, or `start`.

        Those that are cheaper than the best plan are packed. One thread for each of the targets.
        """
        known, rounded, seed = self.best, self.rounded, self.rounded.goal.seed + number * len(targets)

        def found(k: int) -> Plan:
            monitor, goal = self._monitor(rounded, self.shares.walk, 1.0), replace(rounded.goal, seed=seed + k)
            walked = continuation.flatter(rounded.lowered.problem, goal, start.candidate, targets[k], monitor)
            self._note_clock(monitor)
            if walked.order is start.order:
                return start
            plan = self._swept(walked, self.shares.layout)
            return self._packed(plan, only_within=True) if _is_cheaper(plan, known) else plan

        with ThreadPoolExecutor(len(targets)) as pool:
            return list(pool.map(found, range(len(targets))))

    def _lower_down(self, first: Plan) -> None:
        """Charge all tasks what the addresses of a plan waste, and close gaps in it; once they fit, bisect the charge.

        Each charge is met from the plan with the largest charge below it, which has the fewest recomputations too many.
        """
        budget, tasks = self.rounded.goal.budget_bytes or 0, self.formulation.lowered.problem.tasks
        least = int(MIN_CHARGE * budget) if self._is_large() else 0  # a step takes long there
        loose, missed, charge, fitting = first, 0, max(least, self._wasted(first)), None
        for _ in range(MAX_LOWERED):
            if self._is_over(first) or charge >= budget:
                return
            found = self._tried(self._lowered(self._charged(np.full(tasks, charge)), loose), pack=False)
            if found.score.bytes_over_budget or (over := self.formulation.bytes_over_budget(found)):
                if fitting is None and found is loose:
                    return
                loose, missed = found, charge
                charge = max(self._wasted(found), charge) + over if fitting is None else (missed + fitting) // 2
            else:
                fitting, charge = charge, (missed + charge) // 2
            if fitting is not None and (self._is_large() or fitting - missed < MIN_CHARGE * budget):
                return

    def _lowered(self, charged: Formulation, start: Plan) -> Plan:
        """Plan with addresses for the charged problem, by closing gaps in `start`; `start` if that changes none."""
        monitor = self._monitor(charged, LOWER_PART, PLAN_ITERATIONS)
        found = continuation.lowered(charged.lowered.problem, charged.goal, start.candidate, monitor)
        self._note_clock(monitor)
        return start if found.order is start.order else self._swept(found, self.shares.layout)

    def _place_lowest(self, seeds: Sequence[Candidate]) -> None:
        """Offer the seed with the lowest peak, whatever the time: a sweep is quick, and the last chance of a plan."""
        lowest = min(map(self.rounded.plan_of, seeds), key=lambda plan: plan.score.peak_bytes, default=None)
        if lowest is not None:
            self._tried(self._swept(lowest.candidate, self.shares.seed), pack=False)

    def walk_on(self, first: Plan) -> None:
        """Walk on from a plan in the time left, if a clock limits that, for plans whose addresses fit."""
        if self._walks_by_clock() and not self._is_large():
            self._tried(first, pack=False)
            shares, self.shares = self.shares, WALK_SHARES
            self._walk_down(first)
            self.shares = shares

    def _walks_by_clock(self) -> bool:
        """Whether walks from the plan take all the time left."""
        return self.planner == "auto" and self.formulation.goal.iterations is None and math.isfinite(self.until)

    def _is_large(self) -> bool:
        """Whether annealing is skipped."""
        return self.formulation.lowered.problem.tasks > portfolio.MAX_SLOW_TASKS

    def _walk_down(self, first: Plan) -> None:
        """Charge all tasks what the addresses of a plan waste, and walk on; once they fit, bisect the charge."""
        budget, tasks = self.rounded.goal.budget_bytes or 0, self.formulation.lowered.problem.tasks
        start = first if self.best is None else self.best
        missed, charge, goal = 0, self._wasted(start), self.rounded.goal
        if self.best is None and self._may_flatten():
            possible = max(0, budget - self.rounded.bound.peak_bytes)
            charge = max(charge, min(possible, int(FLAT_CHARGE * budget)))
        fitting = None if self.best is None else charge
        until, left, idle = self.until, max(0.0, self.until - time.monotonic()), 0
        for number in itertools.count(1):
            self.until = until - (QUICK_PART if fitting is None else LEAST_PART) * left
            if self._is_over(first) or idle == MAX_IDLE:
                break
            before = self.best
            charged = replace(self._charged(np.full(tasks, charge)), goal=replace(goal, seed=goal.seed + number))
            walked = self._walk(charged, start, fitting is None)
            flat = self._with_flat_order(walked)
            found = self._tried(walked) if flat is walked else flat
            if not self.formulation.bytes_over_budget(found):
                fitting, start = charge, self.best or found
            elif fitting is None:
                missed, start = charge, found
                charge = max(self._wasted(found), charge) + self.formulation.bytes_over_budget(found)
                continue
            else:
                missed, fitting = charge, max(fitting, charge + self.formulation.bytes_over_budget(found))
            idle = 0 if self.best is not before else idle + 1
            charge = fitting if fitting - missed < MIN_CHARGE * budget else (missed + fitting) // 2
        self.until = until

    def _wasted(self, plan: Plan) -> int:
        """Bytes of the budget that a lower peak has to leave free, if its arena exceeds it by the same share."""
        budget = self.rounded.goal.budget_bytes or 0
        needed = budget + self.formulation.bytes_over_budget(plan)
        return budget - int(self.rounded.plan_of(plan.candidate).score.peak_bytes / max(1, needed) * budget)

    def fill_last_unit(self, first: Plan) -> None:
        """Offer a plan for the budget rounded up, whose addresses fit if what ends the arena is not rounded up."""
        goal, budget = self.raised.goal, self.rounded.goal.budget_bytes or 0
        added, proven = (goal.budget_bytes or 0) - budget, first.score.cost <= self.formulation.bound.cost
        if self.planner != "auto" or proven or added < MIN_ROUNDED * budget:
            return
        self._offer(first)
        monitor = self._monitor(self.formulation, self.shares.quick_round, PLAN_ITERATIONS)
        found = continuation.walk_on(self.raised.lowered.problem, goal, first.candidate, monitor)
        self._note_clock(monitor)
        self._offer(self._swept(found, self.shares.layout))

    def _try_seeds(self, first: Plan, seeds: Sequence[Candidate]) -> list[Plan]:
        """Offer other plans, then pack that of these with the least excess; returns those that do not fit."""
        missed, tried = list[Plan](), {first.order.tobytes()}
        for k, seed in enumerate(seeds):
            if self._is_over(first):
                if self.best is None and self._walks_by_clock() and not self.cancel.is_set():
                    self._place_lowest([each for each in seeds[k:] if each.order.tobytes() not in tried])
                return missed
            if (order := seed.order.tobytes()) in tried:
                continue
            tried.add(order)
            if self.best is not None and not _is_cheaper(self.formulation.plan_of(seed), self.best):
                continue
            placed = self._swept(seed, self.shares.seed)
            if not self._offer(placed, pack=False):
                missed.append(placed)
        best = min(missed, key=self.formulation.bytes_over_budget, default=first)
        if self.formulation.bytes_over_budget(best) < self.formulation.bytes_over_budget(first):
            self._offer(best)
        return missed

    def _is_near(self, plan: Plan) -> bool:
        """Whether the addresses of a plan exceed the budget so little that a packing is likely to fit."""
        return not self._is_large() and self.formulation.bytes_over_budget(plan) <= NEAR_EXCESS * (
            self.rounded.goal.budget_bytes or 0
        )

    def _pack_near(self, missed: Iterable[Plan]) -> None:
        """Pack plans whose addresses exceed the budget a little, those with the least time first."""
        shares, self.shares = self.shares, self.shares._replace(pack=NEAR_PACK)
        until, left = self.until, max(0.0, self.until - time.monotonic())
        if self.best is None:  # what follows may find the only plan whose addresses fit
            self.until -= (1 - NEAR_PACK) * left
        for plan in sorted(filter(self._is_near, missed), key=lambda plan: plan.score):
            if self._is_over(plan):
                break
            self._tried(plan)
        self.shares, self.until = shares, until

    def _descend(
        self, first: Plan, replan: Callable[[Formulation, Plan], Plan], bisections: int, uniform_first: bool = False
    ) -> None:
        """Charge more until the addresses of a plan by `replan` fit, then bisect the charge back."""
        loose, missed = first, np.zeros(self.formulation.lowered.problem.tasks, np.int64)
        fitting: np.ndarray | None = None
        for charge in self._charges(first, lambda: loose, uniform_first):  # noqa: B023
            if self._is_over(first):
                return
            found = replan(self._charged(charge), loose)
            if self._offer(found):
                fitting = charge
                break
            loose, missed = found, charge
        for _ in range(bisections):
            if fitting is None or self._is_over(first):
                return
            middle = (missed + fitting) // 2
            found = replan(self._charged(middle), loose)
            if self._offer(found):
                fitting = middle
            else:
                loose, missed = found, middle

    def _charges(self, first: Plan, current: Callable[[], Plan], uniform_first: bool) -> Iterator[np.ndarray]:
        """int64[n] each: bytes charged to each task: the excess of the current plan, or multiples to all tasks."""
        if uniform_first:
            yield from self._uniform_charges(first, current)
        charge = np.zeros(self.formulation.lowered.problem.tasks, np.int64)
        for _ in range(TASK_CHARGES):
            charge = with_excess(self.formulation, self.rounded, current(), charge)
            yield charge
        if not uniform_first:
            yield from self._uniform_charges(first, current)

    def _uniform_charges(self, first: Plan, current: Callable[[], Plan]) -> Iterator[np.ndarray]:
        """int64[n] each: the same bytes charged to every task, in ever larger steps.

        A step begins at the slack of the current plan: a charge within the slack changes nothing.
        """
        excess = max(ALIGNMENT, self.formulation.bytes_over_budget(first))
        budget, charged = self.rounded.goal.budget_bytes or 0, 0
        for times in UNIFORM_STEPS:
            peak = self.rounded.plan_of(current().candidate).score.peak_bytes
            charged = max(charged, budget - peak) + excess * times
            yield np.full(self.formulation.lowered.problem.tasks, charged)

    def _charged(self, charge: np.ndarray) -> Formulation:
        """The formulation to search with bytes charged to each task."""
        problem = with_extra_workspace(self.rounded.lowered.problem, charge)
        return replace(self.rounded, lowered=replace(self.rounded.lowered, problem=problem, known={}))

    def _quick_plan(self, charged: Formulation, start: Plan) -> Plan:
        """Plan with addresses for the charged problem by the requested planner, or by a quick one."""
        monitor = self._monitor(charged, self.shares.quick, PLAN_ITERATIONS)
        problem, goal = charged.lowered.problem, charged.goal
        found = continuation.replanned(problem, goal, self.planner, start.candidate, monitor)
        self._note_clock(monitor)
        return self._swept(found, self.shares.layout)

    def _walk(self, charged: Formulation, start: Plan, reorder: bool = True) -> Plan:
        """Plan with addresses, found from `start` for the charged problem: the same runs reordered, if those fit."""
        problem, goal, candidate = charged.lowered.problem, charged.goal, start.candidate
        if reorder:
            monitor = self._monitor(charged, self.shares.order, PLAN_ITERATIONS)
            candidate = continuation.reordered(problem, goal, candidate, monitor)
        if candidate.order is not start.order:
            found = self._tried(self._swept(candidate, self.shares.layout))
            if not self.formulation.bytes_over_budget(found):
                return found
        monitor = self._monitor(charged, self.shares.walk, PLAN_ITERATIONS)
        candidate = continuation.walk_on(problem, goal, candidate, monitor)
        self._note_clock(monitor)
        return self._swept(candidate, self.shares.layout)

    def _offer(self, plan: Plan, pack: bool = True) -> bool:
        """Whether the addresses of a placed plan fit, packed tighter if need be; a better one becomes `best`."""
        tried = self._tried(plan, pack)
        return not (self.formulation.bytes_over_budget(tried) or tried.score.bytes_over_budget)

    def _tried(self, plan: Plan, pack: bool = True) -> Plan:
        """A placed plan, packed tighter if need be; it becomes `best` if it is better and its addresses fit."""
        over = self.formulation.bytes_over_budget
        if pack and over(plan) and (self.best is None or plan.score < self.best.score):
            plan = self._packed(plan)
        is_better = self.best is None or plan.score < self.best.score
        if plan.score.bytes_over_budget:
            return plan
        if is_better and not over(plan):
            self.best = plan
        elif self._walks_by_clock() and (self.closest is None or over(plan) < over(self.closest)):
            self.closest = plan
        return plan

    def first(self, plan: Plan) -> Plan:
        """The plan with the requested layout; by the clock with quick addresses, if these exceed the budget."""
        swept: Plan | None = None
        if may_follow(self.formulation) and self._walks_by_clock() and self.layout != "none":
            swept = self._with_sweeps(plan, SHARES.first)
            if self.cancel.is_set() and self._is_large():
                return swept
            if self.formulation.bytes_over_budget(swept) and not self.misses_budget(swept):
                return swept  # what follows packs it
        monitor = self._monitor(self.formulation, SHARES.first if may_follow(self.formulation) else 1.0, 1.0)
        if may_follow(self.formulation) and not has_time(monitor, plan):
            self.shares = LARGE_SHARES
            monitor.seconds *= LARGE_SHARES.first / SHARES.first
        found = self.formulation.placed(plan, self.layout, monitor)
        self._note_clock(monitor)
        return found if swept is None else min(found, swept, key=self.formulation.bytes_over_budget)

    def _swept(self, candidate: Candidate, part: float) -> Plan:
        """The candidate as a plan with addresses by sweeps alone, within a part of the time left."""
        return self._with_sweeps(self.formulation.plan_of(candidate), part)

    def _with_sweeps(self, plan: Plan, part: float) -> Plan:
        """The plan with addresses by sweeps alone, within a part of the time left."""
        monitor = self._monitor(self.formulation, part, 1.0)
        found = self.formulation.swept(plan, monitor)
        self._note_clock(monitor)
        return found

    def _note_clock(self, monitor: Monitor) -> None:
        """Note whether the clock ended a part; threads may do so at once."""
        if monitor.stopped_by_clock:
            self.stopped_by_clock = True

    def _packed(self, plan: Plan, only_within: bool = False) -> Plan:
        """As `Formulation.packed`, within a part of the time left; unchanged if that is too short."""
        monitor = self._monitor(self.formulation, self.shares.pack, PACK_ITERATIONS)
        if not has_time(monitor, plan):
            return plan
        found = self.formulation.packed(plan, monitor, only_within)
        self._note_clock(monitor)
        return found

    def _monitor(self, formulation: Formulation, part: float, iterations: float) -> Monitor:
        """Monitor with a part of the time left, or of the goal's iterations."""
        monitor = formulation.monitor(cancel=self.cancel)
        if monitor.iterations is not None:
            monitor.iterations = max(1, int(monitor.iterations * iterations))
        else:
            monitor.seconds = min(monitor.seconds, max(0.0, self.until - time.monotonic()) * part)
        return monitor

    def _is_over(self, first: Plan) -> bool:
        """Whether no search may follow, or none is likely to find a plan with less time than `best`."""
        by_clock = self.formulation.goal.iterations is None
        enough = self.formulation.bound.cost if self._walks_by_clock() else first.score.cost
        if self.best is not None and self.best.score.cost <= enough:
            return True
        return self.cancel.is_set() or (by_clock and time.monotonic() >= self.until)


def _is_cheaper(plan: Plan, known: Plan | None) -> bool:
    """Whether a plan is better than the best one known."""
    return known is None or plan.score < known.score
