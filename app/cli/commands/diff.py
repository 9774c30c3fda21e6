"""`remat diff`: differences between two models or plans, with the nodes that cause them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.cli.console.files import STANDARD_INPUT, is_report, read_bytes, to_json
from app.errors import BadUsage
from app.models.diff import find_differences
from app.render.differences import format_value, is_number
from app.render.text import format_change, table
from graph.errors import BadGraph
from graph.formats.readers import load
from graph.ir import Graph
from graph.limits import ShapeOverrides
from graph.transforms.structural_equality import difference
from planner.report.schema import parse_saved
from planner.request.plan_request import parse_request

MAX_LINES = 40
MAX_CELL_CHARS = 60


def run(a: str, b: str, fields: Mapping[str, Any], as_json: bool) -> int:
    """Exit code: 0 without differences, else 1. `fields` have shapes for models that leave lengths open."""
    if a == b == STANDARD_INPUT:
        raise BadUsage("A and B are both standard input; name a file for one of them")
    request = parse_request(fields)
    shapes = ShapeOverrides(request.inputs, request.batch, request.dims, max=request.max)
    one, other = _load(a, shapes), _load(b, shapes)
    differences = find_differences(one, other)
    result: dict[str, Any] = {"same": not differences, "differences": differences}
    if isinstance(one, Graph) and isinstance(other, Graph):
        result["computed_differently"] = difference(one, other, repeats=True)
    if as_json:
        print(to_json(result))
    else:
        print("\n".join([*lines(differences), *_equivalence_line(result)]))
    return 1 if differences else 0


def _equivalence_line(result: Mapping[str, Any]) -> list[str]:
    """For two models that differ: whether they are equivalent up to names and recomputation."""
    if result["same"] or "computed_differently" not in result:
        return []
    why = result["computed_differently"]
    return [
        "both models compute the same values, up to names and recomputation"
        if why is None
        else f"computed differently: {why}"
    ]


def _load(name: str, shapes: ShapeOverrides) -> Graph | dict[str, Any]:
    """A report, or the graph in the file: with its own shapes, or if it leaves lengths open, with these."""
    data = read_bytes(name)
    if data.lstrip()[:1] == b"{":
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadGraph.one("unparseable", name, str(error), "a JSON document", "correct the file") from error
        if is_report(document):
            parse_saved(document)
            return dict(document)
    try:
        return load(data)
    except BadGraph:
        if shapes == ShapeOverrides():
            raise
        return load(data, shapes=shapes)


def lines(found: list[dict[str, Any]]) -> list[str]:
    """One line per difference, and the nodes that cause them."""
    if not found:
        return ["no difference"]
    other_model = [row for row in found if row["what"] == "model hash"]
    text = ["A and B are plans of different models or shapes", ""] if other_model else []
    text += difference_lines([row for row in found if row not in other_model], MAX_LINES)
    blamed = list(dict.fromkeys(row["node"] for row in found if row.get("node")))
    if blamed:
        more = f" and {len(blamed) - 10} more" if len(blamed) > 10 else ""
        text.append(f"nodes to blame: {', '.join(blamed[:10])}{more}")
    return text


def difference_lines(found: list[dict[str, Any]], limit: int) -> list[str]:
    """One line per difference, at most `limit`."""
    rows = [
        (
            row["what"],
            row["where"],
            *(format_value(row["what"], row[side], MAX_CELL_CHARS) for side in ("a", "b")),
            _growth(row),
        )
        for row in found[:limit]
    ]
    text = table(("what", "where", "A", "B", "growth"), rows, (4,))
    if len(found) > limit:
        text.append(f"... and {len(found) - limit} more; --json prints all")
    return text


def _growth(row: Mapping[str, Any]) -> str:
    """What B has more than A, in bytes or, for figures, also in percent of A."""
    a, b = row["a"], row["b"]
    share = (
        f"{b / a - 1:+.1%}"
        if is_number(a) and is_number(b) and a > 0 and row["what"].endswith(("_bytes", "seconds"))
        else ""
    )
    return " ".join(filter(None, (format_change(row["bytes"]) if "bytes" in row else "", share)))
