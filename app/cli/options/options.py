"""Options that several commands share, and how flags become the fields of a request."""

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

# Imports inside functions: a command imports what it needs, so that `remat --help` answers in under 0.3 s.


def _flag(help: str, metavar: str, *names: str, complete: completion.Completer | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete)


def _word(help: str, metavar: str, offered: str) -> Any:
    """A flag that takes one of a few words; a shell offers them."""
    return _flag(help, metavar, complete=completion.complete_from(*offered.split()))


ModelFile = Annotated[
    str, typer.Argument(metavar="MODEL|-", help="A remat/1 document or an ONNX file; - reads standard input.")
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN|-", help="A report written by `remat plan -o`.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else on standard output.")]
NoDifferentiate = Annotated[bool, typer.Option("--no-differentiate", help="Plan the model as it stands.")]

Budget = Annotated[str | None, _flag('"50%", 0.5, 8GiB, 8GB or bytes; 0: lowest peak.', "SIZE")]
Budgets = Annotated[str | None, _flag("Several of them: 90%,80%,8GiB.", "SIZE,SIZE,...")]
MaxOverhead = Annotated[str | None, _flag("Instead: lowest peak within this much more time.", "SHARE")]
FitBudget = Annotated[str | None, _flag("The memory to fit: 80GiB, 8GB or bytes.", "SIZE", "--budget")]
FitMaxOverhead = Annotated[str | None, _flag("Extra time it may cost; 10% unless told.", "SHARE", "--max-overhead")]
Grow = Annotated[str | None, _word("batch, sequence, or the name of a dimension left open.", "WHAT", "batch sequence")]
Fits = Annotated[str | None, _flag("Instead: a device's memory, or bytes.", "DEVICE|SIZE", complete=completion.device)]
FractionOf = Annotated[
    str | None, _word("What a budget is a share of: baseline or reducible.", "WHAT", "baseline reducible")
]
Loss = Annotated[str | None, _flag("Scalar to differentiate.", "NAME")]
LossChunks = Annotated[int | None, _flag("Take the rows of a cross-entropy in so many parts.", "N")]
FuseAttention = Annotated[bool, typer.Option("--fuse-attention", help="Attention as one node that keeps no scores.")]
Batch = Annotated[int | None, _flag("Leading length of every input.", "N")]
Inputs = Annotated[list[str], _flag("Shape of one input; may be repeated.", "NAME=16x3x224x224", "--input")]
Dims = Annotated[list[str], _flag("Length of a symbolic dimension; may be repeated.", "N=8", "--dim")]
ShapeSets = Annotated[
    list[str],
    _flag('Several sets of shapes under one plan: {"batch": 4, "dims": {"S": 64}}; repeated.', "JSON", "--shapes"),
]
Counts = Annotated[str | None, _word("everything, or activations only.", "WHAT", "everything activations")]
Order = Annotated[str | None, _word("free, or given: first runs keep the document's order.", "WHICH", "free given")]
Phases = Annotated[str | None, _word("strict or mixed.", "WHICH", "strict mixed")]
Runtime = Annotated[
    str | None, _flag("Whose allocator is foreseen: arena, torch-eager, ort.", "NAME", complete=completion.runtime)
]
Reserve = Annotated[str | None, _flag("Bytes set aside besides.", "SIZE")]
Device = Annotated[
    str | None, _flag("Device profile that times the step; see `remat devices`.", "NAME", complete=completion.device)
]
Planner = Annotated[str | None, _flag("auto, or one that `remat planners` lists.", "NAME", complete=completion.planner)]
Seconds = Annotated[float | None, _flag("Search time; 10 unless told.", "S", "--seconds")]
Iterations = Annotated[int | None, _flag("Instead of the clock: the same plan every time.", "N")]
Seed = Annotated[int | None, _flag("Of every random choice.", "N")]
Checkpoints = Annotated[list[str], _flag("A value that ends a segment; may be repeated.", "VALUE", "--checkpoint")]
UnknownCheckpoints = Annotated[
    str | None, _word("warn or error, for checkpoints the graph does not have.", "WHAT", "warn error")
]
Advise = Annotated[bool, typer.Option("--advise", help="Plan what else would lower the peak.")]
AdviseCheckpoints = Annotated[bool, typer.Option("--advise-checkpoints", help="Say what each checkpoint is worth.")]
GradientEvents = Annotated[
    bool, typer.Option("--gradient-events", help="Say which node makes and finalises which gradient.")
]
ShareBuffers = Annotated[
    bool, typer.Option("--share-buffers", help="Give values that are never live together one name.")
]
Keep = Annotated[list[str], _flag("A value never dropped; may be repeated.", "VALUE")]
Recompute = Annotated[list[str], _flag("A value computed again; may be repeated.", "VALUE")]
Layout = Annotated[str | None, _word("Addresses: none, fast or best.", "WHICH", "none fast best")]
Execute = Annotated[str | None, _word("Run both graphs and compare: auto, yes or no.", "WHEN", "auto yes no")]
RequestFile = Annotated[Path | None, _flag("JSON with the fields of a request; flags beat it.", "FILE", "--request")]
Certificate = Annotated[
    bool, typer.Option("--certificate", help="Check the proof of a plan's bound, or of a file that -o wrote, instead.")
]
Claims = Annotated[Path | None, _flag("Write all that the proof needs, for anyone to check.", "FILE", "-o", "--output")]
Output = Annotated[Path | None, _flag("Write the report with the planned graph inside.", "FILE", "-o", "--output")]
SUFFIXES = (
    "Ends in .json, .columns.json, .mutable.json, .onnx, -symbol.json (MXNet), .pb or .pbtxt (Caffe2), .pdmodel or "
    ".pir.json (Paddle), .txt."
)
GraphFile = Annotated[
    Path | None, _flag(f"Write the rewritten graph, or the plan as a framework has it. {SUFFIXES}", "FILE")
]
SourceFile = Annotated[Path | None, _flag("Write the graph that was planned.", "FILE")]
Draw = Annotated[
    bool | None,
    typer.Option("--draw/--no-draw", help="Draw it in block characters, or not; drawn on a terminal unless told."),
]
Plot = Annotated[Path | None, _flag("Write the picture; ends in .svg or .png.", "FILE", "--plot")]
Transform = Annotated[list[str], _flag('A pass on the way, as JSON: {"pass": "prune"}; may be repeated.', "JSON")]
Versions = Annotated[
    bool, typer.Option("--versions", help="Show which write of a name each op reads instead, and what looks wrong.")
]
Data = Annotated[Path | None, _flag("Where graphs and plans are kept; REMAT_DATA unless told.", "FOLDER", "--data")]
Server = Annotated[
    str | None, _flag("The service; REMAT_URL, or http://127.0.0.1:8000, unless told.", "URL", "--server")
]
SchemaName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="document, columns, request, report, transform, operation or problem.",
        autocompletion=completion.schema,
    ),
]

# What several commands share: the field of a request -> its option, in the order `--help` lists them.
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
#: What a batch asks of all its plans; planners, seeds and batch sizes are its own.
BATCH_OPTIONS = {name: option for name, option in PLAN_OPTIONS.items() if name not in ("planner", "seed", "batch")}


def with_options(shared: Mapping[str, Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a command the `shared` options as its `**flags`."""

    def widened(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            return command(**given)

        own = inspect.signature(command, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [_parameter(name, option) for name, option in shared.items()]
        run.__dict__["__signature__"] = own.replace(parameters=[*kept, *added])
        return run

    return widened


def _parameter(name: str, option: Any) -> inspect.Parameter:
    """An option that was not given is None, false, or nothing."""
    kind = option.__origin__
    unset: Any = False if kind is bool else [] if get_origin(kind) is list else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=unset, annotation=option)


def request_fields(file: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the request: those of `file`, beaten by the flags that were given. Raises BadRequest."""
    fields = _of_file(file) if file is not None else {}
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != []}
    for name in ("inputs", "dims"):  # one named on the command line beats just its own entry in the file
        if name in given:
            named = parse_named_lengths(given[name], "--input" if name == "inputs" else "--dim", name == "dims")
            of_file = fields.get(name)
            given[name] = {**of_file, **named} if isinstance(of_file, Mapping) else named
    if "shapes" in given:
        given["shapes"] = [_set_of_shapes(text) for text in given["shapes"]]
    if any(name in given for name in ("budget", "max_overhead", "fits")):
        for name in ("budget", "max_overhead", "fits"):
            fields.pop(name, None)
    if given.pop("no_differentiate", False):
        if "loss" in given:
            raise BadRequest.one(
                "conflicting_flags", "--no-differentiate", "--loss as well", "one of them", "leave one of them out"
            )
        fields.pop("loss", None)
        given["differentiate"] = False
    elif "loss" in given and fields.get("differentiate") is False:
        fields.pop("differentiate")
    return {**fields, **given}


def reject_json_with_draw(as_json: bool, draw: bool | None) -> None:
    """Returns unless --json, which leaves standard output to the report, comes with --draw. Raises BadRequest."""
    if as_json and draw:
        raise BadRequest.one("conflicting_flags", "--draw", "--json as well", "one of them", "leave one of them out")


def split_list(text: str | None) -> list[str] | None:
    """The entries of a flag that takes several, separated by commas."""
    return None if text is None else [entry.strip() for entry in text.split(",")]


def parse_integers(text: str | None, flag: str) -> list[int]:
    """The whole numbers of a flag that takes several. Raises BadRequest."""
    entries = split_list(text) or []
    if wrong := [entry for entry in entries if not DIGITS.fullmatch(entry)]:
        raise BadRequest.one("bad_flag", flag, repr(wrong[0])[:80], "whole numbers such as 1,16", "write them so")
    return [int(entry) for entry in entries]


def parse_shapes(batch: int | None, inputs: Sequence[str], dims: Sequence[str]) -> ShapeOverrides:
    """Shapes named by flags alone. Raises BadRequest."""
    from graph.limits import ShapeOverrides

    named = {name: tuple(shape) for name, shape in parse_named_lengths(inputs, "--input", False).items()}
    return ShapeOverrides(named, batch, parse_named_lengths(dims, "--dim", True))


def _of_file(file: Path) -> dict[str, Any]:
    import msgspec

    try:
        fields = msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest.one(
            "unparseable", f"--request {file}", str(error), "a JSON object", "mend the file"
        ) from error
    if not isinstance(fields, dict):
        raise BadRequest.one(
            "unparseable", f"--request {file}", type(fields).__name__, "a JSON object", "put the fields into {...}"
        )
    return fields


def _set_of_shapes(text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        expected = 'JSON such as {"batch": 4}, {"dims": {"S": 64}} or {"inputs": {"x": [4, 64]}}'
        raise BadRequest.one("bad_flag", "--shapes", repr(text)[:80], expected, str(error)) from error
