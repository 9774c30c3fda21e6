"""The verifier accepts what bounds claim, proves nothing false whatever it is given, and stands alone."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.bounds import claims, held_at_end, largest_task, peak_cut, step_cut
from planner.problem import Problem, liveness
from planner.problem.alternatives import aligned, relax_choices, resolve_choices
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.verify import certificate
from tests.contracts.test_every_planner import is_runnable
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost
from tests.planner.problem.test_alternatives import vectors, with_random_choices
from tests.planner.proven import assert_accepted_and_no_more
from tests.planner.random_problems import random_problem, training_problem

MODES = [Goal(order_is_given=given, strict_phases=strict) for given in (False, True) for strict in (False, True)]


def claimed(problem: Problem, goal: Goal) -> list[claims.Claim]:
    """All that our bounds say of the problem, at three budgets."""
    task = largest_task.bound(problem)
    found = [largest_task.claim(task), held_at_end.claim(held_at_end.bound(problem))]
    found += [claim for repeats in (True, False) if (claim := peak_cut.bound(problem, goal, repeats).claim)]
    peak = liveness.peak(problem, base_order(problem, goal.strict_phases))
    for budget in (peak - 1, peak * 3 // 4, peak // 2):
        found += [claim for claim in [step_cut.bound(problem, goal, max(0, budget)).claim] if claim is not None]
    return found


@pytest.mark.parametrize("count", [60, pytest.param(800, marks=pytest.mark.heavy)])
def test_what_the_bounds_claim_is_accepted_and_one_more_is_not(count: int):
    rng = random.Random(count)
    for i in range(count):
        problem = random_problem(rng, 10) if i % 3 else training_problem(rng, rng.randint(2, 8))
        if not is_runnable(problem):
            continue
        for claim in claimed(problem, rng.choice(MODES)):
            assert_accepted_and_no_more(problem, claim)


@pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.heavy)])
def test_what_is_claimed_holds_under_every_choice_of_alternatives(count: int):
    rng = random.Random(count)
    claimed_more = 0
    for i in range(count):
        problem, goal = with_random_choices(rng, suited(rng, 5) if i % 5 else there_and_back(rng)), rng.choice(MODES)
        plain = relax_choices(problem)
        budget = liveness.peak(plain, base_order(plain, goal.strict_phases)) * rng.randint(15, 19) // 20
        claim = step_cut.bound(plain, goal, budget).claim
        if claim is None:
            continue
        assert claims.rejection_reason(problem, [claim]) == ""
        for vector in vectors(problem):
            least = least_cost(resolve_choices(problem, vector), goal, budget)
            assert least is None or (claim["of"] == "cost" and claim["value"] <= least)
        claimed_more += claim["of"] == "cost"
    assert claimed_more > count // 20


@pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.heavy)])
def test_a_claim_about_an_arena_holds_for_sizes_rounded_up_to_the_alignment(count: int):
    rng = random.Random(count)
    claimed_costs = 0
    for i in range(count):
        problem = there_and_back(rng) if i % 3 else with_random_choices(rng, suited(rng, 5))
        goal, alignment = rng.choice(MODES), rng.choice([2, 3, 8])
        plain = relax_choices(replace(aligned(problem, alignment), takeover=problem.takeover))
        peak = liveness.peak(plain, base_order(plain, goal.strict_phases))
        budget = peak * rng.randint(15, 19) // 20 // alignment * alignment
        claim = step_cut.bound(plain, goal, budget).claim
        if claim is None or claim["of"] == "peak":
            continue
        claim |= {"alignment": alignment, "budget_bytes": max(0, budget - rng.randrange(alignment))}
        assert_accepted_and_no_more(problem, claim)
        for vector in vectors(problem):
            least = least_cost(aligned(resolve_choices(problem, vector), alignment), goal, budget)
            assert least is None or claim["value"] <= least
        claimed_costs += 1
    assert claimed_costs > count // 20


def held_across() -> dict[str, Any]:
    """Two values held across a task: with four bytes less than both need, one of them is made again."""
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 0}, cost={"a": 9, "b": 2})
    budget = liveness.peak(problem, base_order(problem)) - 4
    claim = step_cut.bound(problem, Goal(budget), budget).claim
    assert claim is not None
    return claims.certificate_document(problem, [claim])


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(held_across())
    at: Any = document["claims"][0]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["value"], 1000, "1000 is claimed"),
        (["value"], 5.0, "not an integer"),
        (["budget_bytes"], None, "not an integer"),
        (["alignment"], 0, "alignment 0"),
        (["alignment"], 2.5, "not an integer"),
        (["order"], "any", "order must be 'free' or 'given'"),
        (["moments"], [17], "unknown or optional"),
        (["moments"], [3, 2], "need not run before"),
        (["proof", "price"], [-1], "not an integer >= 0"),
        (["proof", "price"], [], "one price per step"),
        (["proof", "parts"], 0, "one price per step"),
        (["proof", "windows", 0, "to"], 2, "invalid window 0 to 2"),
        (["proof", "windows", 0, "read"], [[0, 3, 1]], "does not read"),
        (["proof", "windows", 0, "again"], [[0, 10**9]], "exceed its cost"),
        (["proof", "windows", 0, "first"], [[-1, 1]], "unknown variable"),
        (["proof", "windows", 0, "part"], [[0, 2, 1, 1]], "is not inside"),
        (["proof", "before"], [[0, 5, 0, 1]], "need not run before"),
        (["proof", "stays"], [[-1, 0, 1]], "unknown variable"),
        (["proof"], {}, "not a certificate"),
    ],
)
def test_an_invalid_certificate_is_rejected_with_the_reason(path: list[Any], value: Any, why: str):
    with pytest.raises(certificate.CertificateRejected, match=why):
        certificate.verify(changed(path, value))


def test_a_check_that_raises_ends_the_verification_wherever_it_is_called(monkeypatch: pytest.MonkeyPatch):
    class Ended(Exception):
        pass

    problem = training_problem(random.Random(5), 8)
    document = claims.certificate_document(problem, claimed(problem, MODES[0]))
    monkeypatch.setattr(certificate, "CHECKED_EVERY", 1)
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1

    sentences = certificate.verify(document, counted)
    assert len(sentences) == len(document["claims"]) and calls > problem.tasks
    for last in range(calls):
        left = last

        def ending() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Ended

        with pytest.raises(Ended):
            certificate.verify(document, ending)


def test_the_verifier_imports_the_standard_library_only():
    tree = ast.parse(Path(certificate.__file__).read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ('{"format": "remat-certificate/1", "claims": [', "Expecting value"),
        ("[" * 100_000, "recursion"),
        ('{"format": "remat-certificate/1", "problem": {}, "claims": []}', "no claims"),
    ],
)
def test_a_file_that_is_no_certificate_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, why: str
):
    file = tmp_path / "bound.json"
    if text is not None:
        file.write_text(text)
    assert certificate.main(str(file)) == 1
    rejected = capsys.readouterr().out
    assert rejected.startswith("rejected: ") and why in rejected


@pytest.mark.parametrize(("value", "code", "output"), [(0, 0, "accepted: no sequence within"), (99, 1, "rejected: 99")])
def test_the_verifier_runs_as_a_single_file_without_the_package(tmp_path: Path, value: int, code: int, output: str):
    document = held_across()
    document["claims"][0]["value"] = value or document["claims"][0]["value"]
    (tmp_path / "bound.json").write_text(json.dumps(document))
    (tmp_path / "check.py").write_bytes(Path(certificate.__file__).read_bytes())
    command = [sys.executable, "-I", "-S", "check.py", "bound.json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (code, "")
    assert result.stdout.startswith(output)
