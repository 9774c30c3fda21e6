"""The fixture `remat_check`: plan a model and store the plan, or compare the model with a stored plan."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.atomic_files import CannotWrite
from app.cli.commands.check import compare, lines, parse_drift
from app.cli.console.files import read_bytes, read_report
from app.errors import BadUsage, to_problem
from app.render.text import headline
from graph.errors import BadGraph
from planner.errors import BadRequest, IllegalPlan
from planner.request.plan_request import Request, parse_request
from remat.errors import BadInput
from remat.facade import plan, wire_fields
from remat.report import Report

# Imports inside functions: remat.torch needs PyTorch, which tests of model files need not have.

UPDATE = "pytest --remat-update"
#: Fields that change nothing in the plan.
IRRELEVANT = {"execute", "returns", "given"}


def problem_of(
    folder: Path,
    model: Any,
    inputs: tuple[Any, ...],
    baseline: Path,
    update: bool,
    /,
    *,
    budget: str | float | int | None = None,
    max_drift: str = "2%",
    loss: str | Callable[[Any], Any] | None = None,
    **request: Any,
) -> str:
    """Why the test fails; empty if the model is within its baseline, or the baseline was written (`update`).

    Paths are relative to `folder`, except in messages. A fault of the caller's code is raised as it is.
    """
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else type(model).__name__
    path = folder / baseline
    try:
        data, fields = _model(folder, model, inputs, loss, request)
        if update:
            return _updated(name, data, budget, fields, path)
        if not path.is_file():
            return f"{name}: there is no baseline {baseline}; write it with {UPDATE}, and keep it beside the test"
        report = read_report(str(path))
        if changed := _changed_fields(report["request"], fields, budget):
            return f"{name}: {baseline} was planned with other fields: {changed}; plan it again with {UPDATE}"
        document, _ = compare(report, data, parse_drift(max_drift))
    except (BadInput, BadGraph, BadRequest, IllegalPlan, BadUsage, CannotWrite, OSError) as error:
        return f"{name}: {error if isinstance(error, BadInput) else to_problem(error)['detail']}"
    if document["within"]:
        return ""
    verdict, *rest = lines(document)
    return "\n".join([f"{name}: {verdict}", *rest, "", f"If the change is intended: {UPDATE} writes {baseline} again."])


def _model(
    folder: Path, model: Any, inputs: tuple[Any, ...], loss: Any, request: Mapping[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    """(document or file, keyword parameters of `remat.plan`). Raises BadGraph for a step that cannot be recorded."""
    if isinstance(model, str | os.PathLike):
        data = read_bytes(str(folder / model))
    elif isinstance(model, bytes):
        data = model
    elif "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        return _recorded(model, inputs, loss, request)
    else:
        raise TypeError(f"remat_check takes a file, bytes or a PyTorch module, not {type(model).__name__}")
    if inputs:
        raise TypeError("remat_check: inputs are those of a PyTorch module; give shapes as batch=, dims= or inputs=")
    return data, {**request, **({} if loss is None else {"loss": loss})}


def _recorded(
    module: Any, inputs: tuple[Any, ...], loss: Any, request: Mapping[str, Any]
) -> tuple[bytes, dict[str, Any]]:
    from remat.torch import NotCaptured, capture
    from remat.torch.step.planning import request_fields

    try:
        step = capture(module, *inputs, loss=loss)
    except NotCaptured as error:
        raise BadGraph.one("not_captured", "model", str(error), "a step that is one graph", "see the message") from None
    return step.to_json().encode(), request_fields(step, request)


def _updated(name: str, data: bytes, budget: str | float | int | None, fields: Mapping[str, Any], path: Path) -> str:
    """Plan the model and write its baseline; why not, if the plan is over its budget."""
    report: Report = plan(data, budget, **fields)
    if report.status == "over_budget":
        return f"{name}: {headline(report)}; no baseline was written"
    path.parent.mkdir(parents=True, exist_ok=True)
    report.save(path)
    return ""


def _changed_fields(stored: Mapping[str, Any], fields: Mapping[str, Any], budget: str | float | int | None) -> str:
    """The fields in which the request of the baseline and that of the test differ, as text."""
    given = {**wire_fields(fields), **({} if budget is None else {"budget": budget})}
    before, now = parse_request(stored), parse_request(given)
    names = [field.name for field in dataclasses.fields(Request) if field.name not in IRRELEVANT]
    return ", ".join(name for name in names if getattr(before, name) != getattr(now, name))
