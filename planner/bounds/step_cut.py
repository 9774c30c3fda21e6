"""Step cuts: at the first run of a task, each value needed later is live or must be recomputed.

Take the first run of a task w. Each other task is *done* (has run) or not. A task that runs later, either not done or
recomputed, needs each input live at the step or recomputed later. Live bytes plus those of w fit the budget. The least
cost of recomputation over all such choices bounds the extra time of every order; the best step decides.

With a Lagrange multiplier λ (`price`) on the bytes over the budget, the choice is a minimum cut, solved in integers:

    later(v) ──∞──▶ needed(b) ──λ·size(b)──▶ later(producer of b) ──cost──▶ open(producer) ──∞──▶ open(its readers)

where `later` means "runs after the step" and `open` "not done"; in a given order the done tasks are known. Any λ ≥ 0
gives a bound (Lagrangian relaxation). A feasible flow of that value proves it: the flow on an arc is the multiplier of
one inequality of `certificate.py`.

Source: the project's own; the relaxation is that of Everett, "Generalized Lagrange Multiplier Method", 1963, and
the cut that of Picard, "Maximal Closure of a Graph", 1976.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.bounds import peak_cut
from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_network import TICK_SCALE, StepModel, StepNetwork, effort_share
from planner.problem import Problem
from planner.problem.plan import Goal

# Networks solved for one step.
MAX_CUTS_PER_STEP = 24
# With full effort this many times more networks are solved in total.
FULL_EFFORT = 10
# A step that reaches this fraction of the best bound at the best step's multiplier gets its own multiplier.
NEAR_BEST = 0.6


@dataclass(frozen=True, slots=True)
class StepCut:
    """Lower bound on the cost of recomputation, in ticks, with the task and the multiplier that prove it."""

    ticks: int
    task: int  # -1: no step needs recomputation
    price: int  # multiplier, parts of a tick per byte over the budget
    feasible: bool = True  # False: at the first run of `task` no recomputation frees enough bytes
    claim: Claim | None = None  # of this cost; if infeasible, of a peak above the budget


def bound(problem: Problem, goal: Goal, budget_bytes: int) -> StepCut:
    """The best bound found for the budget. The number of cuts is limited by the size of the problem only.

    A step that no recomputation can bring within the budget proves infeasibility (`feasible` False), and nothing on
    time.
    """
    best = StepCut(0, -1, 0)
    if not problem.tasks:
        return best
    model = StepModel(problem, goal, budget_bytes)
    for task in model.candidate_tasks().tolist():
        best = _best_price(StepNetwork(model, task), task, best)
        if model.cuts_left <= 0 or not best.feasible:
            break
    if best.task < 0:
        return best
    claim = _claim(model, best) if best.feasible else peak_cut.claim(model, StepNetwork(model, best.task))
    return replace(best, claim=claim)


def best_cuts(
    problem: Problem, goal: Goal, budget_bytes: int, count: int, is_over: Callable[[], bool] = lambda: False
) -> list[StepCut]:
    """Up to `count` steps of highest cost, most expensive first, of more than `bound` tries; the first has a claim.

    Shorter goals (in seconds) try fewer steps; `is_over` ends the search early.
    """
    if not problem.tasks:
        return []
    model, found = StepModel(problem, goal, budget_bytes), list[StepCut]()
    model.cuts_left = int(model.cuts_left * max(1.0, FULL_EFFORT * effort_share(goal)))
    for task in model.candidate_tasks().tolist():
        nearly = replace(found[0], ticks=int(NEAR_BEST * found[0].ticks)) if found else StepCut(0, -1, 0)
        cut = _best_price(StepNetwork(model, task), task, nearly)
        if cut.task == task and cut.feasible:
            found = sorted([*found, cut], key=lambda cut: -cut.ticks)[:count]
        if model.cuts_left <= 0 or not cut.feasible or is_over():
            break
    return [replace(cut, claim=_claim(model, cut)) for cut in found[:1]] + found[1:]


def cut_of_task(model: StepModel, task: int) -> StepCut:
    """The cut at the first run of the task, without a claim; its task is -1 if the bound is trivial."""
    return _best_price(StepNetwork(model, task), task, StepCut(0, -1, 0))


def _best_price(network: StepNetwork, task: int, known: StepCut) -> StepCut:
    """The better of the known bound and this step's bound at its best multiplier."""
    if known.task >= 0 and network.best_at(known.price).at(known.price) <= known.ticks * TICK_SCALE:
        return known
    max_price = network.model.max_multiplier
    over, within = network.best_at(1), network.best_at(max_price)
    best = known
    if within.bytes > 0 and network.min_excess_bytes() > 0:
        return StepCut(0, task, 1, feasible=False)
    for _ in range(MAX_CUTS_PER_STEP):
        if over.bytes <= 0:
            break
        fair = TICK_SCALE * (within.ticks - over.ticks) // max(1, over.bytes - within.bytes)
        price = max_price if within.bytes > 0 else min(max_price, max(1, fair))
        choice = network.best_at(price)
        ticks = -(-choice.at(price) // TICK_SCALE)
        if ticks > best.ticks:
            best = StepCut(ticks, task, price)
        if choice.at(price) >= min(over.at(price), within.at(price)) or network.model.cuts_left <= 0:
            break
        over, within = (choice, within) if choice.bytes > 0 else (over, choice)
    return best


def _claim(model: StepModel, cut: StepCut) -> Claim:
    """The cost claim of the cut, proven by its maximum flow."""
    proof = {"price": [cut.price], "parts": TICK_SCALE, **StepNetwork(model, cut.task).weights(TICK_SCALE, cut.price)}
    cost = model.problem.single_run_ticks() + cut.ticks
    return cost_claim(model.goal, model.budget_bytes, cost, "moment-cut", [cut.task], proof)
