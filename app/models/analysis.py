"""What a stored graph is, before anything is planned: versions of names, lives of values, peak, suspicious places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graph.buffer_sharing.live_ranges import live_range_columns
from graph.ir import EMPTY, Graph
from graph.recurrent import describe_recurrences
from graph.ssa.analysis import analysis_json, analysis_of
from graph.ssa.naming import versions_of_graph
from graph.transforms.lint import lint_findings
from planner.report.model_summary import info
from planner.request.plan_request import parse_request

_MEMORY = ("bytes_by_role", "baseline", "holders", "smallest_possible_bytes", "binding_node", "nodes_by_phase", "ops")


def analyze(graph: Graph, start: Mapping[str, int], before: Sequence[Graph] = ()) -> dict[str, Any]:
    """The analysis as JSON. Numbers of versions go on with those in `start`, and those the graphs `before` end with."""
    numbers = dict(start)
    for earlier in before:
        numbers |= versions_of_graph(earlier, numbers).final_numbers()
    memory = info(graph, parse_request({"differentiate": False}))
    return {
        "name": graph.name,
        **versions_and_lints(graph, numbers),
        "memory": {name: memory[name] for name in _MEMORY},
        "lives": live_range_columns(graph),
        "recurrent": [each.as_dict() for each in describe_recurrences(graph)],
    }


def versions_and_lints(graph: Graph, start: Mapping[str, int] = EMPTY) -> dict[str, Any]:
    """The version table with what follows from it, and what looks like a mistake."""
    found = analysis_of(graph, start)
    return {
        "versions": analysis_json(graph, found),
        "lints": [asdict(finding) for finding in lint_findings(graph, found)],
    }
