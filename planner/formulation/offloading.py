"""Plans with copies to host memory: the link of the device, when there can be copies, and the search for them.

plan without copies ──▶ search with copies ──▶ addresses ──▶ over the budget? search in fewer bytes ──▶ the better plan
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from graph.analysis.devices import SHARED, DeviceProfile, resolve_device
from planner.errors import BadRequest
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.metrics import LowerBound
from planner.layout import place_within
from planner.lowering.copies import copied_buffers, copyable_buffers, renumbered, with_copy_nodes
from planner.problem import DEVICE
from planner.problem.copies import CopyProblem, Link, with_copies
from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Plan, Score
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.search import offload

#: Share of the search time for plans without copies.
PLAIN_SHARE = 0.4
#: Searches until addresses fit the budget, each in fewer bytes; share of the remaining time of each.
MAX_SEARCHES, SEARCH_SHARE = 4, 0.6
#: Share of the search time for packing addresses within the budget.
PACK_SHARE = 0.05
#: Fields of a device that say something of the link to host memory.
LINK_FIELDS = ("host_bandwidth", "fetch_bandwidth", "host_link")
#: Planner of a plan with copies, as reported.
PLANNER = "offload"


def link_of(request: Request) -> Link:
    """The link to host memory that a request for copies names. Raises BadRequest if none is known."""
    device = resolve_device(request.device)
    if not device.host_bytes_per_second:
        raise BadRequest.one(
            "no_host_link",
            "device.host_bandwidth",
            f"no bandwidth between {device.name} and its host",
            "bytes per second, above 0",
            'name it, such as {"like": "a100-80gb", "host_bandwidth": 25e9}, or leave out offload',
        )
    return _link(device)


def _link(device: DeviceProfile) -> Link:
    back = device.fetch_bytes_per_second or device.host_bytes_per_second
    return Link(device.host_bytes_per_second, back, device.host_link == SHARED, device.kernel_seconds)


def why_no_copies(formulation: Formulation, request: Request) -> str:
    """Why the plan of a request with `offload` has no copies; "" if it may have some.

    Raises BadRequest if the host memory holds none of the values that could be copied.
    """
    if not runtime_named(request.runtime).copies:
        return f"the runtime {request.runtime} runs no copies beside compute"
    if not formulation.goal.budget_bytes:
        return "copies need a budget in bytes or as a share"
    if len(formulation.lowered.problem.choices):
        return "models with loops or branches whose bodies are planned are planned without copies"
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


def unused_link_fields(request: Request) -> list[str]:
    """Fields of the request's device that describe the link to host memory, which no part of the request uses."""
    if request.offload or request.advise or isinstance(request.device, str):
        return []
    return [name for name in LINK_FIELDS if name in request.device]


def with_copies_of(formulation: Formulation, request: Request, buffers: np.ndarray, order: Order) -> Formulation:
    """The formulation with copies of `buffers` (ascending) as tasks; `order` is in its task numbers.

    Its bound holds with copies: every task runs at least once, the largest task and what is held at the end.
    """
    lowered = with_copy_nodes(formulation.lowered, link_of(request), buffers, order.tolist())
    goal = replace(formulation.goal, host_bytes=request.host_memory)
    bound = LowerBound.without_search(formulation.lowered.problem)
    return replace(formulation, lowered=lowered, goal=goal, bound=bound, may_copy=True)


def with_copies_searched(
    formulation: Formulation, plain: Plan, request: Request, cancel: threading.Event, seconds: float
) -> tuple[Formulation, Plan, bool]:
    """(formulation with the copies of the plan, the best plan found, whether a clock ended the search).

    `plain` is a plan without copies, with addresses if the request wants some. The result is no worse.
    """
    rounded, link = formulation.in_arena_bytes(), link_of(request)
    copies = with_copies(rounded.lowered.problem, link, copyable_buffers(formulation.lowered))
    goal = replace(rounded.goal, host_bytes=request.host_memory, seconds=seconds)
    monitor = Monitor(lambda order: plain.score, seconds, goal.iterations, cancel_event=cancel)
    best = with_copies_of(formulation, request, copies.buffer[:0], plain.order), plain
    seeds = [plain.order]
    for _ in range(MAX_SEARCHES):
        part = monitor.child(monitor.judge, SEARCH_SHARE)
        order = offload.search(copies, goal, seeds, part)
        monitor.absorb(part)
        found = _realized(formulation, request, copies, order)
        best = min(best, found, key=lambda each: _rank(*each))
        excess = found[0].bytes_over_budget(found[1])
        if not excess or monitor.should_stop():
            break
        goal = replace(goal, budget_bytes=max(1, (goal.budget_bytes or 0) - excess))
    return (*best, monitor.stopped_by_clock)


def _realized(
    formulation: Formulation, request: Request, copies: CopyProblem, order: Order
) -> tuple[Formulation, Plan]:
    """The plan of an order of `copies` with addresses, in a formulation with the copies that it uses."""
    buffers = copied_buffers(copies, order)
    order = renumbered(copies, order, buffers)
    planned = with_copies_of(formulation, request, buffers, order)
    plan = planned.placed(planned.evaluated(order, PLANNER), request.layout)
    if planned.bytes_over_budget(plan) and not plan.score.bytes_over_budget:
        plan = _packed(planned, plan)
    return planned, plan


def _packed(formulation: Formulation, plan: Plan) -> Plan:
    """The plan with device addresses within the budget if such a packing is found, else the plan."""
    problem, goal = formulation.lowered.problem, formulation.goal
    capacity = (plan.arena_bytes or 0) - formulation.bytes_over_budget(plan)
    on_device, workspace = np.where(problem.space == DEVICE, problem.size, 0), problem.workspace[plan.order]
    monitor = Monitor(lambda order: plan.score, PACK_SHARE * goal.seconds, goal.iterations)
    found = place_within(capacity, plan.lifetimes, on_device, workspace, ALIGNMENT, monitor)
    if found is None or plan.offsets is None:
        return plan
    offsets = np.where(formulation.is_on_host(plan), plan.offsets, found[0])
    return replace(plan, offsets=offsets, arena_bytes=found[1])


def _rank(formulation: Formulation, plan: Plan) -> tuple[int, Score]:
    """Lower is better: bytes over the budget with addresses, then the score."""
    return formulation.bytes_over_budget(plan), plan.score
