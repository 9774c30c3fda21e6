"""Keyword parameters of `plan`, `curve`, `fit` and `batch`: the request fields, each with its type and description.

One table, read three ways: type checkers and editors see the `TypedDict`s; `request_keywords` writes the same names
with their defaults into the signature of a function, and the descriptions into its docstring. Names are those of the
wire contract, except that `return` is a Python keyword and is written `returns`. Defaults are those of
`planner.request.plan_request.Request`.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from planner.request.plan_request import Request

Bytes = int | str  # 8589934592, "8GiB" or "8GB"
Names = list[str] | tuple[str, ...]
Section = Literal["plan", "timeline", "layout", "explain", "source", "graph"]
#: Keyword -> wire name, where they differ.
WIRE_NAMES = {"returns": "return"}


class SharedFields(TypedDict, total=False):
    """Fields that every call takes."""

    counts: Annotated[
        Literal["everything", "activations"],
        "Which bytes count: with `activations`, inputs, parameters, constants and state do not",
    ]
    order: Annotated[
        Literal["free", "given"] | None,
        "`given`: first runs keep the order of the document; None: as the document says",
    ]
    phases: Annotated[
        Literal["strict", "mixed"] | None, "`strict` (also None): the forward pass ends before the backward pass begins"
    ]
    runtime: Annotated[str, "Allocator to model: `arena`, `torch-eager`, `torch-inductor`, `xla`, `ort`"]
    recipe: Annotated[
        Mapping[str, Any] | None,
        "Optimizer and its state, such as `{'optimizer': 'adam'}`; the whole training step is planned",
    ]
    reserve: Annotated[Bytes, "Bytes set aside for anything outside the model"]
    search_seconds: Annotated[float, "Time limit of the search, bounds and layout together, in seconds"]
    iterations: Annotated[
        int | None, "Limit of the search in iterations instead of seconds; makes the plan reproducible byte for byte"
    ]
    device: Annotated[
        str | Mapping[str, Any], "Device profile that gives times: a name `remat devices` lists, or an object"
    ]
    differentiate: Annotated[
        bool | Mapping[str, Any] | None,
        "Whether to append the backward pass, or how; None: for framework files without one",
    ]
    loss: Annotated[str | None, "Name of the scalar value to differentiate"]
    loss_chunks: Annotated[int, "Number of chunks into which the rows of a cross-entropy are split, 1 to 256"]
    fuse_attention: Annotated[bool, "Whether to treat softmax attention as one node that stores no scores"]
    inputs: Annotated[
        Mapping[str, list[int] | tuple[int, ...] | str], "Shapes of inputs, such as `{'x': [16, 3, 224, 224]}`"
    ]
    dims: Annotated[Mapping[str, int], "Lengths of symbolic dimensions, such as `{'N': 8}`"]
    checkpoints: Annotated[Names, "Values that end segments; the `segments` planner keeps these"]
    keep: Annotated[Names, "Values that are never evicted"]
    recompute: Annotated[Names, "Values that are recomputed"]
    unknown_checkpoints: Annotated[Literal["warn", "error"], "What to do with checkpoints that the graph lacks"]
    layout: Annotated[Literal["none", "fast", "best"], "How hard to search for addresses in the arena"]
    execute: Annotated[
        Literal["auto", "yes", "no"],
        "Whether to execute the original and the rewritten graph and compare; `auto`: when that is quick",
    ]


class ShareFields(TypedDict, total=False):
    """What a budget given as a share refers to."""

    fraction_of: Annotated[
        Literal["baseline", "reducible"],
        "What a percentage is of: the baseline peak, or what lies above the smallest reachable peak",
    ]


class SearchFields(SharedFields, total=False):
    """Fields of one search; `batch` takes lists of these."""

    planner: Annotated[str, "Planner, a name `remat planners` lists; `auto` tries several"]
    seed: Annotated[int, "Seed of every random choice"]
    batch: Annotated[int | None, "Leading length of every input"]


class ReportFields(TypedDict, total=False):
    """Fields that shape a single report."""

    shapes: Annotated[
        list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...],
        "Sets of input shapes, at most 16, such as `[{'batch': 4}, {'batch': 8}]`: one plan valid for all",
    ]
    advise: Annotated[bool, "Whether to report what else would lower the peak, each option with a full plan"]
    advise_checkpoints: Annotated[bool, "Whether to report the worth of each checkpoint, and the best set of that size"]
    share_buffers: Annotated[bool, "Whether to give values that are never live together one buffer name"]
    gradient_events: Annotated[bool, "Whether to report which node makes and finalises which gradient"]
    returns: Annotated[
        Section | list[Section] | tuple[Section, ...], "Sections of the report (`return` in the wire format)"
    ]


class CurveFields(SearchFields, ShareFields, total=False):
    """Keyword parameters of `curve`."""


class FitFields(SearchFields, total=False):
    """Keyword parameters of `fit`."""

    max_overhead: Annotated[
        float | str | None,
        "Largest extra time over the baseline, a share: 0.1 or `'10%'`. In `plan` instead of a budget",
    ]
    fits: Annotated[Bytes | None, "Memory as a device name or in bytes, instead of a budget"]


class PlanFields(CurveFields, FitFields, ReportFields, total=False):
    """Keyword parameters of `plan`."""


class BatchFields(SharedFields, ShareFields, ReportFields, total=False):
    """Keyword parameters of `batch`."""


F = TypeVar("F", bound=Callable[..., Any])


def describe_fields(table: type) -> dict[str, tuple[Any, Any, str]]:
    """Name -> (type, default, description) of each field of a table, in order."""
    hints = typing.get_type_hints(table, include_extras=True)
    defaults = _defaults()
    return {name: (hint.__origin__, defaults[name], hint.__metadata__[0]) for name, hint in hints.items()}


def _defaults() -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in fields(Request)
    }


def request_keywords(table: type, **other_defaults: Any) -> Callable[[F], F]:
    """Decorator: names the fields of `table` in the signature and the docstring, in place of `**request`.

    `other_defaults` go before those of `Request`.
    """

    def named(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        rows = {
            name: (kind, other_defaults.get(name, default), text)
            for name, (kind, default, text) in describe_fields(table).items()
        }
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default, _) in rows.items()
        ]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *keywords])
        entries = [
            textwrap.fill(
                f"{name}: {text}. Default: {default!r}.", 116, initial_indent="    ", subsequent_indent=" " * 8
            )
            for name, (_, default, text) in rows.items()
        ]
        function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\nRequest fields:\n" + "\n".join(entries)
        return function

    return named
