"""`remat explain`: bytes freed and time added by each recomputation of a saved plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.atomic_files import write_atomic
from app.cli.console.files import demand_writable, read_report, to_json
from app.render.graph_names import describe_node, describe_type
from app.render.plan.trace import trace
from app.render.report_sections import limiting_op, optional_sections
from app.render.text import format_bytes, format_seconds, headline, table
from graph.ir import Graph
from planner.report import saved_report


def run(plan: str, top: int, trace_file: Path | None, as_json: bool) -> int:
    """Exit code; prints the first `top` recomputations, most bytes freed per second first, and writes the trace."""
    demand_writable({plan: "the plan"}, trace_file)
    report = read_report(plan)
    if trace_file is not None:
        write_atomic(trace_file, msgspec.json.encode(trace(report)))
    explained, graph = saved_report.explain_with_graph(report)
    print(to_json(explained) if as_json else "\n".join(lines(report, explained, graph, top)))
    return 0


def lines(report: Mapping[str, Any], explained: Mapping[str, Any], graph: Graph, top: int) -> list[str]:
    """The explanation as text; nodes and values with what they are in the graph."""
    nodes = {node.name: describe_node(graph, node) for node in graph.nodes}
    values = {value.name: f"{value.name} {describe_type(value)}" for value in graph.values}
    recomputed = explained["recomputed"]
    rows = [
        (
            nodes[row["node"]],
            row["runs"],
            format_bytes(row["freed_bytes"]),
            format_bytes(row["byte_steps"]),
            format_seconds(row["seconds"]),
            "" if row["if_kept"] is None else format_bytes(row["if_kept"]["peak_bytes"]),
        )
        for row in recomputed[:top]
    ]
    if recomputed:
        total = {name: sum(row[name] for row in recomputed) for name in ("runs", "freed_bytes", "seconds")}
        freed, seconds = format_bytes(total["freed_bytes"]), format_seconds(total["seconds"])
        rows.append((f"all {len(recomputed)}", total["runs"], freed, "", seconds, ""))
    head = ("recomputed", "runs", "bytes freed", "bytes x steps", "extra time", "peak if kept")
    text = [headline(report), ""]
    text += table(head, rows, (1, 2, 3, 4, 5)) if rows else ["no recomputation"]
    if len(recomputed) > top:
        text.append(f"{len(recomputed) - top} more; --top {len(recomputed)} prints all")
    for name, title in (("baseline_holders", "live at the peak before"), ("holders", "live at the peak after")):
        held = [
            (
                f"  {values.get(row['value'], row['value'])}",
                format_bytes(row["bytes"]),
                row["from_step"],
                row["to_step"],
            )
            for row in explained[name]
        ]
        text += ["", *table((title, "", "from", "to"), held, (1, 2, 3))]
    binding = explained["binding"]
    limit = limiting_op({**binding, "node": nodes.get(binding["node"])})
    return [*text, "", limit, *optional_sections(report)]
