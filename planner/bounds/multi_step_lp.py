"""Multi-step LP bound: least cost of recomputation if memory fits at each of several steps, each run counted once.

The inequalities of `certificate.py` at successive steps, as a linear program over windows from each step to the next
and from each step to the end. Its dual values, rounded to integers, are the multipliers of a proof: rounding errors
make the bound weaker, never false. The cut at a single step is `step_cut.py`, which is cheaper.

Source: the project's own; with a step at every first run it is the relaxation of Jain et al., "Checkmate", MLSys
2020, section 4.7.
"""

from __future__ import annotations

import numpy as np

from planner.bounds.claims import Claim, cost_claim, problem_columns
from planner.bounds.step_lp import StepLp
from planner.bounds.step_network import UNKNOWN, StepModel, effort_share
from planner.problem import Problem
from planner.problem.plan import Goal
from planner.verify import certificate

# Steps to start with, the maximum of steps, and the maximum of rows.
MIN_STEPS, MAX_STEPS, MAX_ROWS = 4, 32, 26_000


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """The best claim from steps around the first run of `task`; None: too large a problem, or nothing is proven.

    Each round doubles the steps: those with a non-zero multiplier are kept and others added, until the linear
    program is not solved. Shorter goals (in seconds) get smaller programs.
    """
    model, best = StepModel(problem, goal, budget_bytes), None
    rows = 2 * (len(model.read) + problem.buffers + problem.tasks // 2)
    allowed = int(MAX_ROWS * effort_share(goal))
    max_steps, size, chain = min(MAX_STEPS, allowed // max(1, rows)), MIN_STEPS, [task]
    while size < 2 * max_steps and max_steps >= MIN_STEPS:
        before, chain = chain, choose_steps(model, chain, min(size, max_steps))
        if len(chain) > max_steps or chain == before:
            break
        claim = prove_bound(model, chain, step_windows(len(chain)))
        if claim is None:
            break
        if best is None or claim["value"] > best["value"]:
            best = claim
        chain = [w for w, price in zip(chain, claim["proof"]["price"], strict=True) if price] or [task]
        size *= 2
    return best


def step_windows(end: int) -> list[tuple[int, int]]:
    """Windows from each step to the next, and from each step to the end."""
    return [(k, k + 1) for k in range(end)] + [(k, end) for k in range(end - 1)]


def choose_steps(model: StepModel, tasks: list[int], most: int) -> list[int]:
    """The tasks, totally ordered, and others comparable to all of them, spread over the steps of highest memory."""
    over = model.candidate_tasks()
    over = over[np.argsort(model.place[over], kind="stable")]
    spread = np.linspace(0, len(over) - 1, max(0, min(most - len(tasks), len(over)))).astype(np.int64)
    chain, known = list(tasks), [model.known(task) for task in tasks]
    for other in over[spread].tolist():
        if other not in chain and all(row[other] != UNKNOWN for row in known):
            at = sum(int(row[other] == 0) for row in known)  # tasks of the chain that run before it
            chain.insert(at, other)
            known.insert(at, model.known(other))
    return chain


def prove_bound(model: StepModel, chain: list[int], windows: list[tuple[int, int]]) -> Claim | None:
    """The claim that these steps and windows prove; None if it does not exceed one run of every task."""
    lp = StepLp(model, chain, windows)
    solution = lp.solved({})
    if solution is None or (weights := lp.weights(solution)) is None:
        return None
    claim = cost_claim(model.goal, model.budget_bytes, 0, "several-moments", chain, weights)
    value = certificate.proven_value(problem_columns(model.problem), claim)
    return {**claim, "value": value} if value > model.problem.single_run_ticks() else None
