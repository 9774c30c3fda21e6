"""Every interface to a request follows from the table of its fields; a new row appears on all of them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypedDict

import jsonschema_rs
import pytest
import typer.main

from app import catalogue
from app.api.schemas.request import request_schema
from app.cli import typer_app
from app.cli.options import options
from docs import generate
from planner.errors import BadRequest
from planner.request import field_kinds
from planner.request.plan_request import FIELDS, REQUESTS, Request, RequestField, fields_of
from remat.keywords import request_keywords

COMMANDS: Any = typer.main.get_command(typer_app.app)
#: Fields with names, or profiles of devices, that the schema does not list.
OPEN_NAMES = {"planner", "fits", "device"}
SAMPLES: list[Any] = [  # without 1.0, which JSON Schema calls an integer
    *(None, True, False, -1, 0, 1, 2, 256, 257, 2**31, 2**63, 0.5, 1.5, 86_400.5, 1e9 + 0.5),
    *("", "a", "free", "50%", "0%", "101%", "8GiB", "1 GB", "16x3", "arena", "auto", "plan", "x" * 99),
    *([], ["a"], ["plan", "graph"], ["a", 1], [{}], [{"batch": 4}], [{"batch": 0}], [{"else": 1}], [{"batch": 4}] * 17),
    *({}, {"x": [2, 3]}, {"x": "2x3"}, {"x": "2x"}, {"x": -1}, {"N": 8}, {"N": 1.5}),
]


def test_each_field_of_a_request_but_what_was_sent_is_a_row() -> None:
    names = [field.name for field in dataclasses.fields(Request)]
    assert [*(row.attribute for row in FIELDS.values()), "given"] == names
    assert all(row.requests and row.requests <= set(REQUESTS) for row in FIELDS.values())
    assert not [name for name, row in FIELDS.items() if row.description[0].islower() or row.description.endswith(".")]


@pytest.mark.parametrize("row", FIELDS.values(), ids=FIELDS)
def test_the_parser_accepts_what_the_schema_allows(row: RequestField) -> None:
    schema = catalogue.schema("request")
    assert row.kind.parse(schema["properties"][row.name]["default"], row.name) == row.default
    examples = schema["properties"][row.name].get("examples", [])
    assert all(jsonschema_rs.is_valid(schema, {row.name: example}) for example in examples)
    for given in [*SAMPLES, *examples]:
        is_open = isinstance(given, str | dict) and row.name in OPEN_NAMES
        if not is_open and jsonschema_rs.is_valid(schema, {row.name: given}):
            row.kind.parse(given, row.name)
    with pytest.raises(BadRequest) as refused:
        row.kind.parse(object(), row.name)
    words = row.kind.flag.words if row.kind.flag else ()
    assert all(word in refused.value.findings[0].expected for word in words)
    assert [row.kind.parse(word, row.name) for word in words] == [*words]


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_command_has_the_flags_of_its_fields(request_name: str) -> None:
    shown = {option.opts[0]: option for option in COMMANDS.commands[request_name].params}
    rows = {row.flag: row for row in fields_of(request_name) if row.flag}
    assert rows.keys() <= shown.keys()
    assert not [row.flag for row in FIELDS.values() if row.flag and row.flag not in rows and row.flag in shown]
    assert all(shown[flag].help.startswith(row.flag_help) for flag, row in rows.items())


def test_a_default_in_the_help_of_a_command_is_the_one_that_it_uses() -> None:
    def help_of(command: str, flag: str) -> str:
        return next(str(option.help) for option in COMMANDS.commands[command].params if flag in option.opts)

    assert help_of("plan", "--seconds").endswith("; default: 10.")
    assert help_of("plan", "--execute").endswith("; default: auto.")
    assert help_of("curve", "--execute").endswith("; default: no.")
    assert help_of("fit", "--max-overhead").endswith("; default: 10%.")
    assert "default" not in help_of("plan", "--max-overhead")


def test_a_new_row_appears_on_every_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = field_kinds.one_of("red", "blue")
    row = RequestField(
        kind, "red", "Colour of the plan", frozenset({"plan"}), "Report", "colour", "colour", "--colour", "Colour"
    )
    monkeypatch.setitem(FIELDS, "colour", row)
    assert request_schema()["properties"]["colour"] == {
        "enum": ["red", "blue"],
        "type": "string",
        "default": "red",
        "description": "Colour of the plan",
    }
    line = '| `colour` | `--colour` | `"red"`, `"blue"` | `"red"` | plan | Colour of the plan |'
    assert line in generate.request_fields()
    assert '    colour: Literal["red", "blue"]\n' in generate.keyword_types()

    @options.with_fields(fields_of("plan"))
    def command(model: str, **flags: Any) -> int:
        return 0

    own = typer.Typer()
    own.command()(command)
    option: Any = next(one for one in typer.main.get_command(own).params if one.name == "colour")
    assert (option.opts, option.metavar, option.help) == (["--colour"], "red|blue", "Colour; default: red.")

    class Keywords(TypedDict, total=False):
        colour: str

    @request_keywords(Keywords)
    def plan(model: str, **request: Any) -> None:
        """Plan."""

    assert inspect.signature(plan).parameters["colour"].default == "red"
    assert "    colour: Colour of the plan. Default: 'red'." in str(plan.__doc__)
