"""Analysis of a stored graph before planning: versions of names, live ranges, peak, lints."""

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
    """The analysis as JSON; version numbers continue from `start` and from the final versions of `before`."""
    numbers = dict(start)
    for earlier in before:
        numbers |= versions_of_graph(earlier, numbers).final_numbers()
    memory = info(graph, parse_request({"differentiate": False}))
    return {
        "name": graph.name,
        **versions_and_lints(graph, numbers),
        "memory": {name: memory[name] for name in _MEMORY},
        "lives": live_range_columns(graph),
        "recurrent": [recurrence.as_dict() for recurrence in describe_recurrences(graph)],
    }


def versions_and_lints(graph: Graph, start: Mapping[str, int] = EMPTY) -> dict[str, Any]:
    """The SSA version table with the data derived from it, and lints."""
    analysis = analysis_of(graph, start)
    return {
        "versions": analysis_json(graph, analysis),
        "lints": [asdict(finding) for finding in lint_findings(graph, analysis)],
    }
