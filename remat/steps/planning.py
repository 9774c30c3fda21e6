"""Plans of recorded steps, read from a file or a report and checked against the step at hand."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from app.cli.console.files import read_report
from graph.formats.native.writer import document as document_of
from graph.formats.readers import load
from planner.errors import IllegalPlan
from planner.report import saved_report
from remat.report import Report
from remat.steps.errors import OtherStep

PlanSource = Report | Mapping[str, Any] | str | os.PathLike[str]


def order_for(document: Mapping[str, Any], given: PlanSource) -> list[tuple[str, int]]:
    """The order of a plan made before, after the checks that it is legal and belongs to this step.

    Raises:
        OtherStep: The plan was made for other ops, shapes or inputs, or is not legal.
        OSError: The file cannot be read.
    """
    saved = read(given)
    if saved.get("source") is None:
        raise OtherStep("the plan has no source graph to compare with: save it with Report.save or `remat plan -o`")
    if fingerprint(saved["source"]) != fingerprint(document):
        raise OtherStep(_difference(saved["source"], document) + _versions(saved["source"], document))
    try:
        saved_report.verify(saved)
    except IllegalPlan as error:
        raise OtherStep(f"the plan is not legal: {error}") from None
    return [(name, run) for name, run in saved["plan"]["order"]]


def read(given: PlanSource) -> Mapping[str, Any]:
    """The saved report of a plan. Raises OSError."""
    if isinstance(given, Report):  # which is a mapping too, without the source graph
        return saved_plan(given)
    return given if isinstance(given, Mapping) else read_report(os.fspath(given))


def saved_plan(report: Report) -> dict[str, Any]:
    """The report with its source graph, as `Report.save` writes it."""
    return {**report.to_dict(), "source": document_of(report.source)}


def fingerprint(document: Mapping[str, Any]) -> str:
    """sha256 of what a step computes: ops, arguments, shapes and inputs; not bytes, takeovers, costs or annotations."""
    rows = document_of(load(json.dumps(document).encode()))
    for record in rows["values"]:
        if "shape" in record:  # its bytes follow from where a framework puts it
            record.pop("bytes", None)
            record.pop("fixed_bytes", None)
    for record in _records(rows):
        record.pop("annotations", None)
        record.pop("cost", None)
        record.pop("takeover", None)  # of the executor: with it, a peak is at most the one without
    computed = {"values": rows["values"], "nodes": rows["nodes"], "outputs": rows["outputs"]}
    return hashlib.sha256(json.dumps(computed, sort_keys=True).encode()).hexdigest()


def _records(rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Values and nodes of a graph and of the bodies in it."""
    yield from rows.get("values", ())
    for node in rows["nodes"]:
        yield node
        for body in node.get("bodies", {}).values():
            yield from _records(body)


def _versions(planned: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Text for a plan that was made with another version of the framework, which may record other ops."""
    before, here = (each.get("annotations", {}).get("framework") for each in (planned, found))
    return "" if before == here or None in (before, here) else f" (it was made with {before}, this is {here})"


def _difference(planned: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Names the first value or op in which two documents differ."""
    for kind, fields in (("values", ("shape", "dtype")), ("nodes", ("op", "inputs", "attributes"))):
        before = {record["name"]: record for record in planned[kind]}
        after = {record["name"]: record for record in found[kind]}
        for name in (*before, *after):
            left, right = before.get(name), after.get(name)
            if left is None or right is None:
                where = "step" if left is None else "plan"
                return f"the plan is for another step: {name!r} is only in the {where}; plan again"
            for field in fields:
                if left.get(field) != right.get(field):
                    return (
                        f"the plan is for another step: {field} of {name!r} is {left.get(field)} in the plan, "
                        f"{right.get(field)} here; plan again"
                    )
    return "the plan is for another step; plan again"
