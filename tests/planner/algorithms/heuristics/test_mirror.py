"""Mirroring: which groups are kept, which copies run, and where they stand."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.algorithms.heuristics.mirror import decide, mirrored_order, plan
from planner.problem import ALLOW, BACKWARD, FORBID, FORWARD, FREE, HANDED_OUT, NEVER, PREFER, TO_THE_END, Problem
from planner.problem.liveness import lifetimes, peak, score
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.verify.checker import check_order
from tests.planner.algorithms.heuristics.columns import Columns
from tests.planner.algorithms.heuristics.mirror_oracle import MirrorOracle


def planned(problem: Problem, **goal: object) -> list[int]:
    goal = Goal(**goal)
    return plan(problem, goal, Monitor(lambda order: score(problem, order, 0))).tolist()


def random_training(seed: int) -> Problem:
    """A random forward part whose gradients read some of what their tasks read and wrote."""
    chance = random.Random(seed)
    c = Columns()
    made = [c.resident(chance.randint(1, 9)) for _ in range(chance.randint(1, 3))]
    tasks: list[tuple[list[int], list[int]]] = []
    for t in range(chance.randint(1, 14)):
        reads = list(
            dict.fromkeys(chance.choices(made[-6:] if chance.random() < 0.7 else made, k=chance.randint(1, 3)))
        )
        hold = chance.choices([0, TO_THE_END, HANDED_OUT], [8, 1, 1])[0]
        writes = [c.buffer(chance.choice([0, 1, 2, 3, 5, 9]), hold) for _ in range(chance.choice([1, 1, 1, 2]))]
        said = chance.choices([ALLOW, FORBID, PREFER], [8, 1, 1])[0]
        repeat = chance.choices([FREE, NEVER], [9, 1])[0]
        after = [chance.randrange(t)] if t and chance.random() < 0.15 else []
        c.task(reads, writes, heavy=chance.random() < 0.25, after=after, recompute=said, repeat=repeat)
        tasks.append((reads, writes))
        made += writes
    incoming = c.gradient([])
    for reads, writes in reversed(tasks):
        incoming = c.gradient([incoming, *(b for b in dict.fromkeys(reads + writes) if chance.random() < 0.5)])
    return c.done()


@given(st.integers(0, 10**9))
def test_decisions_are_those_of_the_description(seed):
    problem = random_training(seed)
    found, told = decide(problem), MirrorOracle(problem)
    assert {t: int(found.stage[t]) for t in told.stage} == told.stage
    assert len(told.stage) == (problem.phase == FORWARD).sum()
    ours = [(frozenset(g.tasks), g.allocated_bytes, g.released_bytes) for g in found.groups]
    assert sorted(ours, key=lambda g: min(g[0])) == sorted(told.groups, key=lambda g: min(g[0]))


@given(st.integers(0, 10**9))
def test_every_plan_runs_everything_once_and_each_materialised_copy_once_more(seed):
    problem = random_training(seed)
    decisions = decide(problem)
    order = planned(problem)
    runs = np.bincount(order, minlength=problem.tasks)
    assert runs.tolist() == (1 + decisions.materialised).tolist()
    assert not (decisions.materialised & (decisions.stage == 0)).any()
    assert (runs[(problem.repeat == NEVER) | (problem.recompute == FORBID)] == 1).all()
    assert (np.diff(problem.phase[order[: int((problem.phase == FORWARD).sum())]]) == 0).all()


@given(st.integers(0, 10**9))
def test_every_plan_is_legal_under_strict_phases_and_the_given_order(seed):
    problem = random_training(seed)
    goal = Goal(order_is_given=True, strict_phases=True)
    check_order(problem, goal, planned(problem, order_is_given=True))


@given(st.integers(0, 10**9))
def test_every_copy_is_read_from_a_later_phase_or_by_another_copy_or_waited_for(seed):
    problem = random_training(seed)
    order = np.array(planned(problem))
    lives = lifetimes(problem, order)
    read = set(lives.read_instance.index.tolist())
    seen: set[int] = set()
    for step, t in enumerate(order.tolist()):
        if t in seen:
            used = set(lives.written_instance[step].tolist()) & read
            waited = [s for s in problem.after_first[t].tolist() if s in order[step:]]
            assert used or waited
        seen.add(t)


@given(st.integers(0, 10**9))
def test_a_later_phase_reads_only_copies_of_what_is_run_again(seed):
    problem = random_training(seed)
    again = decide(problem).materialised
    order = np.array(planned(problem))
    lives = lifetimes(problem, order)
    forward_steps = int((problem.phase == FORWARD).sum())
    producer = problem.producer()
    for step, t in enumerate(order.tolist()):
        if problem.phase[t] == BACKWARD:
            for instance in lives.read_instance[step].tolist():
                b = lives.buffer[instance]
                if producer[b] >= 0 and again[producer[b]] and problem.hold[b] != HANDED_OUT:
                    assert lives.writer_step[instance] >= forward_steps


def shared_attention(steps: int) -> Columns:
    """`steps` decoder steps that each add a small query to one big key and squash the sum."""
    #   key ─┬─▶ add ──▶ tanh ──▶ score        tanh's gradient reads its output, score's its input
    #        ╰─▶ add ──▶ tanh ──▶ score
    c = Columns()
    x = c.resident(0)
    key = c.buffer(50)
    c.task([x], [key], heavy=True)
    outputs = []
    for _ in range(steps):
        query, add, tanh, out = c.buffer(1), c.buffer(50), c.buffer(50), c.buffer(1)
        c.task([x], [query], heavy=True)
        c.task([key, query], [add])
        c.task([add], [tanh])
        c.task([tanh], [out], heavy=True)
        outputs.append((tanh, out))
    total = c.buffer(1)
    c.task([out for _, out in outputs], [total], heavy=True)
    incoming = c.gradient([total])
    for tanh, _ in reversed(outputs):
        incoming = c.gradient([incoming, tanh])
    return c


def test_one_step_over_a_key_is_kept_and_three_steps_over_it_are_run_again():
    assert decide(shared_attention(1).done()).stage.sum() == 0
    several = decide(shared_attention(3).done())
    assert several.stage.sum() == 6
    assert [group.mirrored for group in several.groups] == [True]
    assert (several.groups[0].allocated_bytes, several.groups[0].released_bytes) == (150, 53)


def test_copies_run_late_so_that_steps_share_one_workspace():
    problem = shared_attention(8).done()
    order = planned(problem)
    # Kept, every tanh waits for its gradient: 8 x 50. Run again, one sum and one tanh exist at a time.
    assert peak(problem, np.arange(problem.tasks)) >= 400
    assert peak(problem, np.array(order)) < 200


def test_ties_keep_and_one_byte_less_released_runs_again():
    def chain(input_bytes: int) -> np.ndarray:
        c = Columns()
        x, y, z = c.resident(input_bytes), c.buffer(10), c.buffer(1)
        c.task([x], [y])
        c.task([y], [z], heavy=True)
        c.gradient([y])
        return decide(c.done()).stage

    assert chain(10).tolist() == [0, 0, 0]
    assert chain(9).tolist() == [1, 0, 0]


def test_inputs_count_as_nothing_when_they_are_not_releasable():
    c = Columns()
    x, y, z = c.resident(10), c.buffer(10), c.buffer(1)
    c.task([x], [y])
    c.task([y], [z], heavy=True)
    c.gradient([y])
    assert decide(c.done(), inputs_releasable=False).stage.tolist() == [1, 0, 0]


def test_reading_only_the_shape_does_not_hold_a_value():
    def released(shape_only: bool) -> int:
        c = Columns()
        x, y, z = c.resident(10), c.buffer(4), c.buffer(1)
        c.task([x], [y])
        c.task([y], [z], heavy=True)
        c.gradient([y])
        c.task([] if shape_only else [x], [c.buffer()], phase=BACKWARD, shapes=[x] if shape_only else [])
        return decide(c.done()).groups[0].released_bytes

    assert released(shape_only=True) == 10
    assert released(shape_only=False) == 0


def test_a_problem_without_backward_tasks_comes_back_as_given():
    c = Columns()
    x, y, z = c.resident(1), c.buffer(10), c.buffer(1)
    c.task([x], [y])
    c.task([y], [z])
    assert planned(c.done()) == [0, 1]
    assert planned(Columns().done()) == []


def test_what_was_handed_out_is_read_from_there():
    c = Columns()
    x, y = c.resident(1), c.buffer(10, HANDED_OUT)
    c.task([x], [y])
    c.gradient([y])
    decisions = decide(c.done())
    assert decisions.stage.tolist() == [1, 0]
    assert not decisions.materialised.any()


def test_a_copy_runs_before_what_it_reads_is_overwritten():
    #   y = f(w); loss = g(y); dw = g'(y) ... the update overwrites w before the last gradient reads y
    c = Columns()
    w, y, loss = c.resident(1), c.buffer(10), c.buffer(1)
    c.task([w], [y])
    c.task([y], [loss], heavy=True)
    dw = c.gradient([loss])
    update = c.task([dw], [w], phase=BACKWARD, repeat=NEVER)
    c.gradient([y])
    c.overwrites = [(0, update)]
    assert planned(c.done()) == [0, 1, 2, 0, update, 4]


def test_the_order_is_the_given_one_when_nothing_is_run_again():
    problem = shared_attention(3).done()
    assert mirrored_order(problem, np.zeros(problem.tasks, bool)).tolist() == list(range(problem.tasks))


def test_a_cancelled_search_comes_back_as_given():
    seed = next(seed for seed in range(100) if len(planned(random_training(seed))) > random_training(seed).tasks)
    problem = random_training(seed)
    monitor = Monitor(lambda order: score(problem, order, 0))
    monitor.cancel()
    assert plan(problem, Goal(), monitor).tolist() == list(range(problem.tasks))
