"""Peak cuts: the least bytes that can be live when a task first runs; no order peaks below.

The cut of one moment (`network.py`) at a price on bytes alone: what runs later needs its inputs live or made again.
Where every task runs once, making again is out of the question, and the cut bounds the best peak of any order.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.bounds.claims import Claim, peak_claim
from planner.bounds.step_network import StepModel, StepNetwork
from planner.problem import Problem
from planner.problem.plan import Goal

# Moments tried where tasks may run again: the largest task is hardly ever exceeded then.
MAX_STEPS = 8


@dataclass(frozen=True, slots=True)
class PeakCut:
    """Lower bound on the peak of any order, in bytes, and the moment that proves it."""

    bytes: int
    task: int  # -1 when no task has to run
    claim: Claim | None = None


def bound(problem: Problem, goal: Goal, repeats: bool = True) -> PeakCut:
    """The highest of the moments tried; with `repeats`, tasks may run again.

    First come the moments of the baseline's fullest steps, or with repeats those of the tasks that need most.
    """
    best = PeakCut(0, -1)
    if problem.optional.all():
        return best
    moments = StepModel(problem, goal, 0, repeats)
    tried = moments.largest_tasks()[:MAX_STEPS] if repeats else moments.tried()
    for task in tried.tolist():
        network = StepNetwork(moments, task)
        least = network.min_excess_bytes()
        if least > best.bytes:
            best = PeakCut(least, task)
        if moments.left <= 0:
            break
    return best if best.task < 0 else PeakCut(best.bytes, best.task, claim(moments, StepNetwork(moments, best.task)))


def claim(moments: StepModel, network: StepNetwork) -> Claim:
    """What the least bytes of a moment say, with the flow that proves it."""
    peak = moments.budget_bytes + network.min_excess_bytes()
    proof = {"price": [1], **network.weights(0, 1)}
    return peak_claim(moments.goal, peak, "peak-cut", [network.task], proof, moments.repeats)
