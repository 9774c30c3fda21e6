"""The checked-in JSON Schemas are those of the code, and reports are what they say."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
import sqlalchemy as sa

from app import catalogue
from app.api.schemas import write
from app.errors import ERROR_TABLE, NotFound, to_problem
from graph.errors import BadGraph
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.app.conftest import chain


@pytest.mark.parametrize("name", catalogue.SCHEMA_NAMES)
def test_the_checked_in_schema_is_what_the_code_says(name: str) -> None:
    assert catalogue.schema(name) == write.json_schemas()[name], "run python -m app.api.schemas.write"


@pytest.mark.parametrize("budget", ["50%", "8GiB", 0, 2**40, 0.5, "0%", "101%", -1, 1.5, True, "8 parsecs", "", []])
def test_schema_and_parser_agree_on_budgets(budget: object) -> None:
    allowed = jsonschema_rs.is_valid(catalogue.schema("request"), {"budget": budget})
    try:
        parse_request({"budget": budget})
    except Exception:
        assert not allowed
    else:
        assert allowed


def test_a_report_is_what_its_schema_says() -> None:
    every = ["plan", "timeline", "layout", "explain", "source", "graph"]
    outcome = solve(json.dumps(chain()).encode(), parse_request({"budget": "60%", "seed": 1, "return": every}))
    report = json.loads(json.dumps(outcome.report))
    jsonschema_rs.validate(catalogue.schema("report"), report)
    jsonschema_rs.validate(catalogue.schema("document"), report["source"])
    jsonschema_rs.validate(catalogue.schema("document"), report["graph"])


@pytest.mark.parametrize("error", [NotFound("x"), BadGraph.one("a", "b", "c", "d", "e"), ValueError("secret")])
def test_a_problem_is_what_its_schema_says(error: Exception) -> None:
    problem = to_problem(error, "/v1/graphs")
    jsonschema_rs.validate(catalogue.schema("problem"), problem)
    assert "secret" not in json.dumps(problem)


def test_an_internal_error_has_no_code_of_a_library() -> None:
    assert to_problem(sa.exc.DataError("SELECT", None, Exception()))["code"] == "internal"


def test_a_child_stands_before_its_parent_in_the_table_of_errors() -> None:
    for place, row in enumerate(ERROR_TABLE):
        assert not any(issubclass(row.error, before.error) for before in ERROR_TABLE[:place])
