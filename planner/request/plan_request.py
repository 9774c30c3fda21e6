"""Plan request: parse and check the wire fields into a `Request`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.algorithms import PLANNERS
from planner.errors import BadRequest, Finding
from planner.request.budget import Budget, parse_budget, parse_fraction
from planner.request.field_parsers import MAX_FINDINGS, Parser, bad_field, integer, nullable, parse_fields, seconds
from planner.request.target_runtime import runtime_named

RETURNABLE = ("plan", "timeline", "layout", "explain", "source", "graph")
DEFAULT_OVERHEAD = 0.1  # maximum overhead of a request without a goal

MAX_SHAPE_SETS = 16
LENGTH = re.compile("[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class InputShapes:
    """One set of input shapes; overrides `inputs`, `batch` and `dims` of the request."""

    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A plan request. Defaults are those of the wire contract; build it with `parse_request`."""

    budget: Budget | None = None
    max_overhead: float | None = None
    fits: str | int | None = None  # memory to fit: device name, or bytes
    fraction_of: str = "baseline"  # or "reducible": the part of the peak above the smallest reachable one
    counts: str = "everything"  # or "activations"
    order: str | None = None  # "free" or "given"; None: from the document, else free
    phases: str | None = None  # "strict" or "mixed"; None: strict
    runtime: str = "arena"
    recipe: Mapping[str, Any] | None = None
    reserve: int = 0  # bytes added to every step
    planner: str = "auto"
    search_seconds: float = 10.0
    iterations: int | None = None
    seed: int = 0
    device: str | Mapping[str, Any] = "a100-80gb"
    differentiate: bool | Mapping[str, Any] | None = None  # None: framework files yes, native documents no
    loss: str | None = None
    loss_chunks: int = 1  # chunks of rows of the cross-entropy
    fuse_attention: bool = False  # fuse the products around a softmax into one node
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: tuple[InputShapes, ...] = ()  # one plan for all sets; empty: the shapes above
    checkpoints: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    unknown_checkpoints: str = "warn"  # or "error"
    advise: bool = False  # section: other techniques that lower the peak
    advise_checkpoints: bool = False  # section: worth of each checkpoint
    gradient_events: bool = False  # section: how each gradient was computed
    share_buffers: bool = False  # section: values that are never live together share a buffer
    layout: str = "fast"  # or "none", "best"
    execute: str = "no"  # or "auto", "yes"
    returns: tuple[str, ...] = ("plan", "timeline")
    given: Mapping[str, Any] = field(default_factory=dict)  # the fields as sent

    @property
    def lowest_peak(self) -> bool:
        """Whether the goal is the lowest peak (budget 0)."""
        return self.budget is not None and self.budget.bytes == 0

    def under(self, shapes: InputShapes) -> Request:
        """The request for one set of shapes alone."""
        batch = self.batch if shapes.batch is None else shapes.batch
        inputs, dims = {**self.inputs, **shapes.inputs}, {**self.dims, **shapes.dims}
        return replace(self, shapes=(), inputs=inputs, batch=batch, dims=dims)


def parse_request(fields: Mapping[str, Any]) -> Request:
    """Parse wire fields. Raises BadRequest with one finding for each faulty field, at most MAX_FINDINGS."""
    findings: list[Finding] = []
    found = parse_fields(fields, PARSERS, findings)
    goals = [name for name in ("budget", "max_overhead", "fits") if found.get(name) is not None]
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
            for name in ("advise", "advise_checkpoints")
            if found.get(name)
        ]
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    if "return" in found:
        found["returns"] = found.pop("return")
    return Request(**found, given=dict(fields))


def _one_of(*choices: str) -> Parser:
    def parse(given: Any, name: str) -> str:
        if given not in choices or not isinstance(given, str):
            raise bad_field(name, given, "one of " + ", ".join(choices))
        return given

    return parse


def _bytes(given: Any, name: str) -> int:
    budget = parse_budget(given, name)
    if budget.bytes is None:
        raise bad_field(name, given, "bytes, not a share")
    return budget.bytes


def _names(given: Any, name: str) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(x, str) for x in given):
        raise bad_field(name, given, "a list of value names")
    return tuple(dict.fromkeys(given))


def _returns(given: Any, name: str) -> tuple[str, ...]:
    names = _names([given] if isinstance(given, str) else given, name)
    if unknown := [x for x in names if x not in RETURNABLE]:
        raise bad_field(name, unknown, "any of " + ", ".join(RETURNABLE))
    return names


def _shapes(given: Any, name: str) -> dict[str, tuple[int, ...]]:
    if not isinstance(given, Mapping):
        raise bad_field(name, given, 'a mapping such as {"x": [16, 3, 224, 224]}')
    shapes = {}
    for value, shape in given.items():
        if isinstance(shape, str) and all(LENGTH.fullmatch(n) for n in shape.split("x")):
            shape = [int(n) for n in shape.split("x")]
        if not isinstance(shape, (list, tuple)) or not all(_is_length(n) for n in shape):
            raise bad_field(f"{name}.{value}", shape, 'lengths such as [16, 3, 224, 224] or "16x3x224x224"')
        shapes[str(value)] = tuple(shape)
    return shapes


def _dims(given: Any, name: str) -> dict[str, int]:
    if not isinstance(given, Mapping) or not all(_is_length(n) for n in given.values()):
        raise bad_field(name, given, 'a mapping from dimension to length, such as {"N": 8}')
    return {str(k): n for k, n in given.items()}


def _shape_sets(given: Any, name: str) -> tuple[InputShapes, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > MAX_SHAPE_SETS:
        raise bad_field(
            name, given, f'a list of at most {MAX_SHAPE_SETS} sets such as {{"inputs": {{"x": [16, 128]}}}}'
        )
    findings: list[Finding] = []
    sets = []
    for place, entry in enumerate(given):
        if not isinstance(entry, Mapping) or not entry:
            raise bad_field(f"{name}[{place}]", entry, "an object with inputs, batch or dims")
        sets.append(
            parse_fields(entry, {n: PARSERS[n] for n in ("inputs", "batch", "dims")}, findings, f"{name}[{place}].")
        )
    if findings:
        raise BadRequest(findings)
    return tuple(InputShapes(**one) for one in sets)


def _is_length(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**31


def _planner(given: Any, name: str) -> str:
    known = ("auto", *PLANNERS)
    if given not in known:
        raise BadRequest.one(
            "unknown_planner", name, repr(given)[:80], "one of " + ", ".join(known), "name one of these"
        )
    return str(given)


def _runtime(given: Any, name: str) -> str:
    return runtime_named(given if isinstance(given, str) else repr(given)).name


def _object(given: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise bad_field(name, given, "an object")
    return given


def _device(given: Any, name: str) -> str | Mapping[str, Any]:
    return given if isinstance(given, str) else _object(given, name)


def _differentiate(given: Any, name: str) -> bool | Mapping[str, Any] | None:
    return given if isinstance(given, bool) or given is None else _object(given, name)


def _fits(given: Any, name: str) -> str | int:
    """Bytes in the grammar of budgets, or a device name, which `formulate` resolves."""
    try:
        return _bytes(given, name)
    except BadRequest:
        if isinstance(given, str) and given[:1].isalpha():
            return given
        raise


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str) or not given:
        raise bad_field(name, given, "a name")
    return given


def _flag(given: Any, name: str) -> bool:
    if not isinstance(given, bool):
        raise bad_field(name, given, "true or false")
    return given


PARSERS: dict[str, Parser] = {
    "budget": nullable(parse_budget),
    "max_overhead": nullable(parse_fraction),
    "fits": nullable(_fits),
    "fraction_of": _one_of("baseline", "reducible"),
    "counts": _one_of("everything", "activations"),
    "order": nullable(_one_of("free", "given")),
    "phases": nullable(_one_of("strict", "mixed")),
    "runtime": _runtime,
    "recipe": nullable(_object),
    "reserve": _bytes,
    "planner": _planner,
    "search_seconds": seconds,
    "iterations": nullable(integer(1)),
    "seed": integer(0),
    "device": _device,
    "differentiate": _differentiate,
    "loss": nullable(_text),
    "loss_chunks": integer(1, 256),
    "fuse_attention": _flag,
    "inputs": _shapes,
    "batch": nullable(integer(1, 2**31 - 1)),
    "dims": _dims,
    "shapes": _shape_sets,
    "checkpoints": _names,
    "keep": _names,
    "recompute": _names,
    "unknown_checkpoints": _one_of("warn", "error"),
    "advise": _flag,
    "advise_checkpoints": _flag,
    "share_buffers": _flag,
    "gradient_events": _flag,
    "layout": _one_of("none", "fast", "best"),
    "execute": _one_of("auto", "yes", "no"),
    "return": _returns,
}
