"""Options shared by several commands, and the conversion of flags to request fields."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from app.cli.options import completion
from planner.errors import BadRequest
from planner.request.named_lengths import DIGITS, parse_named_lengths
from planner.request.plan_request import FIELDS, GOALS, RequestField

# Imports inside functions: loaded per command, so that `remat --help` takes under 0.3 s.

Function = Callable[..., int]  # of a command: returns its exit code


def _flag(
    help: str, metavar: str, *names: str, complete: completion.Completer | None = None, group: str | None = None
) -> Any:
    return typer.Option(*names, metavar=metavar or None, help=help, autocompletion=complete, rich_help_panel=group)


def service_url(given: str | None) -> str | None:
    """The URL of a service as it was given. Raises InvalidUrl."""
    from app.client.transport import checked_url

    return checked_url(given, "--server") if given else None


def _service(help: str) -> Any:
    return typer.Option("--server", metavar="URL", callback=service_url, help=help)


_output = functools.partial(_flag, group="Output")


ModelFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|-",
        help="Model file: ONNX, .pt2, StableHLO, MXNet, Caffe2, Paddle, or a remat/1 document; - reads standard input.",
    ),
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN|-", help="A report written by `remat plan -o`.")]
Json = Annotated[bool, _output("Print only JSON on standard output.", "", "--json")]
Budgets = Annotated[str | None, _flag("Budgets, such as 90%,80%,8GiB.", "SIZE,SIZE,...", group="Budget")]
GROWING = completion.complete_from("batch", "sequence")
Grow = Annotated[
    str | None, _flag("Dimension to maximize; default: batch.", "batch|sequence|NAME", complete=GROWING, group="Budget")
]
RequestFile = Annotated[
    Path | None, _flag("JSON file of request fields; flags override it.", "FILE", "--request", group="Model")
]
Certificate = Annotated[bool, typer.Option("--certificate", help="Check the certificate of the bound instead.")]
Claims = Annotated[Path | None, _flag("Write the certificate to a file.", "FILE", "-o", "--output")]
Output = Annotated[Path | None, _output("Write the report, including the source graph.", "FILE", "-o", "--output")]
SUFFIXES = (
    "Extensions: .json, .columns.json, .mutable.json, .onnx, -symbol.json (MXNet), .pb or .pbtxt (Caffe2), .pdmodel or "
    ".pir.json (Paddle), .txt."
)
GraphFile = Annotated[
    Path | None, _output(f"Write the rewritten graph, or a framework's form of the plan. {SUFFIXES}", "FILE")
]
SourceFile = Annotated[Path | None, _output("Write the source graph.", "FILE")]
Draw = Annotated[
    bool | None, _output("Draw a chart in block characters; default: on a terminal.", "", "--draw/--no-draw")
]
Plot = Annotated[Path | None, _output("Write a chart (.svg or .png).", "FILE", "--plot")]
Markdown = Annotated[Path | None, _output("Write the result as Markdown, for a pull request.", "FILE", "--markdown")]
FORMS = ("wraps",)
Form = Annotated[
    str | None,
    _output(
        "Print the plan in another form: wraps, Python code for torch.utils.checkpoint.",
        "FORM",
        "--as",
        complete=completion.complete_from(*FORMS),
    ),
]
Transform = Annotated[list[str], _flag('Pass to apply, as JSON: {"pass": "prune"}; repeatable.', "JSON")]
Versions = Annotated[bool, typer.Option("--versions", help="Show SSA versions of names, and lints, instead.")]
Data = Annotated[Path | None, _flag("Data folder; default: REMAT_DATA.", "FOLDER", "--data")]
Server = Annotated[str | None, _service("Service URL; default: REMAT_URL or http://127.0.0.1:8000.")]
ResultServer = Annotated[str | None, _service("Service that stores the result.")]
SchemaName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="document, columns, request, report, transform, operation or problem.",
        autocompletion=completion.schema,
    ),
]


def is_wraps(form: str | None) -> bool:
    """Whether `--as wraps` is given. Raises BadUsage for an unknown form."""
    if form is not None and form not in FORMS:
        from app.errors import BadUsage

        raise BadUsage(f"--as {form}: unknown form; use one of {', '.join(FORMS)}")
    return form is not None


def with_fields(rows: Iterable[RequestField], **other_defaults: str) -> Callable[[Function], Function]:
    """Decorator: add a flag for each request field that has one to a command, passed as its `**flags`.

    `--help` shows `other_defaults` instead of those of the table.
    """

    def decorate(command: Function) -> Function:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            return command(**given)

        signature = inspect.signature(command, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [_parameter(row, other_defaults.get(row.name, row.default)) for row in rows if row.flag]
        required = [one for one in own if one.default is one.empty]
        run.__dict__["__signature__"] = signature.replace(parameters=[*required, *added, *own[len(required) :]])
        return run

    return decorate


def _parameter(row: RequestField, default: Any) -> inspect.Parameter:
    """Signature parameter of a request field; unset: None, False or []."""
    flag = row.kind.flag
    assert flag is not None
    kind: Any = {bool: bool, list: list[str]}.get(flag.type, flag.type | None)
    unset: Any = {bool: False, list: []}.get(flag.type)
    text = row.flag_help + ("; repeatable" if flag.type is list else "")
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        text += f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
    complete = getattr(completion, flag.catalogue) if flag.catalogue else completion.complete_from(*flag.words)
    option = Annotated[kind, _flag(f"{text}.", flag.metavar, row.flag, complete=complete, group=row.group)]
    return inspect.Parameter(row.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=unset, annotation=option)


def request_fields(file: Path | None, flags: Mapping[str, Any], goals: Sequence[str] = GOALS) -> dict[str, Any]:
    """Fields of the request: those of `file`, overridden by the given flags; of `goals`, a request has one.

    Raises BadRequest.
    """
    fields = _read_request_file(file) if file is not None else {}
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != []}
    for name in ("inputs", "dims", "max"):  # a flag overrides one entry of the file, not the whole field
        if name in given:
            named = parse_named_lengths(given[name], FIELDS[name].flag, name != "inputs")
            of_file = fields.get(name)
            given[name] = {**of_file, **named} if isinstance(of_file, Mapping) else named
    if str(given.get("device", "")).lstrip().startswith("{"):
        given["device"] = _parse_device(given["device"])
    if "shapes" in given:
        given["shapes"] = [_parse_shape_set(text) for text in given["shapes"]]
    if any(name in given for name in goals):
        for name in goals:
            fields.pop(name, None)
    if given.pop("differentiate", False):  # the flag is --no-differentiate
        if "loss" in given:
            raise BadRequest.one(
                "conflicting_flags", "--no-differentiate", "--loss as well", "one of them", "remove one of the flags"
            )
        fields.pop("loss", None)
        given["differentiate"] = False
    elif "loss" in given and fields.get("differentiate") is False:
        fields.pop("differentiate")
    return {**fields, **given}


def _parse_device(text: str) -> Any:
    """A device object from JSON text; what it says is checked with the other fields. Raises BadRequest."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        expected = 'JSON such as {"like": "a100-80gb", "link_bandwidth": 300e9}'
        raise BadRequest.one("bad_device", "--device", str(error), expected, "write the object as JSON") from None


def reject_json_with_draw(as_json: bool, draw: bool | None) -> None:
    """Return unless both flags are set: with --json, standard output holds only the report. Raises BadRequest."""
    if as_json and draw:
        raise BadRequest.one("conflicting_flags", "--draw", "--json as well", "one of them", "remove one of the flags")


def split_list(text: str | None) -> list[str] | None:
    """Entries of a comma-separated flag."""
    return None if text is None else [entry.strip() for entry in text.split(",")]


def parse_integers(text: str | None, flag: str) -> list[int]:
    """Integers of a comma-separated flag. Raises BadRequest."""
    entries = split_list(text) or []
    if wrong := [entry for entry in entries if not DIGITS.fullmatch(entry)]:
        raise BadRequest.one(
            "bad_flag", flag, repr(wrong[0])[:80], "integers such as 1,16", "separate integers by commas"
        )
    return [int(entry) for entry in entries]


def _read_request_file(file: Path) -> dict[str, Any]:
    import msgspec

    from app.errors import about_file

    try:
        with about_file(file):
            fields = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest.one(
            "unparseable", f"--request {file}", str(error), "a JSON object", "correct the file"
        ) from error
    if not isinstance(fields, dict):
        from graph.formats.document.faults import describe_data

        raise BadRequest.one(
            "unparseable", f"--request {file}", describe_data(fields), "a JSON object", "wrap the fields in {...}"
        )
    return fields


def _parse_shape_set(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'JSON such as {"batch": 4}, {"dims": {"S": 64}} or {"inputs": {"x": [4, 64]}}'
        raise BadRequest.one("bad_flag", "--shapes", repr(text)[:80], expected, str(error)) from error


class Command(TyperCommand):
    """A command whose help has `--json`, not `--json <bool>`, and `MODEL`, not `MODEL <str>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the command and `--help`."""
        return _without_python_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help has `--version`, not `--version <bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the group and `--help`."""
        return _without_python_types(super().get_params(ctx))


def _without_python_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_bool_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        elif isinstance(parameter, TyperArgument):
            parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    return parameters
