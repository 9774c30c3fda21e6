"""Small problems with everything a problem can have, and whether `auto` and the bounds are right about each.

Shared by the tests and by `bench/soak.py --optima`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from planner.bounds import claims, first_of_set, held_at_end, largest_task, peak_cut, step_branch_and_bound, step_cut
from planner.bounds import multi_step_lp as several
from planner.problem import Problem
from planner.problem.alternatives import relax_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Score
from planner.search import lexicographic
from planner.search.scores import goal_score
from tests.contracts.test_every_planner import is_runnable
from tests.planner.bounds import checkmate_lp
from tests.planner.problem.test_alternatives import with_random_choices
from tests.planner.random_problems import random_problem, returning_problem, training_problem

#: Tasks of a problem with alternatives: each vector of them is a problem of its own for the oracle.
FEWER = 6
#: Enough for `auto` to look at all orders under all alternatives.
ITERATIONS = 2_000


def small_problem(rng: random.Random) -> Problem:
    """Up to 12 tasks; the document's order is legal."""
    while True:
        kind = rng.random()
        if kind < 0.25:
            problem = random_problem(rng, 12)
        elif kind < 0.35:
            problem = training_problem(rng, rng.randint(1, 2))
        elif kind < 0.5:
            problem = with_random_choices(rng, random_problem(rng, FEWER))
        elif kind < 0.6:
            problem = with_random_choices(rng, returning_problem(rng, FEWER // 2))
        else:
            problem = returning_problem(rng, rng.choice([2, 3, 3, 4, 4, 5, 6]))
        if is_runnable(problem):
            return problem


def modes(rng: random.Random) -> list[Goal]:
    """Both orders, with strict phases or mixed."""
    strict = rng.random() < 0.7
    return [Goal(order_is_given=given, strict_phases=strict) for given in (False, True)]


def budgets(best: list[tuple[int, int]]) -> Iterator[tuple[int, Score]]:
    """All budgets between which the answer changes, each with the best score; 0 for the lowest peak.

    `best_cuts` are the (ticks, peak) that no other beat, the cheapest first.
    """
    for at, (ticks, peak) in enumerate(best):
        for budget in {peak, best[at - 1][1] - 1 if at else peak + 1}:
            if budget > 0:
                yield budget, Score(0, ticks, peak)
    ticks, peak = best[-1]
    for budget in {peak - 1, peak // 2}:
        if 0 < budget < peak:
            yield budget, Score(peak - budget, ticks, peak)
    yield 0, Score(peak, ticks, peak)


def planned(problem: Problem, goal: Goal) -> tuple[Candidate, Score]:
    """What `auto` finds."""
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=ITERATIONS)
    found = lexicographic.search(problem, goal, "auto", monitor)
    return found, goal_score(problem, goal, found.order, found.choices)


def wrong(problem: Problem, mode: Goal, best: list[tuple[int, int]]) -> Iterator[str]:
    """What is not as the oracle's `front` says, at every budget: `auto`'s cost or peak, or a bound."""
    assert best, "the document's order is legal, so there is a best one"
    for budget, least in budgets(best):
        goal = replace(mode, budget_bytes=budget)
        _, score = planned(problem, goal)
        if score[:2] != least[:2] or score.peak_bytes > max(budget, least.peak_bytes):
            yield f"{goal}: auto has {score}, the best is {least}"
        for claim in claimed(problem, goal):
            limit = best[-1][1] if claim["of"] == "peak" else least.cost
            if claim["value"] > limit and (claim["of"] == "peak" or not least.bytes_over_budget):
                yield f"{goal}: {claim['kind']} proves {claim['value']} of {claim['of']}, the best is {limit}"
            if refused := claims.rejection_reason(problem, [claim]):
                yield f"{goal}: {claim['kind']} is refused: {refused}"
        if mode.order_is_given and budget and not least.bytes_over_budget:
            plain = relax_choices(problem)
            repeats = checkmate_lp.bound(plain, budget, mode.strict_phases)
            if plain.cost.sum() + repeats > least.cost and not plain.optional.any():
                yield f"{goal}: Checkmate's relaxation proves {repeats} ticks of repeats, the best is {least}"


def claimed(problem: Problem, goal: Goal) -> Iterator[claims.Claim]:
    """All that the bounds a report may show say of any number of runs within the budget."""
    plain, budget = relax_choices(problem), goal.budget_bytes
    yield largest_task.claim(largest_task.bound(plain))
    yield held_at_end.claim(held_at_end.bound(plain))
    if claim := peak_cut.bound(plain, goal).claim:
        yield claim
    if not budget:
        return
    if claim := first_of_set.bound(plain, goal, budget, 0):
        yield claim
    one = step_cut.bound(plain, goal, budget)
    if one.claim:
        yield one.claim
    for cut in step_cut.best_cuts(plain, goal, budget, 2):
        for bound in (step_branch_and_bound.bound, several.bound):
            if claim := bound(plain, goal, budget, cut.task):
                yield claim
