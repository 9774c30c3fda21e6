"""Parts of a report that need no plan are made beside the search of a large graph, and are the same."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from graph.ir import Graph
from planner.errors import IllegalPlan
from planner.formulation.formulation import Formulation
from planner.lowering import realize
from planner.pipeline import report_beside
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.app.conftest import chain


def report() -> dict[str, Any]:
    request = parse_request({"budget": "60%", "iterations": 2, "return": ["plan", "source"]})
    found = solve(json.dumps(chain(12)).encode(), request).report
    return {name: part for name, part in found.items() if name != "elapsed"}


def test_a_report_made_in_part_beside_its_search_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, genuine, made = list[str](), Formulation.check_baseline, report_beside.document

    def checked(formulation: Formulation) -> None:
        threads.append(threading.current_thread().name)
        genuine(formulation)

    def documented(source: Graph) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return made(source)

    monkeypatch.setattr(Formulation, "check_baseline", checked)
    monkeypatch.setattr(report_beside, "document", documented)
    after = report()
    monkeypatch.setattr(report_beside, "MIN_TASKS", 0)
    monkeypatch.setattr(report_beside, "cores", lambda: 2)
    beside = report()
    assert threads == [*[threading.current_thread().name] * 2, *["remat-report"] * 2]
    for each in (after, beside):
        each["plan"].pop("elapsed", None)
    assert beside == after


def test_a_baseline_that_the_checker_refuses_ends_the_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Formulation) -> None:
        raise IllegalPlan("step 0: refused")

    monkeypatch.setattr(report_beside, "MIN_TASKS", 0)
    monkeypatch.setattr(report_beside, "cores", lambda: 2)
    monkeypatch.setattr(Formulation, "check_baseline", refuse)
    with pytest.raises(IllegalPlan, match="step 0: refused"):
        report()


def test_a_report_alone_makes_no_rewritten_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    made, genuine = list[int](), realize.realize

    def counted(order: realize.NodeSequence) -> Graph:
        made.append(len(order.nodes))
        return genuine(order)

    monkeypatch.setattr(realize, "realize", counted)
    request = {"budget": "60%", "planner": "greedy", "iterations": 5, "execute": "no"}
    outcome = solve(json.dumps(chain(12)).encode(), parse_request(request))
    assert not made and outcome.report["checked"]
    entries = len(outcome.report["plan"]["order"])
    assert len(outcome.graph.nodes) == entries and outcome.graph is outcome.graph and made == [entries]
    returned = solve(json.dumps(chain(12)).encode(), parse_request({**request, "return": ["graph"]}))
    assert made == [entries] * 2 and len(returned.report["graph"]["nodes"]) == entries
