"""Options shared by several commands, and the conversion of flags to request fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from app.cli.options import completion
from planner.errors import BadRequest
from planner.request.named_lengths import DIGITS, parse_named_lengths

if TYPE_CHECKING:
    from graph.limits import ShapeOverrides

# Imports inside functions: loaded per command, so that `remat --help` takes under 0.3 s.


def _flag(help: str, metavar: str, *names: str, complete: completion.Completer | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete)


def _choice(help: str, metavar: str, words: str) -> Any:
    """Flag with a few allowed words, offered as completions."""
    return _flag(help, metavar, complete=completion.complete_from(*words.split()))


ModelFile = Annotated[
    str, typer.Argument(metavar="MODEL|-", help="A remat/1 document or an ONNX file; - reads standard input.")
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN|-", help="A report written by `remat plan -o`.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
NoDifferentiate = Annotated[
    bool, typer.Option("--no-differentiate", help="Plan the graph as given, without a backward pass.")
]

Budget = Annotated[str | None, _flag('Peak limit: "50%", 0.5, 8GiB, 8GB or bytes; 0: lowest peak.', "SIZE")]
Budgets = Annotated[str | None, _flag("Budgets, such as 90%,80%,8GiB.", "SIZE,SIZE,...")]
MaxOverhead = Annotated[str | None, _flag("Instead of a budget: lowest peak within this overhead.", "SHARE")]
FitBudget = Annotated[str | None, _flag("Memory limit: 80GiB, 8GB or bytes.", "SIZE", "--budget")]
FitMaxOverhead = Annotated[str | None, _flag("Maximum overhead; default: 10%.", "SHARE", "--max-overhead")]
Grow = Annotated[str | None, _choice("batch, sequence, or the name of a symbolic dimension.", "WHAT", "batch sequence")]
Fits = Annotated[
    str | None, _flag("Instead of a budget: a device's memory, or bytes.", "DEVICE|SIZE", complete=completion.device)
]
FractionOf = Annotated[
    str | None, _choice("Base of a budget in percent: baseline or reducible.", "WHAT", "baseline reducible")
]
Loss = Annotated[str | None, _flag("Scalar to differentiate.", "NAME")]
LossChunks = Annotated[int | None, _flag("Split the cross-entropy into N chunks of rows.", "N")]
FuseAttention = Annotated[
    bool, typer.Option("--fuse-attention", help="Treat attention as one node that stores no scores.")
]
Batch = Annotated[int | None, _flag("Batch size: leading length of every input.", "N")]
Inputs = Annotated[list[str], _flag("Shape of an input; repeatable.", "NAME=16x3x224x224", "--input")]
Dims = Annotated[list[str], _flag("Length of a symbolic dimension; repeatable.", "N=8", "--dim")]
ShapeSets = Annotated[
    list[str],
    _flag('Shapes the plan must also support: {"batch": 4, "dims": {"S": 64}}; repeatable.', "JSON", "--shapes"),
]
Counts = Annotated[str | None, _choice("Bytes to count: everything or activations.", "WHAT", "everything activations")]
Order = Annotated[
    str | None, _choice("free, or given: keep the document's order of first runs.", "WHICH", "free given")
]
Phases = Annotated[str | None, _choice("strict: forward pass before backward pass; or mixed.", "WHICH", "strict mixed")]
Runtime = Annotated[
    str | None, _flag("Allocator to model: arena, torch-eager, ort.", "NAME", complete=completion.runtime)
]
Reserve = Annotated[str | None, _flag("Additional bytes to reserve.", "SIZE")]
Device = Annotated[
    str | None, _flag("Device profile for times; see `remat devices`.", "NAME", complete=completion.device)
]
Planner = Annotated[str | None, _flag("auto, or a planner of `remat planners`.", "NAME", complete=completion.planner)]
Seconds = Annotated[float | None, _flag("Search time limit; default: 10.", "S", "--seconds")]
Iterations = Annotated[int | None, _flag("Iteration limit instead of a time limit; reproducible.", "N")]
Seed = Annotated[int | None, _flag("Random seed.", "N")]
Checkpoints = Annotated[list[str], _flag("Value that ends a segment; repeatable.", "VALUE", "--checkpoint")]
UnknownCheckpoints = Annotated[str | None, _choice("warn or error on unknown checkpoints.", "WHAT", "warn error")]
Advise = Annotated[bool, typer.Option("--advise", help="Evaluate other techniques that lower the peak.")]
AdviseCheckpoints = Annotated[bool, typer.Option("--advise-checkpoints", help="Evaluate each checkpoint.")]
GradientEvents = Annotated[
    bool, typer.Option("--gradient-events", help="Report which node produces and finalizes each gradient.")
]
ShareBuffers = Annotated[
    bool, typer.Option("--share-buffers", help="Assign values with disjoint lifetimes to shared buffers.")
]
Keep = Annotated[list[str], _flag("Value to keep; repeatable.", "VALUE")]
Recompute = Annotated[list[str], _flag("Value to recompute; repeatable.", "VALUE")]
Layout = Annotated[str | None, _choice("Address assignment: none, fast or best.", "WHICH", "none fast best")]
Execute = Annotated[str | None, _choice("Execute both graphs and compare: auto, yes or no.", "WHEN", "auto yes no")]
RequestFile = Annotated[Path | None, _flag("JSON file of request fields; flags override it.", "FILE", "--request")]
Certificate = Annotated[bool, typer.Option("--certificate", help="Check the certificate of the bound instead.")]
Claims = Annotated[Path | None, _flag("Write the certificate to a file.", "FILE", "-o", "--output")]
Output = Annotated[Path | None, _flag("Write the report, including the source graph.", "FILE", "-o", "--output")]
SUFFIXES = (
    "Extensions: .json, .columns.json, .mutable.json, .onnx, -symbol.json (MXNet), .pb or .pbtxt (Caffe2), .pdmodel or "
    ".pir.json (Paddle), .txt."
)
GraphFile = Annotated[
    Path | None, _flag(f"Write the rewritten graph, or a framework's form of the plan. {SUFFIXES}", "FILE")
]
SourceFile = Annotated[Path | None, _flag("Write the source graph.", "FILE")]
Draw = Annotated[
    bool | None, typer.Option("--draw/--no-draw", help="Draw a chart in block characters; default: on a terminal.")
]
Plot = Annotated[Path | None, _flag("Write a chart (.svg or .png).", "FILE", "--plot")]
Transform = Annotated[list[str], _flag('Pass to apply, as JSON: {"pass": "prune"}; repeatable.', "JSON")]
Versions = Annotated[bool, typer.Option("--versions", help="Show SSA versions of names, and lints, instead.")]
Data = Annotated[Path | None, _flag("Data folder; default: REMAT_DATA.", "FOLDER", "--data")]
Server = Annotated[str | None, _flag("Service URL; default: REMAT_URL or http://127.0.0.1:8000.", "URL", "--server")]
SchemaName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="document, columns, request, report, transform, operation or problem.",
        autocompletion=completion.schema,
    ),
]

# Shared options: request field -> option, in the order of `--help`.
MODEL_OPTIONS = {
    "loss": Loss,
    "loss_chunks": LossChunks,
    "fuse_attention": FuseAttention,
    "no_differentiate": NoDifferentiate,
    "batch": Batch,
    "inputs": Inputs,
    "dims": Dims,
    "counts": Counts,
    "runtime": Runtime,
    "device": Device,
}
SEARCH_OPTIONS = MODEL_OPTIONS | {
    "order": Order,
    "phases": Phases,
    "reserve": Reserve,
    "planner": Planner,
    "search_seconds": Seconds,
    "iterations": Iterations,
    "seed": Seed,
    "keep": Keep,
    "recompute": Recompute,
    "layout": Layout,
    "execute": Execute,
}
PLAN_OPTIONS = SEARCH_OPTIONS | {"fraction_of": FractionOf}
#: Options applied to every plan of a batch; planners, seeds and batch sizes are axes of the batch.
BATCH_OPTIONS = {name: option for name, option in PLAN_OPTIONS.items() if name not in ("planner", "seed", "batch")}


def with_options(shared: Mapping[str, Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator: add the `shared` options to a command, passed as its `**flags`."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            return command(**given)

        own = inspect.signature(command, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [_parameter(name, option) for name, option in shared.items()]
        run.__dict__["__signature__"] = own.replace(parameters=[*kept, *added])
        return run

    return decorate


def _parameter(name: str, option: Any) -> inspect.Parameter:
    """Signature parameter of an option; default: None, False or []."""
    kind = option.__origin__
    unset: Any = False if kind is bool else [] if get_origin(kind) is list else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=unset, annotation=option)


def request_fields(file: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the request: those of `file`, overridden by the given flags. Raises BadRequest."""
    fields = _read_request_file(file) if file is not None else {}
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != []}
    for name in ("inputs", "dims"):  # a flag overrides one entry of the file, not the whole field
        if name in given:
            named = parse_named_lengths(given[name], "--input" if name == "inputs" else "--dim", name == "dims")
            of_file = fields.get(name)
            given[name] = {**of_file, **named} if isinstance(of_file, Mapping) else named
    if "shapes" in given:
        given["shapes"] = [_parse_shape_set(text) for text in given["shapes"]]
    if any(name in given for name in ("budget", "max_overhead", "fits")):
        for name in ("budget", "max_overhead", "fits"):
            fields.pop(name, None)
    if given.pop("no_differentiate", False):
        if "loss" in given:
            raise BadRequest.one(
                "conflicting_flags", "--no-differentiate", "--loss as well", "one of them", "remove one of the flags"
            )
        fields.pop("loss", None)
        given["differentiate"] = False
    elif "loss" in given and fields.get("differentiate") is False:
        fields.pop("differentiate")
    return {**fields, **given}


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


def parse_shapes(batch: int | None, inputs: Sequence[str], dims: Sequence[str]) -> ShapeOverrides:
    """Shape overrides of the flags. Raises BadRequest."""
    from graph.limits import ShapeOverrides

    named = {name: tuple(shape) for name, shape in parse_named_lengths(inputs, "--input", False).items()}
    return ShapeOverrides(named, batch, parse_named_lengths(dims, "--dim", True))


def _read_request_file(file: Path) -> dict[str, Any]:
    import msgspec

    try:
        fields = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest.one(
            "unparseable", f"--request {file}", str(error), "a JSON object", "correct the file"
        ) from error
    if not isinstance(fields, dict):
        raise BadRequest.one(
            "unparseable", f"--request {file}", type(fields).__name__, "a JSON object", "wrap the fields in {...}"
        )
    return fields


def _parse_shape_set(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'JSON such as {"batch": 4}, {"dims": {"S": 64}} or {"inputs": {"x": [4, 64]}}'
        raise BadRequest.one("bad_flag", "--shapes", repr(text)[:80], expected, str(error)) from error
