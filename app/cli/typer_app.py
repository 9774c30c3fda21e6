"""The `remat` command: its subcommands and exit codes. Each subcommand imports its module when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.admin.keys import keys
from app.cli.console.output import discard, open_streams
from app.cli.options import completion, options
from app.cli.options.options import Command, Group
from planner.request.curve_and_fit_request import MEMORY_FIELDS
from planner.request.field_kinds import SHAPE_KINDS
from planner.request.plan_request import FIELDS, fields_of

# Imports inside functions: loaded per command, so that `remat --help` takes under 0.3 s.

app = typer.Typer(
    name="remat",
    cls=Group,
    help="Memory planning and rematerialization for neural networks.",
    epilog="Exit codes: 0 success, 1 budget not reached (or a difference), 2 invalid input or usage, 3 stopped, "
    "4 internal error.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
EXIT_INTERRUPTED = 3

FIRST_STEPS = """\
remat plans the memory of a training step: which values to keep, and which to compute again.

Start here:
  remat try                                                         plan ResNet-50 for half of its memory, in seconds
  remat plan MODEL.onnx --batch 16 --budget 50%                     plan a model of your own
  remat info MODEL                                                  what takes the memory of a model
  remat serve                                                       plans over HTTP, with pages

remat --help lists all commands, remat COMMAND --help the options of one, with examples."""


def _command(group: str, *examples: str, name: str | None = None) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """`app.command` under a heading of `remat --help`, with examples below the command's own help.

    `name`: default that of the function.
    """
    epilog = "\n\n".join(["[bold]Examples[/bold]", *examples]) if examples else None
    return app.command(name, cls=Command, rich_help_panel=group, epilog=epilog)


_one_model, _plans, _many, _service, _reference = (
    partial(_command, group) for group in ("One model", "Models and plans", "Many models", "Service", "Reference")
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"remat {version('remat')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(FIRST_STEPS)


@_one_model("remat try", "remat try light_densenet121 --budget 30%", name="try")
def try_network(
    network: Annotated[
        str,
        typer.Argument(
            metavar="[NETWORK]", help="A network; see `remat zoo --list`.", autocompletion=completion.network
        ),
    ] = "light_resnet50",
    budget: Annotated[str, typer.Option(metavar="BUDGET", help="Memory budget, as of `remat plan`.")] = "50%",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Output folder.")] = Path(
        "remat-try"
    ),
) -> int:
    """Plan a well-known network in seconds.

    Writes the model, its plan, the rewritten graph and a picture of memory over time.
    """
    from app.cli.commands import zoo

    return zoo.try_network(network, budget, output)


@_one_model(
    "remat plan model.onnx --batch 16 --budget 50%         half of the memory",
    "remat plan model.onnx --fits a100-80gb -o plan.json   the memory of a device; the report to a file",
    "remat plan model.onnx --budget 8GiB --graph out.onnx  the rewritten graph to a file",
)
@options.with_fields(fields_of("plan"), execute="auto", fits="the device, without another goal")
def plan(
    model: options.ModelFile,
    request: options.RequestFile = None,
    output: options.Output = None,
    graph: options.GraphFile = None,
    source: options.SourceFile = None,
    draw: options.Draw = None,
    plot: options.Plot = None,
    as_form: options.Form = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Plan a model under a memory budget.

    Writes the report and the rewritten graph on request; exits with 1 if the budget is not met.
    """
    from app.cli.commands.plan import OutputFiles, run
    from app.cli.console.files import demand_writable

    options.reject_json_with_draw(as_json, draw)
    files = OutputFiles(output, graph, source, plot)
    demand_writable({model: "the model", request: "the request"}, *files.paths)
    fields = options.request_fields(request, flags)
    return run(model, fields, files, as_json, draw, options.is_wraps(as_form))


@_one_model()
@options.with_fields(fields_of("curve"))
def curve(
    model: options.ModelFile,
    budgets: options.Budgets = None,
    request: options.RequestFile = None,
    draw: options.Draw = None,
    plot: options.Plot = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Plan a model at several budgets.

    Reports the minimum time and its lower bound for each.
    """
    from app.cli.commands.curve import run
    from app.cli.console.files import demand_writable

    options.reject_json_with_draw(as_json, draw)
    demand_writable({model: "the model", request: "the request"}, plot)
    fields = options.request_fields(request, flags | {"budgets": options.split_list(budgets)})
    return run(model, fields, as_json, draw, plot)


@_one_model()
@options.with_fields(fields_of("fit"), execute="auto", max_overhead="10%")
def fit(
    model: options.ModelFile,
    grow: options.Grow = None,
    request: options.RequestFile = None,
    output: options.Output = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Find the largest batch or sequence length that fits.

    The memory limit is a device or a size; the plan may be slower by `--max-overhead`.
    """
    from app.cli.commands.fit import run
    from app.cli.console.files import demand_writable

    demand_writable({model: "the model", request: "the request"}, output)
    return run(model, options.request_fields(request, flags | {"grow": grow}, MEMORY_FIELDS), output, as_json)


@_one_model()
@options.with_fields(fields_of("info"))
def info(
    model: options.ModelFile,
    request: options.RequestFile = None,
    versions: options.Versions = False,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Show bytes by role, the baseline peak and the values live at it."""
    from app.cli.commands.info import run

    return run(model, options.request_fields(request, flags), as_json, versions)


@_plans()
@options.with_fields([FIELDS["search_seconds"]])
def layout(
    file: Annotated[str, typer.Argument(metavar="FILE.csv|-", help="One row per buffer: id, lower, upper, size.")],
    capacity: Annotated[
        int | None, typer.Option(metavar="N", help="Arena size in bytes; default: minimize it.")
    ] = None,
    alignment: Annotated[int, typer.Option(metavar="N", help="Alignment of buffers without one of their own.")] = 1,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.csv", help="Write offsets.")] = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Pack buffers with known lifetimes into one arena.

    Exits with 1 if they exceed its capacity.
    """
    from app.cli.commands.layout import run

    return run(file, {"capacity": capacity, "alignment": alignment, **flags}, output, as_json)


@_plans()
def explain(
    plan: options.PlanFile,
    top: Annotated[int, typer.Option(metavar="N", min=0, help="Recomputations to print, best first.")] = 30,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a predicted timeline for Perfetto or chrome://tracing."),
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Show what each recomputation of a plan frees and costs."""
    from app.cli.commands.explain import run

    return run(plan, top, trace, as_json)


@_plans()
def verify(
    plan: options.PlanFile,
    certificate: options.Certificate = False,
    output: options.Claims = None,
    as_json: options.Json = False,
) -> int:
    """Verify a saved plan or its certificate.

    Independent of the search; exits with 1 if anything is invalid.
    """
    from app.cli.commands.verify import run, verify_certificate

    return verify_certificate(plan, output, as_json) if certificate or output is not None else run(plan, as_json)


@_plans(
    "remat check plan.json model.onnx --max-drift 2%",
    "remat check plan.json model.onnx --markdown comment.md --plot memory.svg  for a pull request",
)
def check(
    plan: options.PlanFile,
    model: options.ModelFile,
    max_drift: Annotated[
        str, typer.Option("--max-drift", metavar="SHARE", help="Allowed growth of peak and time.")
    ] = "2%",
    fits: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE|SIZE",
            help="Also find the largest batch at which the plan fits this memory, before and now.",
            autocompletion=completion.device,
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Model of the saved plan, for the largest batch; default: its source."),
    ] = None,
    markdown: options.Markdown = None,
    plot: options.Plot = None,
    as_json: options.Json = False,
) -> int:
    """Check a saved plan against the current model.

    For tests of a model's memory: exits with 1 if peak or time grew too much.
    """
    from app.cli.commands.check import CheckOutput, run

    return run(plan, model, max_drift, CheckOutput(fits, before, markdown, plot), as_json)


@_plans("remat measure train.py:step --budget 50%  `step` of train.py returns (module, example inputs)")
@options.with_fields([FIELDS["budget"], FIELDS["search_seconds"]])
def measure(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Python function (package.module:name or file.py:name) that returns a PyTorch module and its example "
            "inputs, and optionally a function that computes the loss of what the module returns.",
        ),
    ],
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A saved plan, instead of a budget.")
    ] = None,
    arena: Annotated[
        bool,
        typer.Option("--arena", help="Place the values of the step in one block, where the plan's layout puts them."),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Timed steps with the plan, each beside two without; default: until the standard error of the "
            "overhead is half a point.",
        ),
    ] = None,
    timing_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Begin no more timed steps after so long; default: 12, none with --steps."
        ),
    ] = None,
    server: options.ResultServer = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the JSON document.")
    ] = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Measure steps of a PyTorch module with and without a plan.

    Reports peak and time beside the prediction.
    """
    from app.cli.commands.measure import run

    timing = {"steps": steps, "timing_seconds": timing_seconds}
    return run(target, options.request_fields(None, flags), plan, arena, timing, server, output, as_json)


@_plans()
@options.with_fields([FIELDS[name] for name in (*SHAPE_KINDS, "max")])
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A model or a saved plan.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Model or saved plan to compare with.")],
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Compare two models or plans.

    Names the nodes that differ; exits with 1 on a difference. Shapes are for the models that leave them open.
    """
    from app.cli.commands.diff import run

    return run(a, b, options.request_fields(None, flags), as_json)


@_plans()
@options.with_fields([FIELDS[name] for name in (*SHAPE_KINDS, "max")])
def convert(
    source: Annotated[str, typer.Argument(metavar="IN|-", help="Model in any supported format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help=options.SUFFIXES)],
    transform: options.Transform = [],  # noqa: B006
    **flags: Any,
) -> int:
    """Convert a model to another format, after optional passes."""
    from app.cli.commands.convert import run

    return run(source, target, options.request_fields(None, flags), transform)


@_many()
def zoo(
    names: Annotated[
        list[str],
        typer.Argument(metavar="[NETWORK]...", help="Networks; default: all.", autocompletion=completion.network),
    ] = [],  # noqa: B006
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Output folder.")] = Path("zoo"),
    only_list: Annotated[bool, typer.Option("--list", help="List the networks and their sources only.")] = False,
    as_json: options.Json = False,
) -> int:
    """Write model files of well-known networks.

    Writes a manifest for `remat batch` beside them.
    """
    from app.cli.commands.zoo import run

    return run(names, output, only_list, as_json)


@_many()
@options.with_fields(fields_of("batch"))
def batch(
    models: Annotated[
        str, typer.Argument(metavar="FOLDER|MANIFEST|GLOB", help="Models, or a manifest written by `remat zoo`.")
    ],
    budgets: options.Budgets = None,
    planners: Annotated[
        str, typer.Option(metavar="NAME,...", help="Planners; see `remat planners`.", autocompletion=completion.planner)
    ] = "auto",
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Random seeds.")] = "0",
    batch_sizes: Annotated[
        str | None, typer.Option(metavar="N,...", help="Batch sizes; default: those of the manifest.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="local, server, dask or ray.",
            autocompletion=completion.complete_from("local", "server", "dask", "ray"),
        ),
    ] = "local",
    server: options.Server = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="tcp://HOST:8786 of Dask; of Ray ray://HOST:10001, or auto: one here."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Parallel plans on this machine; default: one per core.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue; skip finished plans.")] = False,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Output folder.")] = Path(
        "remat-batch"
    ),
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML report.")] = None,
    request: options.RequestFile = None,
    as_json: options.Json = False,
    **flags: Any,
) -> int:
    """Plan many models at several budgets.

    Finished plans survive an interruption; `--resume` continues.
    """
    from app.cli.commands.batch import BatchOptions, run

    fields = options.request_fields(request, flags)
    seed_list, size_list = (
        options.parse_integers(seeds, "--seeds"),
        options.parse_integers(batch_sizes, "--batch-sizes"),
    )
    batch_options = BatchOptions(
        models,
        options.split_list(budgets) or [],
        options.split_list(planners) or [],
        seed_list,
        size_list,
        engine,
        server,
        cluster,
        workers,
        output,
        resume,
        html,
        request,
    )
    return run(batch_options, fields, as_json)


@_service()
def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free port.")] = 8000,
    data: options.Data = None,
    auth: Annotated[
        bool | None, typer.Option("--auth/--no-auth", help="Require API keys; default: unless bound to loopback.")
    ] = None,
) -> int:
    """Run the HTTP service.

    Drains on SIGTERM.
    """
    from app.solver.forkserver import start_forkserver

    start_forkserver()  # loads beside the imports below

    from app.cli.admin.serve import run

    return run(host, port, data, auth)


@_service()
def worker(
    data: options.Data = None,
    slots: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Parallel solves; default: REMAT_WORKERS.")
    ] = None,
    solve_on: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Solve on dask://HOST:PORT or ray://HOST:PORT; default: on this machine."),
    ] = None,
) -> int:
    """Run a worker for an existing service.

    Drains on SIGTERM.
    """
    from app.solver.forkserver import start_forkserver

    if solve_on is None:
        start_forkserver()  # loads beside the imports below

    from app.cli.admin.worker import run

    return run(data, slots, solve_on)


@_service()
def migrate(
    data: options.Data = None,
    wait: Annotated[
        float, typer.Option(metavar="S", min=0, help="Wait so many seconds for a database that does not answer yet.")
    ] = 0.0,
    as_json: options.Json = False,
) -> int:
    """Upgrade the database schema."""
    from app.cli.admin.store import run_migrate

    return run_migrate(data, wait, as_json)


@_service()
def gc(
    data: options.Data = None,
    keep_days: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="Retention in days; default: REMAT_KEEP_DAYS.")
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Delete expired plans and unreferenced files."""
    from app.cli.admin.store import run_gc

    return run_gc(data, keep_days, as_json)


@_service()
def audit(
    data: options.Data = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Number of lines.")] = 100,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Lines of one tenant; default: all.")] = None,
    as_json: options.Json = False,
) -> int:
    """Show the audit log, newest first.

    Attempted changes, refused requests and failed logins of a service that requires API keys.
    """
    from app.cli.admin.audit import run_audit

    return run_audit(data, limit, tenant, as_json)


@_service()
def check_store(data: options.Data = None, as_json: options.Json = False) -> int:
    """Check the integrity of a store.

    Every row and file; exits with 1 on a fault.
    """
    from app.cli.admin.store import run_check

    return run_check(data, as_json)


@_service()
def top(
    server: options.Server = None,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
) -> int:
    """Monitor the jobs of a service."""
    from app.cli.admin.top import run

    return run(server, once)


@_reference()
def planners(as_json: options.Json = False) -> int:
    """List the planners."""
    from app.cli.admin.catalogue import run_planners

    return run_planners(as_json)


@_reference()
def devices(as_json: options.Json = False) -> int:
    """List the device profiles and their data sheets."""
    from app.cli.admin.catalogue import run_devices

    return run_devices(as_json)


@_reference()
def schema(name: options.SchemaName) -> int:
    """Print a JSON Schema."""
    from app.cli.admin.catalogue import run_schema

    return run_schema(name)


app.add_typer(keys, name="keys", rich_help_panel="Service")


def run(arguments: list[str]) -> int:
    """Exit code of one command line. Errors go to standard error, with `--json` to standard output."""
    as_json = "--json" in arguments
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        code = _commands().main(arguments, prog_name="remat", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        if not str(error):  # a group without a command, whose help was printed
            return 2
        return _print_problem(_usage_problem(error, arguments), as_json, 2)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        from app.errors import error_row, to_problem

        row = error_row(error)
        if row.error is BaseException:
            import traceback

            traceback.print_exc()
        return _print_problem(to_problem(_of_output(error)), as_json, row.exit_code)


@cache
def _commands() -> Any:
    """The commands with their options; made once, since a process may run several command lines."""
    return typer.main.get_command(app)


def _usage_problem(error: Any, arguments: list[str]) -> dict[str, Any]:
    from app.cli.console.mistakes import advice
    from app.errors import problem_body

    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = "remat" if context is None else context.command_path
    plain = advice(message, command, arguments)
    detail = f"{plain}{'' if plain.endswith(('.', '?', '!')) else '.'} See {command} --help."
    return problem_body(422, "usage", "Invalid command line", detail)


def _print_problem(problem: dict[str, Any], as_json: bool, exit_code: int) -> int:
    try:
        if as_json:
            import json

            print(json.dumps(problem, indent=2))
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)
        as_json = False
    if not as_json:
        print(f"remat: {problem['title'].lower()}\n{problem['detail']}", file=sys.stderr)
    return exit_code


def _of_output(error: Exception) -> Exception:
    """The error; one of a full standard output, which names no file, is not about a file that was read."""
    from app.atomic_files import FULL, CannotWrite

    if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
        return CannotWrite(f"cannot write standard output: {error.strerror}")
    return error


def main() -> None:
    """Entry point of the `remat` script."""
    open_streams()
    sys.exit(run(sys.argv[1:]))
