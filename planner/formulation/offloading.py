"""Plans with copies to host memory or collectives beside compute: when there can be some, and the search for them.

plan without copies ──▶ search with copies ──▶ addresses ──▶ over the budget? search in fewer bytes ──▶ the better plan
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from graph.analysis.devices import SHARED, resolve_device
from planner.errors import BadRequest
from planner.formulation.formulation import Formulation
from planner.formulation.goal_of_request import with_limit
from planner.formulation.lower_bound import LowerBound
from planner.lowering.copies import copied_buffers, copyable_buffers, renumbered, with_copy_nodes, without_empty_copies
from planner.problem import COMMUNICATION, schedule
from planner.problem.copies import CopyProblem, Link, with_copies
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Plan, Score
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.search.offload import PREPARE_SHARE
from planner.search.offload_choices import PLANNER, CopyChoiceSearch

#: Share of the search time for plans without copies.
PLAIN_SHARE = 0.4
#: Searches at most within other budgets, until addresses fit; share of the remaining time of each.
MAX_SEARCHES, SEARCH_SHARE = 8, 0.35
#: Shares of the remaining time for quick addresses of a plan, and for packing those that exceed the budget: until those
#: of some plan fit, and from then on.
SWEEP_SHARE, FIRST_PACK_SHARE, PACK_SHARE = 0.1, 0.5, 0.1
#: Least time for quick addresses, seconds, if so much is left: without them a plan is of no use. One sweep always ends.
MIN_SWEEP_SECONDS = 0.5
#: Budgets that differ by this part or less are not searched between.
CLOSE = 0.004
#: Link of a search without copies.
NO_LINK = Link(1.0, 1.0)
#: Fields of a device that say something of the link to host memory.
LINK_FIELDS = ("host_bandwidth", "fetch_bandwidth", "host_link")


def link_of(request: Request) -> Link:
    """The link to host memory of the device of a request for copies; parsing has refused a device without one."""
    device = resolve_device(request.device)
    back = device.fetch_bytes_per_second or device.host_bytes_per_second
    return Link(device.host_bytes_per_second, back, device.host_link == SHARED, device.kernel_seconds)


def why_no_copies(formulation: Formulation, request: Request) -> str:
    """Why the plan of a request with `offload` has no copies; "" if it may have some.

    Raises BadRequest if the host memory holds none of the values that could be copied.
    """
    if why := _why_not_timed(formulation, request):
        return why
    buffers = copyable_buffers(formulation.lowered)
    if not len(buffers):
        return "no value may be copied"
    smallest = int(formulation.lowered.problem.size[buffers].min())
    if request.host_memory is not None and request.host_memory < smallest:
        raise BadRequest.one(
            "bad_field",
            "host_memory",
            f"{request.host_memory:,} bytes",
            f"at least {smallest:,}: the smallest value that may be copied",
            "give more host memory, or leave out offload",
        )
    return ""


def why_no_overlap(formulation: Formulation, request: Request) -> str:
    """Why no collective runs beside compute under a request with `overlap`; "" if they do."""
    if why := _why_not_timed(formulation, request):
        return why
    return "" if (formulation.lowered.problem.engine == COMMUNICATION).any() else "the graph has no collectives"


def _why_not_timed(formulation: Formulation, request: Request) -> str:
    if not runtime_named(request.runtime).engines:
        return f"the runtime {request.runtime} runs nothing beside compute"
    return "" if formulation.goal.budget_bytes else "a budget above 0, in bytes or as a share, is needed"


def with_overlap(formulation: Formulation, request: Request) -> Formulation:
    """The formulation with collectives beside compute if `overlap` is requested and has an effect; its baseline too.

    A budget as a share is one of the bytes of that baseline.
    """
    if not request.overlap or why_no_overlap(formulation, request):
        return formulation
    problem, goal = formulation.lowered.problem, replace(formulation.goal, budget_bytes=None)
    baseline = schedule.evaluate(problem, goal, formulation.baseline.order, formulation.baseline.planner)
    bound = LowerBound.without_search(problem, overlaps=True)
    overlapped = replace(formulation, overlaps=True, baseline=baseline, bound=bound)
    is_share = request.budget is not None and request.budget.bytes is None and request.fraction_of == "baseline"
    return with_limit(overlapped, request, None) if is_share else overlapped


def with_collectives_in_line(formulation: Formulation) -> Formulation:
    """The formulation of plans whose collectives run in line with compute, to begin a search with."""
    bound = LowerBound.without_search(formulation.lowered.problem)
    return replace(formulation, overlaps=False, bound=bound) if formulation.overlaps else formulation


def with_bounds_of(plain: Formulation, formulation: Formulation) -> Formulation:
    """The formulation with bounds of its plans in line that hold for others too: with overlap, that on the peak."""
    if not formulation.overlaps:
        return replace(plain, goal=formulation.goal)
    peak, bound = plain.bound.claims[0], formulation.bound
    bound = LowerBound.of_claims(peak, bound.claims[1], bound.single_run_cost, plain.bound.proof)
    return replace(formulation, bound=bound, warnings=plain.warnings)


def without_copies(request: Request) -> Request:
    """The request for plans without copies, and without the link that they would use."""
    given = {name: value for name, value in request.given.items() if name not in ("offload", "host_memory")}
    device = request.device
    if not isinstance(device, str):
        device = {name: value for name, value in device.items() if name not in LINK_FIELDS}
        given["device"] = device
    return replace(request, offload=False, host_memory=None, device=device, given=given)


def copied_values(formulation: Formulation) -> list[str]:
    """Names of the values that a plan copies to the host and back."""
    copies = formulation.lowered.copies
    return [] if copies is None else [formulation.lowered.name_of_buffer(b) for b in copies.buffer.tolist()]


def planner_limits(request: Request) -> list[str]:
    """A warning if the requested planner finds only the plan that the search for copies or overlap begins with."""
    if request.planner in ("auto", "as_given") or not (request.offload or request.overlap):
        return []
    return [
        f"planner {request.planner}: used for the plan in line with compute only; the search for plans with copies or "
        "overlap, which begins with it, uses several planners"
    ]


def unused_link_fields(request: Request) -> list[str]:
    """Fields of the request's device that describe the link to host memory, which no part of the request uses."""
    if request.offload or request.advise or isinstance(request.device, str):
        return []
    return [name for name in LINK_FIELDS if name in request.device]


def with_copies_of(formulation: Formulation, request: Request, buffers: np.ndarray, order: Order) -> Formulation:
    """The formulation with copies of `buffers` (ascending) as tasks; `order` is in its task numbers.

    Its bound holds with copies: every task runs at least once, the largest task and what is held at the end.
    """
    lowered = with_copy_nodes(formulation.lowered, link_of(request), buffers, order.tolist(), formulation.overlaps)
    goal = replace(formulation.goal, host_bytes=request.host_memory)
    bound = LowerBound.without_search(formulation.lowered.problem, formulation.overlaps)
    return replace(formulation, lowered=lowered, goal=goal, bound=bound, may_copy=True)


def with_copies_searched(
    formulation: Formulation,
    plain: Plan,
    request: Request,
    cancel: threading.Event,
    seconds: float,
    is_enough: Callable[[Formulation, Plan], bool] | None = None,
) -> tuple[Formulation, Plan, bool]:
    """(formulation with the copies of the plan, the best plan found, whether a clock ended the search).

    `plain` is a plan without copies, with addresses if the request wants some; its collectives are in line. The result
    is no worse. Ends early if no copy is of use, and at the first plan with addresses that `is_enough`.
    """
    rounded, buffers, link = formulation.in_arena_bytes(), np.zeros(0, np.int64), NO_LINK
    if request.offload:
        buffers, link = copyable_buffers(formulation.lowered), link_of(request)
    copies = with_copies(rounded.lowered.problem, link, buffers, formulation.overlaps)
    goal = replace(rounded.goal, host_bytes=request.host_memory, seconds=seconds)
    monitor = Monitor(lambda order: plain.score, seconds, goal.iterations, cancel_event=cancel)
    peak = schedule.score(copies.problem, goal, plain.order, plain.choices).peak_bytes
    first = int((1 - _waste(formulation, plain, peak, monitor)) * (goal.budget_bytes or 0))
    search = CopyChoiceSearch(copies, replace(goal, budget_bytes=first), [plain.candidate])
    part = monitor.child(monitor.judge, PREPARE_SHARE)
    search.prepare(part)
    monitor.absorb(part)
    best = with_collectives_beside(formulation, plain, request, monitor)
    for budget in (budgets := _Budgets(first, goal.budget_bytes or 0)):
        part = monitor.child(monitor.judge, SEARCH_SHARE)
        candidate = search.within(budget, part)
        monitor.absorb(part)
        began = time.monotonic()
        planned, plan = _realized(formulation, request, copies, candidate)
        plan = _swept(planned, plan, request, monitor)
        took = time.monotonic() - began
        plan = _packed(planned, plan, monitor, PACK_SHARE if budgets.fitted else FIRST_PACK_SHARE)
        best = min(best, (planned, plan), key=lambda each: rank(*each))
        budgets.add(budget, planned.bytes_over_budget(plan))
        if is_enough is not None and is_enough(*best):
            break
        if goal.iterations is None and time.monotonic() - monitor.started + took > seconds:
            break  # no time is left for addresses of another plan
        if monitor.should_stop() or (not best[0].has_engines and not search.gains):
            break
    return (*best, monitor.stopped_by_clock)


def _waste(formulation: Formulation, plain: Plan, peak_bytes: int, monitor: Monitor) -> float:
    """The share of its arena that a plan with copies probably wastes: as much as `plain`, whose peak is given.

    If packing has not brought the addresses of `plain` within the budget: as much as quick addresses of it.
    """
    arena = plain.arena_bytes or 0
    if arena and formulation.bytes_over_budget(plain):
        arena = formulation.swept(plain, monitor).arena_bytes or 0
    return max(0, arena - peak_bytes) / max(1, arena)


def with_collectives_beside(
    formulation: Formulation, plain: Plan, request: Request, monitor: Monitor
) -> tuple[Formulation, Plan]:
    """(formulation without copies, `plain` with its collectives beside compute if the formulation overlaps them)."""
    none = np.zeros(0, np.int64)
    planned = with_copies_of(formulation, request, none, plain.order) if request.offload else formulation
    if not planned.overlaps:
        return planned, plain
    return planned, _placed(planned, planned.evaluated(plain.order, plain.planner, plain.choices), request, monitor)


class _Budgets:
    """Budgets to search in turn: less by what addresses exceed, then halfway between what fitted and what did not."""

    def __init__(self, first: int, last: int):
        self.fitted, self.missed, self.next = 0, last + 1, first

    def __iter__(self) -> Iterator[int]:
        for _ in range(MAX_SEARCHES):
            yield self.next

    def add(self, budget: int, excess: int) -> None:
        """Note by how many bytes the addresses of a plan within a budget exceed the requested one."""
        if excess:
            self.missed = min(self.missed, budget)
            self.next = max(1, min(budget, self.missed) - excess)
        else:
            self.fitted = max(self.fitted, budget)
        if self.fitted:
            close = self.missed - self.fitted <= CLOSE * self.missed
            self.next = self.fitted if close else (self.fitted + self.missed) // 2


def _realized(
    formulation: Formulation, request: Request, copies: CopyProblem, candidate: Candidate
) -> tuple[Formulation, Plan]:
    """(formulation with the copies that a candidate of `copies` uses, its plan there)."""
    order = without_empty_copies(copies, candidate)
    buffers = copied_buffers(copies, order)
    order = renumbered(copies, order, buffers)
    planned = with_copies_of(formulation, request, buffers, order) if request.offload else formulation
    return planned, planned.evaluated(order, PLANNER if request.offload else "overlap", candidate.choices)


def _placed(planned: Formulation, plan: Plan, request: Request, monitor: Monitor) -> Plan:
    """The plan with addresses if the request wants some: quick ones, packed if they alone exceed the budget."""
    return _packed(planned, _swept(planned, plan, request, monitor), monitor, PACK_SHARE)


def _swept(planned: Formulation, plan: Plan, request: Request, monitor: Monitor) -> Plan:
    """The plan with quick addresses if the request wants some."""
    if request.layout == "none":
        return plan
    left = monitor.seconds - (time.monotonic() - monitor.started)
    part = monitor.child(monitor.judge, SWEEP_SHARE)
    part.seconds = max(part.seconds, min(MIN_SWEEP_SECONDS, left))
    plan = planned.swept(plan, part)
    monitor.absorb(part)
    return plan


def _packed(planned: Formulation, plan: Plan, monitor: Monitor, share: float) -> Plan:
    """The plan packed in a share of the time left, if its addresses alone exceed the budget."""
    if planned.bytes_over_budget(plan) and not plan.score.bytes_over_budget:
        part = monitor.child(monitor.judge, share)
        plan = planned.packed(plan, part)
        monitor.absorb(part)
    return plan


def with_copies_again(
    formulation: Formulation,
    tighter: Formulation,
    plan: Plan,
    request: Request,
    cancel: threading.Event,
    seconds: float,
) -> tuple[Formulation, Plan]:
    """(formulation with the copies of a plan within a tighter budget, that plan within the budget of `formulation`).

    `seconds` limit its new addresses; one sweep always ends.
    """
    copies = tighter.lowered.copies
    buffers = np.zeros(0, np.int64) if copies is None else copies.buffer
    planned = with_copies_of(formulation, request, buffers, plan.order)
    monitor = Monitor(lambda order: plan.score, seconds, formulation.goal.iterations, cancel_event=cancel)
    again = planned.evaluated(plan.order, plan.planner, plan.choices)
    return planned, _placed(planned, again, request, monitor)


def rank(formulation: Formulation, plan: Plan) -> tuple[int, Score]:
    """Lower is better: bytes over the budget and the host memory with addresses, then the score."""
    return formulation.bytes_over_budget(plan) + formulation.host_bytes_over_limit(plan), plan.score
