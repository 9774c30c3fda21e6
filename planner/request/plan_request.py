"""The request: one table of its fields, from which every interface to them follows.

`Request` is the table and the parsed request in one: each field holds its default, its kind (`field_kinds`), its
description, and the requests that have it. From `FIELDS` follow the parsers, the JSON Schema and OpenAPI
(`app/api/schemas/request.py`), the flags (`app/cli/options`), the keywords of the Python functions
(`remat/keywords.py`) and the reference pages (`docs/generate.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from planner.errors import BadRequest, Finding
from planner.request import field_kinds as kinds
from planner.request.budget import Budget
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS, InputShapes, Kind, nullable
from planner.request.field_parsers import MAX_FINDINGS, Parser, parse_fields
from planner.request.target_runtime import runtime_named

DEFAULT_OVERHEAD = 0.1  # maximum overhead of a request without a goal
GOALS = ("budget", "max_overhead", "fits")  # at most one of them

# The requests that have a field; `remat info` has the fields that shape the model.
REQUESTS = ("plan", "curve", "fit", "batch", "info")
MODEL = frozenset(REQUESTS)
EVERY = MODEL - {"info"}
NOT_IN_BATCH = EVERY - {"batch"}  # `batch` has lists of these instead
NOT_IN_FIT = EVERY - {"fit"}
ONE_GOAL = frozenset({"plan", "fit"})
ONE_REPORT = frozenset({"plan", "batch"})  # fields that shape a single report


@dataclass(frozen=True, slots=True)
class RequestField:
    """One row of the table. Columns from `name` on, left empty, follow from the others."""

    kind: Kind
    default: Any  # parsed
    description: str  # without a full stop
    requests: frozenset[str] = EVERY
    group: str = ""  # heading of its flag in `--help`
    name: str = ""  # on the wire
    attribute: str = ""  # of `Request`, and the Python keyword
    flag: str = ""  # "": none
    flag_help: str = ""


def _wire(group: str, kind: Kind, default: Any, description: str, requests: frozenset[str] = EVERY, **more: str) -> Any:
    """A dataclass field that is a row of the table; `more` are its `name`, `flag` and `flag_help`."""
    row = RequestField(kind, default, description, requests, group, **more)
    metadata = {"row": row}
    if isinstance(row.default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=row.default, metadata=metadata)


of_budget, of_model, of_search, of_device, of_report = (
    partial(_wire, group) for group in ("Budget", "Model", "Search", "Device", "Report")
)


@dataclass(frozen=True, slots=True)
class Request:
    """A plan request; build it with `parse_request`."""

    budget: Budget | None = of_budget(  # noqa: RUF009 (immutable)
        nullable(kinds.BUDGET),
        None,
        'Peak limit: share of the baseline peak ("50%", 0.5), bytes ("8GiB", 8589934592), or 0 for the lowest peak; '
        "in a fit bytes only",
        ONE_GOAL,
    )
    max_overhead: float | None = of_budget(
        nullable(kinds.SHARE),
        None,
        'Maximum overhead, as a share of the baseline time ("10%", 0.1); in a plan instead of a budget: lowest peak '
        "within it",
        ONE_GOAL,
    )
    fits: str | int | None = of_budget(
        nullable(kinds.MEMORY), None, "Memory limit, instead of a budget: a device name, or bytes", ONE_GOAL
    )
    fraction_of: str = of_budget(
        kinds.one_of("baseline", "reducible"),
        "baseline",
        'Base of a budget given as a share; "reducible": the part of the baseline peak above the lowest reachable peak',
        NOT_IN_FIT,
    )
    counts: str = of_budget(
        kinds.one_of("everything", "activations"),
        "everything",
        'Bytes to count; "activations": without inputs, parameters, constants and state',
        MODEL,
    )
    reserve: int = of_budget(kinds.BYTES, 0, "Additional bytes to reserve at every step")
    differentiate: bool | Mapping[str, Any] | None = of_model(
        nullable(kinds.DIFFERENTIATE),
        None,
        "Whether to append the backward pass, or its options; default: for framework files without one but StableHLO",
        MODEL,
        flag="--no-differentiate",
        flag_help="Plan the graph as given, without a backward pass",
    )
    loss: str | None = of_model(
        nullable(kinds.VALUE),
        None,
        "Scalar value to differentiate, or `cross_entropy:OUTPUT[:AXIS]`, which adds a cross-entropy of these scores, "
        "with classes on axis 1 or the last",
        MODEL,
    )
    loss_chunks: int = of_model(
        kinds.whole(1, 256), 1, "Number of chunks of rows into which the cross-entropy is split", MODEL
    )
    fuse_attention: bool = of_model(
        kinds.SWITCH, False, "Treat softmax attention as one node that stores no scores", MODEL
    )
    inputs: Mapping[str, tuple[int, ...]] = of_model(kinds.SHAPES, {}, "Input shape, by name", MODEL, flag="--input")
    batch: int | None = of_model(
        kinds.BATCH, None, "Batch size: leading length of every input", NOT_IN_BATCH | {"info"}
    )
    dims: Mapping[str, int] = of_model(kinds.DIMS, {}, "Length of a symbolic dimension, by name", MODEL, flag="--dim")
    max: Mapping[str, int] = of_model(
        kinds.MAX_LENGTHS,
        {},
        "Largest length of a data-dependent dimension, by value, or largest trip count, by loop; ONNX files only",
        MODEL,
    )
    shapes: tuple[InputShapes, ...] = of_model(
        kinds.SHAPE_SETS, (), "Sets of input shapes; one plan is valid for all", ONE_REPORT
    )
    trainable: tuple[str, ...] = of_model(
        kinds.PATTERNS,
        (),
        "Name patterns of tensors to train, such as `*.scale`; exceptions to `frozen`. Default: as the file says, and "
        "guessed where it does not",
        MODEL,
    )
    frozen: tuple[str, ...] = of_model(
        kinds.PATTERNS, (), "Name patterns of tensors that are not trained, such as `encoder.*`", MODEL
    )
    recipe: Mapping[str, Any] | None = of_model(
        nullable(kinds.OBJECT),
        None,
        'Optimizer and its state, such as {"optimizer": "adam"}; the whole training step is planned',
    )
    order: str | None = of_search(
        nullable(kinds.one_of("free", "given")),
        None,
        'Order of first runs; "given": that of the document; default: as the document states, else "free"',
    )
    phases: str | None = of_search(
        nullable(kinds.one_of("strict", "mixed")),
        None,
        '"strict": forward pass before backward pass; "mixed": interleaved; default: "strict"',
    )
    planner: str = of_search(kinds.PLANNER, "auto", "Planner; see `remat planners` or GET /v1/planners", NOT_IN_BATCH)
    search_seconds: float = of_search(
        kinds.SEARCH_TIME,
        DEFAULT_SEARCH_SECONDS,
        "Time limit of the search, bounds and layout included, in seconds",
        flag="--seconds",
    )
    iterations: int | None = of_search(
        nullable(kinds.whole(1)), None, "Iteration limit instead of a time limit; makes the plan reproducible"
    )
    seed: int = of_search(kinds.whole(0), 0, "Random seed", NOT_IN_BATCH)
    checkpoints: tuple[str, ...] = of_search(
        kinds.VALUES, (), "Values that end segments; the planner `segments` keeps these", flag="--checkpoint"
    )
    keep: tuple[str, ...] = of_search(kinds.VALUES, (), "Values that are never evicted")
    recompute: tuple[str, ...] = of_search(kinds.VALUES, (), "Values that are recomputed")
    collectives: str = of_search(
        kinds.one_of("once", "repeated"),
        "once",
        '"repeated": collectives may be recomputed like other nodes, for ranks that all run this plan; "once": each '
        "rank may run a plan of its own",
    )
    unknown_checkpoints: str = of_search(
        kinds.one_of("warn", "error"), "warn", "Reaction to checkpoints that the graph lacks"
    )
    runtime: str = of_device(kinds.RUNTIME, "arena", "Allocator to model", MODEL)
    device: str | Mapping[str, Any] = of_device(
        kinds.DEVICE,
        "a100-80gb",
        "Device profile for times, a name or an object; see `remat devices` or GET /v1/devices",
        MODEL,
    )
    offload: bool = of_device(
        kinds.SWITCH,
        False,
        "Copy values to host memory and back, beside compute, where that takes less time than recomputation; a curve "
        "has the plans without copies too",
        NOT_IN_BATCH,
    )
    host_memory: int | None = of_device(
        nullable(kinds.BYTES),
        None,
        "Host memory for `offload`, which it needs, in bytes; default: no limit",
        NOT_IN_BATCH,
    )
    overlap: bool = of_device(
        kinds.SWITCH,
        False,
        "Run collectives beside compute: the time of a plan is the makespan of both, and nodes move so that compute "
        "waits less",
        ONE_REPORT,
    )
    advise: bool = of_report(
        kinds.SWITCH, False, "Evaluate other techniques that lower the peak, each with a full plan", ONE_REPORT
    )
    advise_checkpoints: bool = of_report(
        kinds.SWITCH, False, "Evaluate each checkpoint, and find the best set of the same size", ONE_REPORT
    )
    share_buffers: bool = of_report(
        kinds.SWITCH, False, "Assign values with disjoint lifetimes to shared buffers", ONE_REPORT
    )
    gradient_events: bool = of_report(
        kinds.SWITCH, False, "Report which node produces and finalizes each gradient", ONE_REPORT
    )
    layout: str = of_report(kinds.one_of("none", "fast", "best"), "fast", "Address assignment in the arena")
    execute: str = of_report(
        kinds.one_of("auto", "yes", "no"),
        "no",
        'Execute both graphs and compare; "auto": if predicted under 5 s and 2 GiB',
    )
    returns: tuple[str, ...] = of_report(
        kinds.SECTIONS, ("plan", "timeline"), "Sections of the report", ONE_REPORT, name="return"
    )
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the fields as sent; no row

    @property
    def lowest_peak(self) -> bool:
        """Whether the goal is the lowest peak (budget 0)."""
        return self.budget is not None and self.budget.bytes == 0

    def under(self, shapes: InputShapes) -> Request:
        """The request for one set of shapes alone."""
        batch = self.batch if shapes.batch is None else shapes.batch
        inputs, dims = {**self.inputs, **shapes.inputs}, {**self.dims, **shapes.dims}
        return replace(self, shapes=(), inputs=inputs, batch=batch, dims=dims)


def _row(attribute: str, row: RequestField) -> RequestField:
    name = row.name or attribute
    flag = "" if row.kind.flag is None else row.flag or "--" + name.replace("_", "-")
    return replace(row, name=name, attribute=attribute, flag=flag, flag_help=row.flag_help or row.description)


_ROWS = [_row(field.name, field.metadata["row"]) for field in dataclasses.fields(Request) if field.metadata]
#: Wire name -> row of the table, in the order in which every interface shows them.
FIELDS = {row.name: row for row in _ROWS}
PARSERS: dict[str, Parser] = {name: row.kind.parse for name, row in FIELDS.items()}


def fields_of(request: str) -> list[RequestField]:
    """Rows of the fields of one kind of request: one of REQUESTS."""
    return [row for row in FIELDS.values() if request in row.requests]


def parse_request(fields: Mapping[str, Any]) -> Request:
    """Parse wire fields. Raises BadRequest with one finding for each faulty field, at most MAX_FINDINGS."""
    findings: list[Finding] = []
    found = parse_fields(fields, PARSERS, findings)
    goals = [name for name in GOALS if found.get(name) is not None]
    if len(goals) > 1:
        findings.append(Finding("conflicting_goals", goals[1], " and ".join(goals), "one of them", "remove the others"))
    if found.get("shapes"):
        findings += [
            Finding(
                "conflicting_shapes",
                name,
                f"{name} together with several sets of shapes",
                "one set of shapes",
                "request it with the shapes of one set",
            )
            for name in ("advise", "advise_checkpoints", "offload", "overlap")
            if found.get(name)
        ]
    for name in ("advise", "advise_checkpoints"):
        if found.get("overlap") and found.get(name):
            pair, remedy = f"overlap together with {name}", "request them one after the other"
            findings.append(Finding("bad_field", "overlap", pair, "one of them", remedy))
    if found.get("host_memory") is not None and not found.get("offload"):
        pair, remedy = "host_memory without offload", "add offload, or remove host_memory"
        findings.append(Finding("bad_field", "host_memory", pair, "both or neither", remedy))
    if not findings and found.get("offload"):
        findings += _unknown_link(*(found.get(name, FIELDS[name].default) for name in ("device", "runtime")))
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    return Request(**{FIELDS[name].attribute: value for name, value in found.items()}, given=dict(fields))


def _unknown_link(given: str | Mapping[str, Any], runtime: str) -> list[Finding]:
    """A finding if the runtime runs copies and no bandwidth between the device and its host is known."""
    from graph.analysis.devices import resolve_device  # `remat --help` does without numpy

    device = resolve_device(given)
    if device.host_bytes_per_second or not runtime_named(runtime).engines:
        return []
    remedy = 'name it, such as {"like": "a100-80gb", "host_bandwidth": 25e9}, or leave out offload'
    text = f"no bandwidth between {device.name} and its host"
    return [Finding("no_host_link", "device.host_bandwidth", text, "bytes per second, above 0", remedy)]
