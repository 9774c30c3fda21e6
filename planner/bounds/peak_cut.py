"""Peak cuts: least bytes that can be live at the first run of a task; no order peaks below.

The minimum cut of one step (`step_network.py`) with a multiplier on bytes only: later runs need their inputs live or
recomputed. Without recomputation (`repeats` False) the cut bounds the best peak of any order.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.bounds.claims import Claim, peak_claim
from planner.bounds.step_network import StepModel, StepNetwork
from planner.problem import Problem
from planner.problem.plan import Goal

# Steps tried with recomputation allowed: the bound rarely exceeds that of the largest task then.
MAX_STEPS = 8


@dataclass(frozen=True, slots=True)
class PeakCut:
    """Lower bound on the peak of any order, in bytes, and the task whose first run proves it."""

    bytes: int
    task: int  # -1 when no task has to run
    claim: Claim | None = None


def bound(problem: Problem, goal: Goal, repeats: bool = True) -> PeakCut:
    """The highest bound of the steps tried; with `repeats`, recomputation is allowed.

    Steps are tried in the order of the baseline's memory, or with `repeats` of the memory need of their tasks.
    """
    best = PeakCut(0, -1)
    if problem.optional.all():
        return best
    model = StepModel(problem, goal, 0, repeats)
    candidates = model.largest_tasks()[:MAX_STEPS] if repeats else model.candidate_tasks()
    for task in candidates.tolist():
        network = StepNetwork(model, task)
        peak_bytes = network.min_excess_bytes()
        if peak_bytes > best.bytes:
            best = PeakCut(peak_bytes, task)
        if model.cuts_left <= 0:
            break
    return best if best.task < 0 else PeakCut(best.bytes, best.task, claim(model, StepNetwork(model, best.task)))


def claim(model: StepModel, network: StepNetwork) -> Claim:
    """The peak claim of a step's cut, proven by its maximum flow."""
    peak = model.budget_bytes + network.min_excess_bytes()
    proof = {"price": [1], **network.weights(0, 1)}
    return peak_claim(model.goal, peak, "peak-cut", [network.task], proof, model.repeats)
