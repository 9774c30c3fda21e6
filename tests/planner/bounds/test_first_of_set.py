"""Whichever of some tasks is first: no more than the optimum is proven, and more than any moment alone can."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from planner.bounds import claims, first_of_set, step_cut
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.planner.bounds.test_step_cut import suited
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost
from tests.planner.proven import assert_accepted_and_no_more


def gradients(rng: random.Random) -> Problem:
    """Values that are all made before two to four large tasks read them, in any order."""
    pairs = rng.randint(2, 4)
    arcs = [f"{'abcd'[k]}>{'efgh'[k]}" for k in range(pairs)]
    arcs += [f"{'abcd'[k]}>{'abcd'[k + 1]}" for k in range(pairs - 1) if rng.random() < 0.3]
    arcs += [f"{'efgh'[k]}>{'efgh'[k + 1]}" for k in range(pairs - 1) if rng.random() < 0.2]
    letters = "".join(sorted({letter for arc in arcs for letter in arc.split(">")}))
    size = {letter: rng.randint(5, 9) if letter in "efgh" else rng.randint(1, 5) for letter in letters}
    backward = "".join(chr(ord("a") + letters.index(letter)) for letter in letters if letter in "efgh")
    names = {letter: chr(ord("a") + k) for k, letter in enumerate(letters)}
    return drawn(
        " ".join(f"{names[arc[0]]}>{names[arc[2]]}" for arc in arcs),
        size={names[x]: y for x, y in size.items()},
        cost={names[letter]: rng.randint(1, 9) for letter in letters},
        backward=backward,
    )


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.heavy)])
def test_no_set_proves_more_than_the_optimum_and_each_is_accepted(count: int):
    rng = random.Random(count)
    more = 0
    for i in range(count):
        problem, goal = suited(rng, 6) if i % 2 else gradients(rng), Goal(strict_phases=rng.random() < 0.8)
        budget = liveness.peak(problem, base_order(problem, goal.strict_phases)) * rng.randint(10, 19) // 20
        alone = int(problem.cost.sum()) + step_cut.bound(problem, goal, budget).ticks
        claim = first_of_set.bound(problem, goal, budget, alone)
        if claim is None:
            continue
        least = least_cost(problem, goal, budget)
        assert_accepted_and_no_more(problem, claim)
        assert least is None or alone < claim["value"] <= least
        more += least is not None
    assert more > count // 20


def two_gradients() -> Problem:
    """c reads a and d reads b in any order; beside the first of them lies what the other reads."""
    return drawn("a>c b>d", size={"a": 4, "b": 4, "c": 6, "d": 6}, cost={"a": 5, "b": 7}, backward="cd")


def test_what_the_other_reads_is_held_or_made_again():
    problem = two_gradients()
    assert step_cut.bound(problem, Goal(13), 13).ticks == 0  # the other may have run
    claim = first_of_set.bound(problem, Goal(13), 13, 0)
    assert claim is not None
    assert sorted(claim["moments"]) == [2, 3]
    assert claim["value"] == problem.cost.sum() + 5 == least_cost(problem, Goal(13), 13)


def test_nothing_is_said_of_a_given_order_or_where_no_more_is_known():
    problem = two_gradients()
    assert first_of_set.bound(problem, Goal(13, order_is_given=True), 13, 0) is None
    assert first_of_set.bound(problem, Goal(13), 13, int(problem.cost.sum()) + 5) is None


def test_arcs_are_counted_where_a_set_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_gradients()
    arcs = first_of_set.arcs(problem, Goal(13), 13)
    assert arcs > 2 * problem.tasks and arcs % 2 == 0  # of two networks
    assert first_of_set.arcs(problem, Goal(13, order_is_given=True), 13) == 0
    assert first_of_set.arcs(problem, Goal(13, seconds=1e-6), 13) == 0
    assert first_of_set.arcs(drawn("a>b b>c"), Goal(13), 13) == 0
    monkeypatch.setattr(first_of_set, "MAX_COUNTED_TASKS", problem.tasks - 1)
    assert first_of_set.arcs(problem, Goal(13), 13) == 0


@pytest.mark.parametrize(
    ("taken", "left", "kept"), [(0.4, 4.0, 0.5), (0.4, 0.5, 0.8), (0.4, 0.0, 1.0), (0.4, 0.2, 1.0)]
)
def test_trees_leave_their_proofs_as_long_as_their_roots_took(
    taken: float, left: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def grown(model: object, roots: object, *, kept: float) -> int:
        asked.append(kept)
        return 5

    times = iter([0.0, taken] * 9)
    monkeypatch.setattr(first_of_set, "grow_trees", grown)
    monkeypatch.setattr(first_of_set, "seconds_left", lambda: left)
    monkeypatch.setattr(first_of_set, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert first_of_set.bound(two_gradients(), Goal(13), 13, 0) is not None
    assert asked and asked == pytest.approx([kept] * len(asked))


@pytest.mark.parametrize("wrong", ["a proof too few", "one task alone", "a task twice", "of others"])
def test_a_set_that_proves_something_else_is_refused(wrong: str):
    problem = two_gradients()
    claim = first_of_set.bound(problem, Goal(13), 13, 0)
    assert claim is not None
    first, second = claim["proof"]["first_of"]
    moments, proofs = {
        "a proof too few": ([2, 3], [first]),
        "one task alone": ([2], [first]),
        "a task twice": ([2, 2], [first, first]),
        "of others": ([0, 1], [first, second]),
    }[wrong]
    assert claims.rejection_reason(problem, [{**claim, "moments": moments, "proof": {"first_of": proofs}}])
