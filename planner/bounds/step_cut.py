"""Moment cuts: at the moment a task first runs, what is needed later is live or has to be made again.

Take the first run of a task w. Every other task has run already (it is *done*) or has not. Whatever runs later,
a task that is not done or one that is done and repeated, needs each input live at the moment or made again later.
Live bytes, with those of w itself, fit the budget. The least cost of repeats over all such choices bounds the
extra time of every order with any number of repeats; the moment that costs most decides.

With a price λ on the bytes over the budget the choice is a minimum cut, solved exactly in integers:

    later(v) ──∞──▶ needed(b) ──λ·size(b)──▶ later(maker of b) ──cost──▶ open(maker) ──∞──▶ open(its readers)

where `later` is "runs after the moment" and `open` is "not done"; in a given order what is done is known. Any λ ≥ 0
gives a bound (Lagrangian relaxation), and a feasible flow of that value proves it: its flow on each arc is the weight
of one inequality of `certificate.py`.

Source: the project's own; the relaxation is that of Everett, "Generalized Lagrange Multiplier Method", 1963, and
the cut that of Picard, "Maximal Closure of a Graph", 1976.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.bounds import peak_cut
from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_network import FULL_SECONDS, TICK_SCALE, StepModel, StepNetwork
from planner.problem import Problem
from planner.problem.plan import Goal

# Networks solved for one moment.
MAX_CUTS_PER_STEP = 24
# Where all effort is put in, so many times as many networks are solved in all, and moments that say nearly as much as
# the best at its price have a price of their own.
FULL_EFFORT, NEAR_BEST = 10, 0.6


@dataclass(frozen=True, slots=True)
class StepCut:
    """Lower bound on the cost of repeats, in ticks, and the moment and price that prove it."""

    ticks: int
    task: int  # -1 when no moment asks for repeats
    price: int  # parts of a tick per byte over the budget
    feasible: bool = True  # False: at the moment of `task` no repeats free enough
    claim: Claim | None = None  # of this cost; when not reachable, of a peak above the budget


def bound(problem: Problem, goal: Goal, budget_bytes: int) -> StepCut:
    """The best bound found for that budget. The number of cuts is limited by the size of the problem alone.

    A moment that no repeats can bring within the budget proves that it is out of reach; of time it says nothing.
    """
    best = StepCut(0, -1, 0)
    if not problem.tasks:
        return best
    moments = StepModel(problem, goal, budget_bytes)
    for task in moments.tried().tolist():
        best = _best_price(StepNetwork(moments, task), task, best)
        if moments.left <= 0 or not best.feasible:
            break
    if best.task < 0:
        return best
    claim = _claim(moments, best) if best.feasible else peak_cut.claim(moments, StepNetwork(moments, best.task))
    return replace(best, claim=claim)


def best_cuts(
    problem: Problem, goal: Goal, budget_bytes: int, count: int, is_over: Callable[[], bool] = lambda: False
) -> list[StepCut]:
    """The moments that cost most of many more, at most `count`, the dearest first with its claim.

    A goal of fewer seconds looks at fewer, and so does who says that it is over.
    """
    if not problem.tasks:
        return []
    moments, found = StepModel(problem, goal, budget_bytes), list[StepCut]()
    moments.left = int(moments.left * max(1.0, FULL_EFFORT * min(1.0, goal.seconds / FULL_SECONDS)))
    for task in moments.tried().tolist():
        nearly = replace(found[0], ticks=int(NEAR_BEST * found[0].ticks)) if found else StepCut(0, -1, 0)
        cut = _best_price(StepNetwork(moments, task), task, nearly)
        if cut.task == task and cut.feasible:
            found = sorted([*found, cut], key=lambda cut: -cut.ticks)[:count]
        if moments.left <= 0 or not cut.feasible or is_over():
            break
    return [replace(cut, claim=_claim(moments, cut)) for cut in found[:1]] + found[1:]


def cut_of_task(moments: StepModel, task: int) -> StepCut:
    """What the moment of the task says, without a claim; its task is -1 where that is nothing."""
    return _best_price(StepNetwork(moments, task), task, StepCut(0, -1, 0))


def _best_price(network: StepNetwork, task: int, known: StepCut) -> StepCut:
    """The better of the known bound and what this moment gives at its best price."""
    if known.task >= 0 and network.line(known.price).at(known.price) <= known.ticks * TICK_SCALE:
        return known
    dearest = network.moments.max_multiplier
    cheap, dear = network.line(1), network.line(dearest)
    best = known
    if dear.bytes > 0 and network.min_excess_bytes() > 0:
        return StepCut(0, task, 1, feasible=False)
    for _ in range(MAX_CUTS_PER_STEP):
        if cheap.bytes <= 0:
            break
        fair = TICK_SCALE * (dear.ticks - cheap.ticks) // max(1, cheap.bytes - dear.bytes)
        price = dearest if dear.bytes > 0 else min(dearest, max(1, fair))
        line = network.line(price)
        ticks = -(-line.at(price) // TICK_SCALE)
        if ticks > best.ticks:
            best = StepCut(ticks, task, price)
        if line.at(price) >= min(cheap.at(price), dear.at(price)) or network.moments.left <= 0:
            break
        cheap, dear = (line, dear) if line.bytes > 0 else (cheap, line)
    return best


def _claim(moments: StepModel, cut: StepCut) -> Claim:
    """What the cut says, with the flow that proves it."""
    problem = moments.problem
    proof = {"price": [cut.price], "parts": TICK_SCALE, **StepNetwork(moments, cut.task).weights(TICK_SCALE, cut.price)}
    cost = int(problem.cost[~problem.optional].sum()) + cut.ticks
    return cost_claim(moments.goal, moments.budget_bytes, cost, "moment-cut", [cut.task], proof)
