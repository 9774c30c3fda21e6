"""What `auto` promises: no worse than what it is given, at any budget."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bench.catalogue import Instance
from graph.formats.readers import load
from planner.algorithms import planner_named
from planner.errors import BadRequest
from planner.formulation.formulate import formulate
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.request.plan_request import parse_request
from planner.search import improvers, lexicographic, portfolio, scores
from planner.search.portfolio import search
from planner.search.scores import goal_score, is_infeasible, peak_floor
from planner.search.time_slices import TimeSlices
from tests.contracts.test_every_planner import is_runnable
from tests.planner.drawn import drawn
from tests.planner.random_problems import random_problem, training_problem


def found(problem: Problem, goal: Goal, planner: str = "auto", iterations: int = 60, seeds=()) -> Candidate:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
    return search(problem, goal, planner, monitor, seeds)


def test_a_seed_is_kept_unless_something_better_is_found():
    problem = training_problem(random.Random(3), 12)
    peak = liveness.peak(problem, np.arange(problem.tasks))
    tight = Goal(peak * 85 // 100)
    seed = found(problem, tight, "anneal", 400)
    assert goal_score(problem, tight, seed.order).bytes_over_budget == 0
    loose = Goal(peak * 86 // 100, iterations=0)
    for planner in ("as_given", "auto"):
        assert goal_score(problem, loose, found(problem, loose, planner, 0).order).bytes_over_budget > 0
        kept = found(problem, loose, planner, 0, [seed])
        assert goal_score(problem, loose, kept.order) <= goal_score(problem, loose, seed.order)


def test_a_planner_by_the_clock_alone_starts_from_the_best_seed(monkeypatch: pytest.MonkeyPatch):
    problem = training_problem(random.Random(3), 4)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 9 // 10)
    seed, started = found(problem, goal, "greedy"), list[Order]()

    def plan(_: Problem, __: Goal, monitor: Monitor) -> Order:
        assert monitor.best is not None
        started.append(monitor.best)
        return monitor.best

    monkeypatch.setattr(portfolio, "planner_named", lambda name: plan)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60)
    result = portfolio.search(problem, goal, "neighbourhood", monitor, [seed])
    assert started[0].tolist() == result.order.tolist() == seed.order.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_auto_is_no_worse_than_any_planner_with_as_many_iterations(seed: int):
    rng = random.Random(seed)
    problem = training_problem(rng, 7) if seed % 2 else random_problem(rng, 9)
    while problem.tasks < 9 or not is_runnable(problem):
        problem = random_problem(rng, 9)
    peak = liveness.peak(problem, base_order(problem))
    for goal in (Goal(peak * 9 // 10), Goal(peak * 6 // 10), Goal(0), Goal(max_overhead=0.2)):
        goal = replace(goal, order_is_given=seed % 3 == 0, seed=seed)
        if not is_infeasible(problem, goal):
            assert_no_worse(problem, goal, lexicographic.search, 15)


@pytest.mark.heavy
@pytest.mark.parametrize("order", ["free", "given"])
@pytest.mark.parametrize("name", ["chain40", "vgg16_b32", "unet_b4", "layered_n100_s1"])
def test_auto_is_no_worse_on_instances(name: str, order: str):
    graph = load(Instance(name).bytes)
    for budget in ("90%", "70%", "50%"):
        asked = formulate(graph, parse_request({"budget": budget, "order": order}))
        if not is_infeasible(asked.lowered.problem, asked.goal):
            assert_no_worse(asked.lowered.problem, asked.goal, search, 30)


def assert_no_worse(problem: Problem, goal: Goal, asked: Callable[..., Candidate], iterations: int) -> None:
    """What `auto` finds is as near to the goal as what any planner finds alone, and takes no longer."""
    reached = {}
    for planner in ("auto", *portfolio.STANDALONE_PLANNERS):
        monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
        best = asked(problem, goal, planner, monitor)
        reached[planner] = goal_score(problem, goal, best.order, best.choices)[:2]
    assert reached["auto"] == min(reached.values()), reached


def test_time_does_not_rise_with_the_budget_when_plans_are_handed_up():
    problem = training_problem(random.Random(2), 12)
    peak = liveness.peak(problem, base_order(problem))
    seeds: list[Candidate] = []
    for part in (0.8, 0.85, 0.9, 0.95, 1.0):
        goal = Goal(int(peak * part), iterations=15)
        seeds.append(found(problem, goal, iterations=15, seeds=seeds))
    costs = [int(problem.cost[seed.order].sum()) for seed in seeds]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == problem.cost.sum()


def test_a_budget_below_one_task_is_refused_without_annealing(monkeypatch):
    #   a ── b ── c      b needs a and itself
    problem = drawn("a>b b>c")
    goal = Goal(int(problem.size[:2].sum()) - 1, iterations=1000)
    assert is_infeasible(problem, goal)
    assert not is_infeasible(problem, Goal(int(problem.size[:2].sum())))
    monkeypatch.setattr(improvers, "IMPROVERS", (("no such planner", 1.0),))
    monkeypatch.setattr(improvers, "SOLVER", ("no such planner", 1.0))
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=1000)
    assert search(problem, goal, "auto", monitor).order.tolist() == [0, 1, 2]


def test_a_budget_below_a_proven_peak_is_refused_without_annealing(monkeypatch):
    problem = training_problem(random.Random(0), 6)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 7 // 10)
    monkeypatch.setattr(improvers, "IMPROVERS", (("no such planner", 1.0),))
    monkeypatch.setattr(improvers, "SOLVER", ("no such planner", 1.0))
    assert not is_infeasible(problem, goal)
    for least_peak, refused in ((goal.budget_bytes, False), (goal.budget_bytes + 1, True)):
        monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=10, peak_bound=least_peak)
        if refused:
            assert goal_score(problem, goal, search(problem, goal, "auto", monitor).order).bytes_over_budget > 0
        else:
            with pytest.raises(BadRequest, match="no such planner"):
                search(problem, goal, "auto", monitor)


@pytest.mark.heavy
def test_where_nothing_fits_a_model_of_a_small_problem_is_solved():
    problem = training_problem(random.Random(0), 6)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 7 // 10)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=300)
    ours = goal_score(problem, goal, search(problem, goal, "auto", monitor).order)
    for name in ("greedy", "chain", "min_cut", "dtr", "blocks", "cp_sat"):
        monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=300)
        assert ours[:2] <= goal_score(problem, goal, planner_named(name)(problem, goal, monitor))[:2], name


def test_a_proven_plan_ends_the_search():
    problem = training_problem(random.Random(4), 8)
    goal = Goal(liveness.peak(problem, base_order(problem)) * 9 // 10, iterations=10_000)
    first = found(problem, goal, "anneal", 400)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=10_000)
    monitor.cost_bound.ticks = int(problem.cost[first.order].sum())
    again = search(problem, goal, "auto", monitor, [first])
    assert goal_score(problem, goal, again.order).cost <= monitor.cost_bound.ticks and monitor.calls < 5_000


def test_under_a_time_limit_the_result_is_no_worse_than_the_minimum_cut_of_saved_values(monkeypatch):
    """On U-Nets as PyTorch records them the cut is the best quick planner; here the others only return the order."""
    problem = training_problem(random.Random(0), 8)
    order = base_order(problem)
    goal = Goal(liveness.peak(problem, order) * 7 // 10)
    cut = planner_named("min_cut")
    idle = lambda problem, goal, monitor: order  # noqa: E731
    for module in (portfolio, improvers):
        monkeypatch.setattr(module, "planner_named", lambda name: cut if name == "min_cut" else idle)
    monkeypatch.setattr(improvers, "is_order_free", lambda *_: False)  # else walks follow that take all the time
    judge = lambda order: goal_score(problem, goal, order)  # noqa: E731
    found = portfolio.search(problem, goal, "auto", Monitor(judge, seconds=60.0))
    best = cut(problem, goal, Monitor(judge, seconds=60.0))
    assert judge(found.order) <= judge(best) < judge(order)


def test_an_improver_goes_on_while_it_finds_better_orders_up_to_a_share_of_the_time():
    monitor = Monitor(lambda order: Score(0, len(order), 0), seconds=100.0)
    slices = TimeSlices(monitor)
    part = slices.part(monitor.judge, 0.1)
    part.on_progress = improvers.going_on(part, slices, 75.0)
    part.started -= 5
    part.offer(np.arange(9))
    assert part.seconds == pytest.approx(10, abs=0.1)  # enough is left
    part.started -= 15
    part.offer(np.arange(8))
    assert part.seconds == pytest.approx(20 * improvers.GOES_ON, abs=0.1)
    part.started -= 50
    part.offer(np.arange(7))
    assert part.seconds == 75 and monitor.best_score == Score(0, 7, 0)


def test_planners_that_do_not_look_at_the_clock_are_left_out_on_large_graphs_once_an_order_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = training_problem(random.Random(3), 12)
    ran: list[str] = []

    def named(name: str) -> Callable[[Problem, Goal, Monitor], np.ndarray]:
        ran.append(name)
        return planner_named(name)

    def planners_of(share: float, most_tasks: int) -> list[str]:
        ran.clear()
        monkeypatch.setattr(improvers, "MAX_SLOW_TASKS", most_tasks)
        goal = Goal(int(share * liveness.peak(problem, np.arange(problem.tasks))))
        monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=60.0)
        portfolio._best_of_quick(problem, goal, monitor, portfolio.QUICK_BY_CLOCK)
        return list(ran)

    monkeypatch.setattr(portfolio, "planner_named", named)
    assert "mirror" in planners_of(0.9, 10**6)
    assert "greedy" in planners_of(0.9, 1) and "mirror" not in planners_of(0.9, 1)
    assert "mirror" in planners_of(0.01, 1)  # no order fits


class _Quick:
    """Replaces the planners: `greedy` uses up the time, and fits the budget if told so; `segments` has a lower peak."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, greedy_fits: bool = False):
        self.problem = training_problem(random.Random(0), 40)
        self.given = base_order(self.problem)
        self.peak = liveness.peak(self.problem, self.given)
        self.lower, self.lowest = (
            found(self.problem, Goal(int(share * self.peak)), "greedy").order for share in (0.9, 0.7)
        )
        self.greedy_fits, self.ran, self.seconds = greedy_fits, list[str](), dict[str, float]()
        monkeypatch.setattr(portfolio, "planner_named", lambda name: partial(self.plan, name))

    def plan(self, name: str, problem: Problem, goal: Goal, monitor: Monitor) -> np.ndarray:
        self.ran.append(name)
        self.seconds[name] = monitor.seconds
        if name == "greedy":
            monitor.started -= monitor.seconds
            return self.lowest if self.greedy_fits else self.given
        return self.lower if name == "segments" else self.given

    def best(self, budget_bytes: int, known: np.ndarray | None = None) -> Candidate:
        goal = Goal(budget_bytes)
        monitor = Monitor(lambda order: goal_score(self.problem, goal, order), seconds=1000.0)
        if known is not None:
            monitor.offer(known)
        return portfolio._best_of_quick(self.problem, goal, monitor, portfolio.QUICK_BY_CLOCK)


def test_an_order_of_segments_is_there_although_greedy_uses_up_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _Quick(monkeypatch)
    assert liveness.peak(quick.problem, quick.lower) < quick.peak
    best = quick.best(liveness.peak(quick.problem, quick.lower) - 1)
    assert best.planner == "segments" and best.order is quick.lower
    assert quick.ran == ["as_given", "evict", "segments", "greedy"]
    assert quick.seconds["segments"] <= portfolio.AHEAD_SHARE * 1000.0 < 0.9 * quick.seconds["greedy"]


def test_the_order_of_greedy_is_kept_if_it_is_better_than_that_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _Quick(monkeypatch, greedy_fits=True)
    budget = liveness.peak(quick.problem, quick.lowest)
    assert budget < liveness.peak(quick.problem, quick.lower)
    best = quick.best(budget)
    assert best.planner == "greedy" and best.order is quick.lowest
    assert quick.ran.count("segments") == 1


def test_segments_do_not_run_first_where_an_order_fits_or_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _Quick(monkeypatch)
    quick.best(quick.peak - 1, quick.lowest)
    assert quick.ran == ["as_given", "evict", "greedy"]
    quick.ran.clear()
    monkeypatch.setattr(improvers, "MAX_SLOW_TASKS", 1)
    quick.best(quick.peak - 1)
    assert quick.ran == ["as_given", "greedy"]


def test_nothing_is_scored_or_improved_once_the_search_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = training_problem(random.Random(0), 40)
    goal = Goal(int(0.7 * liveness.peak(problem, base_order(problem))))
    monitor = Monitor(lambda order: goal_score(problem, goal, order), seconds=1000.0)

    def plan(problem: Problem, goal: Goal, _: Monitor) -> np.ndarray:
        monitor.cancel()
        monkeypatch.delattr(improvers, "improve")
        monkeypatch.delattr(scores, "peak_floor")
        return base_order(problem)

    monkeypatch.setattr(portfolio, "planner_named", lambda name: plan)
    assert search(problem, goal, "auto", monitor).planner == "as_given"


def test_the_columns_of_a_problem_bound_its_peak_once_while_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, bounded = training_problem(random.Random(0), 10), list[int]()
    genuine = scores.largest_task.bound
    monkeypatch.setattr(scores.largest_task, "bound", lambda given: bounded.append(given.tasks) or genuine(given))
    floor = peak_floor(problem)
    assert floor == genuine(problem).bytes or floor == scores.held_at_end.bound(problem)
    assert (peak_floor(problem), peak_floor(problem, floor + 1)) == (floor, floor + 1)
    larger = replace(problem, size=2 * problem.size)
    assert peak_floor(larger) > floor
    assert len(bounded) == 2
    kept = weakref.ref(problem)
    del problem, larger
    gc.collect()
    assert kept() is None
