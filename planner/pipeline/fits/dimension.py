"""The dimension that grows in a fit: the batch, or one that the model leaves open."""

from __future__ import annotations

import re

from graph.errors import BadGraph
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation.training_graph import load_model
from planner.request.curve_and_fit_request import FitRequest
from planner.request.plan_request import Request

SEQUENCE_NAME = re.compile(r"(^|_)(seq|sequence|tokens?|time|steps?|length|len|t|s|l)(_|$)|seq|length", re.IGNORECASE)


def growing_dimension(model: bytes | Graph, fit_request: FitRequest, limits: Limits | None) -> str | None:
    """Name of the dimension that grows; None for the batch. Raises BadRequest if it is missing or ambiguous."""
    if fit_request.grow == "batch":
        return None
    open_dimensions = _unbound(model, fit_request.request, limits)
    named = (
        [fit_request.grow]
        if fit_request.grow != "sequence"
        else [name for name in open_dimensions if SEQUENCE_NAME.search(name)]
    )
    if len(named) == 1 and named[0] in open_dimensions:
        return named[0]
    if fit_request.grow == "sequence" and len(open_dimensions) == 1:
        return open_dimensions[0]
    shown = ", ".join(open_dimensions) if open_dimensions else "none: every length is a number"
    raise BadRequest.one(
        "unknown_dimension",
        "grow",
        f"{fit_request.grow!r}; dimensions without a length: {shown}",
        "one named dimension that is left open",
        "name it, such as --grow N, and give the others with --dim"
        if open_dimensions
        else "export the model with a named dimension, or grow the batch",
    )


def _unbound(model: bytes | Graph, request: Request, limits: Limits | None) -> list[str]:
    """Names of the dimensions without a length."""
    try:
        load_model(model, request, limits)
    except BadGraph as error:
        names = [
            finding.path.removeprefix("dims.")
            for finding in error.findings
            if finding.code == "unbound_dimension" and finding.path.startswith("dims.")
        ]
        if not names:
            raise
        return names
    return []


def about_growing(error: BadGraph) -> Exception:
    """Error for a model that cannot be read at size 1: the batch is the dimension that grows."""
    if [finding.path for finding in error.findings] != ["batch"]:
        return error
    return BadRequest.one(
        "cannot_grow",
        "grow",
        "a model none of whose inputs has a leading length",
        "inputs with shapes",
        "declare shape and dtype of the inputs, or grow a dimension by its name",
    )
