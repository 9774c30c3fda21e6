"""Cancellation at every stage: before the first plan it raises, later it returns the best plan so far."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph.cancellation import GRACE_CHECKS, CancellationError, check_cancelled
from graph.formats.readers import load
from planner.bounds import step_cut
from planner.formulation import formulation
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline import fits, sections, solve_stages
from planner.pipeline import solve as pipeline
from planner.pipeline.curve import curve
from planner.pipeline.fits import size_trials
from planner.pipeline.progress import Outcome, Progress
from planner.pipeline.solve import solve
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request
from planner.search import portfolio
from planner.verify import certificate
from tests.graph.stopping import document, set_event

#: So many nodes that a stop at the first of them is heard within each stage.
MANY = document(GRACE_CHECKS)
FEW = document(5)
ASKED = {"loss": "loss", "budget": "60%", "iterations": 5, "planner": "greedy"}


def stopped_at(stage: str, model: bytes, **fields: Any) -> tuple[Outcome, list[str]]:
    """(outcome of a solve cancelled when `stage` begins, stages reported)."""
    stop, told = threading.Event(), []

    def progressed(progress: Progress) -> None:
        told.append(progress.stage)
        if progress.stage == stage:
            stop.set()

    outcome = solve(model, parse_request({**ASKED, **fields}), on_progress=progressed, cancel=stop)
    return outcome, list(dict.fromkeys(told))


@pytest.mark.parametrize("stage", ["read", "differentiate", "plan"])
def test_a_stop_before_the_first_plan_of_a_large_model_ends_it(stage: str) -> None:
    with pytest.raises(CancellationError):
        stopped_at(stage, MANY)


@pytest.mark.parametrize("stage", ["read", "differentiate", "plan", "layout", "rewrite", "execute"])
def test_a_small_model_has_a_plan_however_early_the_stop(stage: str) -> None:
    outcome, stages = stopped_at(stage, FEW, execute="yes")
    assert outcome.report["plan"]["stopped"] and outcome.report["checked"]
    assert stages == ["read", "differentiate", "plan", "layout", "rewrite", "execute"]
    assert outcome.report["executed"] == {**outcome.report["executed"], "status": "not executed", "why": "stopped"}


def test_a_seed_is_kept_however_large_the_model() -> None:
    graph = load(MANY)
    order = np.arange(len(graph.nodes))
    request = parse_request({"budget": "60%", "iterations": 5, "planner": "greedy"})
    outcome = solve(MANY, request, cancel=set_event(), seeds=[Candidate(order, "as_given")])
    assert outcome.report["plan"]["stopped"] and outcome.report["checked"]


def test_cancel_during_the_bound_keeps_the_previous_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real = threading.Event(), step_cut.bound

    def stopping(*given: Any) -> Any:
        stop.set()
        return real(*given)

    monkeypatch.setattr(step_cut, "bound", stopping)
    report = solve(FEW, parse_request(ASKED), cancel=stop).report
    assert report["plan"]["stopped"] and report["plan"]["bound"]["overhead"] == 0


@pytest.mark.parametrize("is_stopped", [False, True])
def test_cancel_during_the_verification_of_a_bound_ends_it_and_drops_the_claim(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    stop, real, verified = threading.Event(), certificate.verify, list[str]()

    def verify(document: dict[str, Any], check: Callable[[], None]) -> list[str]:
        if is_stopped:
            stop.set()
        sentences = real(document, check)
        verified.extend(sentences)
        return sentences

    monkeypatch.setattr(certificate, "verify", verify)
    report = solve(FEW, parse_request({**ASKED, "budget": "75%"}), cancel=stop).report
    assert report["plan"]["stopped"] == is_stopped and report["checked"]
    assert bool(verified) != is_stopped
    assert (report["plan"]["bound"]["overhead"] > 0) != is_stopped
    assert not any("refused" in warning for warning in report["warnings"])


def test_the_deadline_of_a_bound_does_not_end_its_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    stages, real = solve_stages.SolveStages(None, threading.Event()), certificate.verify
    request = parse_request({**ASKED, "budget": "75%"})
    asked = stages.formulate(training_graph(FEW, load_model(FEW, request), request)[0], request)

    def verify(document: dict[str, Any], check: Callable[[], None]) -> list[str]:
        monkeypatch.setattr(time, "monotonic", lambda: math.inf)
        return real(document, check)

    monkeypatch.setattr(certificate, "verify", verify)
    bounded = stages.bounded(asked).bound
    assert bounded.proof == "certified" and bounded.cost > asked.bound.cost


def test_cancel_ends_the_search_for_the_smallest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real, monitors = threading.Event(), portfolio.search, []

    def stopping(problem: Any, goal: Any, planner: str, monitor: Monitor, *more: Any) -> Candidate:
        if planner == "auto":
            stop.set()
            monitors.append(monitor)
        return real(problem, goal, planner, monitor, *more)

    monkeypatch.setattr(formulation.portfolio, "search", stopping)
    solve(FEW, parse_request({**ASKED, "fraction_of": "reducible"}), cancel=stop)
    assert monitors[0].cancelled


def test_cancel_during_the_multi_step_bound_keeps_the_single_step_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def stopping(given: Any, plan: Any) -> Any:
        stop.set()
        check_cancelled()
        raise AssertionError("not heard")

    monkeypatch.setattr(solve_stages, "with_multi_step_bound", stopping)
    assert solve(FEW, parse_request(ASKED), cancel=stop).report["plan"]["stopped"]


def test_cancel_during_advice_leaves_the_section_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real = threading.Event(), sections.advice.advice_section

    def stopping(*given: Any) -> Any:
        stop.set()
        return real(*given)

    monkeypatch.setattr(sections.advice, "advice_section", stopping)
    report = solve(FEW, parse_request({**ASKED, "advise": True}), cancel=stop).report
    assert "advice" not in report and report["checked"]
    assert any("advice" in said for said in report["warnings"])


def test_cancel_ends_the_execution_of_a_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real = threading.Event(), pipeline.with_smaller_batch

    def stopping(*given: Any, **groups: Any) -> Any:
        stop.set()
        return real(*given, **groups)

    monkeypatch.setattr(pipeline, "with_smaller_batch", stopping)
    monkeypatch.setattr(pipeline.execution_check, "_share", lambda planned: 0.5)
    report = solve(FEW, parse_request({**ASKED, "execute": "auto"}), cancel=stop).report
    assert (report["executed"]["status"], report["executed"]["why"]) == ("not executed", "stopped")


def test_cancel_ends_a_solve_for_several_shapes() -> None:
    shapes = [{"inputs": {"h0": [4, 4]}}, {"inputs": {"h0": [8, 4]}}]
    with pytest.raises(CancellationError):
        stopped_at("differentiate", MANY, shapes=shapes)
    outcome, _ = stopped_at("plan", FEW, shapes=shapes)
    assert outcome.report["plan"]["stopped"] and len(outcome.report["shapes"]["sets"]) == 2


def of_curve(model: bytes, cancel: threading.Event) -> Any:
    return curve(model, parse_curve({"loss": "loss", "budgets": ["90%"], "iterations": 5}), cancel=cancel)


def of_fit(model: bytes, cancel: threading.Event) -> Any:
    return fits.fit(model, parse_fit({"loss": "loss", "budget": "64KiB", "iterations": 5}), cancel=cancel)


@pytest.mark.parametrize("make", [of_curve, of_fit])
def test_cancel_before_the_first_plan_ends_curves_and_fits(make: Callable[..., Any]) -> None:
    with pytest.raises(CancellationError):
        make(MANY, set_event())
    assert make(FEW, set_event()).exit_code == 3


def test_cancel_during_a_size_keeps_the_largest_size_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real, read = threading.Event(), size_trials.load_model, []

    def stopping(model: bytes, request: Any, *more: Any) -> Any:
        read.append(request.batch)
        if request.batch == 2:
            stop.set()
        return real(model, request, *more)

    monkeypatch.setattr(size_trials, "load_model", stopping)
    asked = parse_fit({"loss": "loss", "budget": "1GiB", "iterations": 5, "planner": "greedy"})
    found = fits.fit(MANY, asked, cancel=stop)
    assert read == [1, 2] and found.document["size"] == 1 and found.document["stopped"]
