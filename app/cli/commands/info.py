"""`remat info`: sizes and baseline peak of a model, or the SSA versions of names that each op reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.console.files import read_bytes, to_json
from app.models.names import named_after
from app.render.text import format_bytes, format_seconds, table
from planner.formulation.training_graph import load_model
from planner.report.model_summary import info
from planner.request.plan_request import parse_request

# Imports inside functions: the analysis is loaded if requested.

MAX_OPS = 12


def run(model: str, fields: Mapping[str, Any], as_json: bool, versions: bool = False) -> int:
    """Exit code; prints sizes and the baseline peak, or with `versions` the version table and lints."""
    if versions:
        return _run_versions(model, fields, as_json)
    data = read_bytes(model)
    found = named_after(model, data, info(data, parse_request(fields)))
    print(to_json(found) if as_json else "\n".join(lines(found)))
    return 0


def lines(found: Mapping[str, Any]) -> list[str]:
    """The summary as text."""
    model, base = found["model"], found["baseline"]
    phases = ", ".join(f"{count} {phase}" for phase, count in found["nodes_by_phase"].items() if count)
    ops = [f"{op} ×{count}" for op, count in list(found["ops"].items())[:MAX_OPS]]
    left_out = len(found["ops"]) - len(ops)
    roles = [(f"  {role}", format_bytes(held)) for role, held in found["bytes_by_role"].items()]
    limiting = _named(found["binding_node"], found["binding"]) if found["binding_node"] else "none"
    text = [
        f"{model['name'] or 'model'}: {model['nodes']} nodes ({phases or 'none'}), {model['values']} values",
        f"ops: {', '.join(ops)}{f' and {left_out} more' if left_out > 0 else ''}",
        "",
        *table(("bytes by role", ""), roles, (1,)),
        "",
        f"baseline peak: {format_bytes(base['peak_bytes'])} at step {base['peak_step']}, "
        f"{format_seconds(base['seconds'])} per step",
        f"proven minimum peak: {format_bytes(found['smallest_possible_bytes'])}; limiting op: {limiting}",
        *table(("live at the peak", "", "from", "to"), _holders(found), (1, 2, 3)),
        "",
        *table(("input", "type"), found["inputs"].items()),
    ]
    return text + [f"warning: {warning}" for warning in found["warnings"]]


def _holders(found: Mapping[str, Any]) -> list[tuple[object, ...]]:
    return [
        (f"  {_named(row['value'], row)}", format_bytes(row["bytes"]), row["from_step"], row["to_step"])
        for row in found["holders"]
    ]


def _named(name: str, described: Mapping[str, Any] | None) -> str:
    """A name with op, type and module, those that are known."""
    return " ".join([name, *(str(part) for key in ("op", "type", "module") if (part := (described or {}).get(key)))])


def _run_versions(model: str, fields: Mapping[str, Any], as_json: bool) -> int:
    from app.models.analysis import versions_and_lints

    request = parse_request(fields)
    found = versions_and_lints(load_model(read_bytes(model), request))
    print(to_json(found) if as_json else "\n".join(version_lines(found)))
    return 0


def version_lines(found: Mapping[str, Any]) -> list[str]:
    """One line per node, then undefined, unread and dead versions, and lints."""
    versions = found["versions"]
    named = [f"{name}@{number}" for name, number in zip(versions["name"], versions["version"], strict=True)]
    named.append("-")  # absent optional input or output: index -1
    rows = [
        (node, " ".join(named[v] for v in read), " ".join(named[v] for v in written))
        for node, read, written in zip(versions["nodes"], versions["inputs"], versions["outputs"], strict=True)
    ]
    text = [*table(("node", "reads", "writes"), rows)]
    lists = {title: [f"{name}@{number}" for name, number in versions[title]] for title in ("undefined", "unread")}
    lists["dead"] = versions["dead"]
    text += [f"{title}: {', '.join(entries)}" for title, entries in lists.items() if entries]
    return text + [f"{lint['code']}: {lint['path']}: {lint['found']}" for lint in found["lints"]]
