"""Public functions: plan, curve, fit, batch and verify."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from app.cli.console.files import read_report
from app.models.names import named_after
from app.render.notebook_document import NotebookDocument
from graph import cancellation
from graph.errors import BadGraph, Finding
from graph.ir import Graph
from planner.errors import BadRequest, IllegalPlan
from planner.pipeline import curve as curves
from planner.pipeline import fits
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.problem.plan import Candidate
from planner.report import saved_report
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.field_parsers import unknown_field
from planner.request.plan_request import DEFAULT_OVERHEAD, FIELDS, parse_request
from remat.errors import BadInput, Stopped
from remat.keywords import request_keywords
from remat.report import Report
from remat.request_fields import BatchFields, CurveFields, FitFields, PlanFields

# Imports inside functions: modules of batches are loaded by `batch` only.

__all__ = [
    "BadGraph",
    "BadInput",
    "BadRequest",
    "Finding",
    "Graph",
    "Report",
    "Stopped",
    "batch",
    "curve",
    "fit",
    "plan",
    "verify",
]
Model = str | os.PathLike[str] | bytes | Graph


@request_keywords(PlanFields, execute="auto")
def plan(
    model: Model,
    budget: str | float | int | None = None,
    *,
    cancel: threading.Event | None = None,
    **request: Unpack[PlanFields],
) -> Report:
    """Plan a model: the fastest plan whose peak is within the budget, or the lowest peak within `max_overhead`.

    >>> report = remat.plan("model.json", "90%")
    >>> report.peak_bytes <= 0.9 * report.baseline_peak_bytes + 1
    True

    Parameters:
        model: A path, the bytes of a file in any supported format, or a `Graph`.
        budget: "50%" or 0.5 of the baseline peak, bytes (8589934592, "8GiB", "8GB"), or 0 for the lowest peak. Without
            `budget`, `max_overhead` and `fits`: the lowest peak within 10% extra time.
        cancel: Stops the search once set.

    Raises:
        BadInput: The model or the request is invalid; `findings` name each fault. A budget that no plan reaches is no
            error: `status` is then "over_budget".
        Stopped: `cancel` was set; `best` is the report of the best plan so far, if there is one.
        OSError: The file cannot be read.
    """
    fields = {"execute": "auto", **wire_fields(request)} | ({} if budget is None else {"budget": budget})
    return Report(solved(model, fields, cancel))


def solved(
    model: Model, fields: Mapping[str, Any], cancel: threading.Event | None = None, given: Candidate | None = None
) -> Outcome:
    """Plan a model for wire fields; `given` is the order of the plan, without a search. Raises as `plan` does."""
    try:
        data = _read(model)
        outcome = solve(data, parse_request(fields), cancel=cancel, given=given)
        outcome = replace(outcome, report=_named(model, data, outcome.report))
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.CancellationError:
        raise Stopped from None
    if outcome.report["plan"]["stopped"]:
        raise Stopped(Report(outcome))
    return outcome


@request_keywords(CurveFields)
def curve(
    model: Model,
    budgets: Sequence[str | float | int],
    *,
    cancel: threading.Event | None = None,
    **request: Unpack[CurveFields],
) -> dict[str, Any]:
    """Plan a model under several budgets: a `remat-curve/1` document with the time, bound and plan of each point.

    >>> points = remat.curve("model.json", ["100%", "90%"])["points"]
    >>> [point["plan"]["overhead"] >= 0 for point in points]
    [True, True]

    Parameters:
        model: A path, the bytes of a file in any supported format, or a `Graph`.
        budgets: 1 to 64 different budgets, each as in `plan`.
        cancel: Stops the search once set; points not searched yet get the best plan found until then.

    Raises:
        BadInput: The model or the request is invalid; `findings` name each fault.
        Stopped: `cancel` was set before a plan was found.
        OSError: The file cannot be read.
    """
    try:
        parsed = parse_curve({**wire_fields(request), "budgets": list(budgets)})
        data = _read(model)
        return NotebookDocument(_named(model, data, curves.curve(data, parsed, cancel=cancel).document))
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.CancellationError:
        raise Stopped from None


@request_keywords(FitFields, max_overhead=DEFAULT_OVERHEAD)
def fit(
    model: Model,
    budget: str | int | None = None,
    grow: str = "batch",
    *,
    cancel: threading.Event | None = None,
    **request: Unpack[FitFields],
) -> dict[str, Any]:
    """Find the largest batch, sequence or other dimension that fits: a `remat-fit/1` document with `size` and `plan`.

    >>> found = remat.fit("decoder.onnx", "400KB", dims={"sequence": 8}, planner="mirror")
    >>> found["size"] >= 1, found["plan"]["peak_bytes"] <= 400_000
    (True, True)

    Parameters:
        model: A path, the bytes of a file in any supported format, or a `Graph`.
        budget: Memory in bytes: 85899345920, "80GiB" or "80GB"; or give a device name as `fits`.
        grow: Dimension to grow: "batch", "sequence", or the name of a symbolic dimension.
        cancel: Stops the search once set; the largest size found until then is returned.

    Raises:
        BadInput: The model or the request is invalid; `findings` name each fault.
        Stopped: `cancel` was set before any size was found to fit.
        OSError: The file cannot be read.
    """
    fields = {**wire_fields(request), "grow": grow} | ({} if budget is None else {"budget": budget})
    try:
        data = _read(model)
        return NotebookDocument(_named(model, data, fits.fit(data, parse_fit(fields), cancel=cancel).document))
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.CancellationError:
        raise Stopped from None


@request_keywords(BatchFields)
def batch(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    budgets: Sequence[str | float | int],
    *,
    planners: Sequence[str] = ("auto",),
    seeds: Sequence[int] = (0,),
    batch_sizes: Sequence[int] = (),
    executor: Executor | None = None,
    workers: int | None = None,
    cancel: threading.Event | None = None,
    **request: Unpack[BatchFields],
) -> list[dict[str, Any]]:
    """Plan every model at every size, budget, planner and seed: one row per plan, in that order, with its `report`.

    >>> rows = remat.batch("*.json", ["100%", "90%"], planners=["greedy", "anneal"])
    >>> [row["state"] for row in rows]
    ['succeeded', 'succeeded', 'succeeded', 'succeeded']

    Parameters:
        models: Files, folders, manifests of `remat zoo` or glob patterns; one or a list.
        budgets: Budgets as in `plan`.
        planners: Names that `remat planners` lists.
        seeds: Seeds of the random choices.
        batch_sizes: Leading lengths of every input; without any, those of the manifest, else the model's own.
        executor: Any `concurrent.futures` executor, such as Dask's or Ray's, whose workers read the same files.
        workers: Number of child processes if there is no `executor`; default: one per core.
        cancel: No further plan is started once set, and running searches end; rows of finished plans are returned.

    A model that cannot be planned is a row with `state` "failed".

    Raises:
        BadInput: The request is invalid; `findings` name each fault.
        ValueError: `models` names no model, or there are too many combinations.
        OSError: A file cannot be read.
    """
    from app.errors import BadUsage
    from app.sweep import executors
    from app.sweep.items import expand_items, find_models
    from app.sweep.run import run_items

    stop = cancel or threading.Event()
    named = [models] if isinstance(models, str | os.PathLike) else models
    try:
        found = [model for name in named for model in find_models(Path(name))]
        items = expand_items(found, budgets, planners, seeds, batch_sizes, wire_fields(request))
    except BadRequest as error:
        raise BadInput(error.findings) from None
    except BadUsage as error:
        raise ValueError(str(error)) from None
    if executor is not None:
        engine = executors.executor_engine(executor)
    else:
        engine = executors.local_engine(workers or os.cpu_count() or 1, None, stop)
    rows = {}
    try:
        for outcome in run_items(items, engine, stop):
            report = None if outcome.report is None else json.loads(outcome.report)
            rows[outcome.item.key] = {**outcome.row, "report": report}
    except BaseException:
        stop.set()  # ends the running searches
        raise
    finally:
        if executor is None:
            engine.executor.shutdown()
    return [rows[item.key] for item in items if item.key in rows]


def verify(report: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Check a saved plan independently: `{"valid": True, ...}` or `{"valid": False, "why": ...}`.

    >>> remat.plan("model.json", "90%").save("plan.json")
    >>> remat.verify("plan.json")["valid"]
    True

    Parameters:
        report: A file that `Report.save` or `remat plan -o` wrote, or its contents.

    Raises:
        BadInput: The file is not a report, or is damaged.
        OSError: The file cannot be read.
    """
    try:
        return saved_report.verify(report if isinstance(report, Mapping) else read_report(os.fspath(report)))
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except IllegalPlan as error:
        return {"valid": False, "why": str(error)}


def _read(model: Model) -> bytes | Graph:
    return model if isinstance(model, (bytes, Graph)) else Path(model).read_bytes()


def _named(model: Model, data: bytes | Graph, document: dict[str, Any]) -> dict[str, Any]:
    """The document about the model, which is called by its file if it was read from one."""
    if isinstance(model, (bytes, Graph)) or isinstance(data, Graph):
        return document
    return named_after(model, data, document)


def wire_fields(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The request fields as the wire format names them. Raises BadInput for a keyword that is no field."""
    known = {row.attribute: name for name, row in FIELDS.items()}
    if findings := [unknown_field(name, name, known) for name in keywords if name not in known and name not in FIELDS]:
        raise BadInput(tuple(findings))
    return {known.get(name, name): value for name, value in keywords.items()}
