"""`remat diff`: whether two models or plans are the same, and which nodes are to blame if not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from app.cli.commands.files import STANDARD_INPUT, is_report, read_bytes, to_json
from app.errors import BadUsage
from app.models.diff import find_differences
from app.render.text import format_bytes, table
from graph.errors import BadGraph
from graph.formats.readers import load
from graph.ir import Graph
from graph.transforms.structural_equality import difference
from planner.report.saved_schema import parts_of

MAX_LINES = 40
MAX_CELL_CHARS = 60


def run(a: str, b: str, as_json: bool) -> int:
    """0 when nothing differs, else 1 with the differences printed."""
    if a == b == STANDARD_INPUT:
        raise BadUsage("A and B are both standard input; name a file for one of them")
    one, other = _opened(a), _opened(b)
    found = find_differences(one, other)
    answer: dict[str, Any] = {"same": not found, "differences": found}
    if isinstance(one, Graph) and isinstance(other, Graph):
        answer["computed_differently"] = difference(one, other, repeats=True)
    if as_json:
        print(to_json(answer))
    else:
        print("\n".join([*lines(found), *_told(answer)]))
    return 1 if found else 0


def _told(answer: Mapping[str, Any]) -> list[str]:
    """Whether two models compute the same all the same."""
    if answer["same"] or "computed_differently" not in answer:
        return []
    said = answer["computed_differently"]
    return ["both compute the same, but for names and repeats" if said is None else f"computed differently: {said}"]


def _opened(name: str) -> Graph | dict[str, Any]:
    """A report, or the graph in the file."""
    data = read_bytes(name)
    if data.lstrip()[:1] == b"{":
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadGraph.one("unparseable", name, str(error), "a JSON document", "mend the file") from error
        if is_report(document):
            parts_of(document)
            return dict(document)
    return load(data)


def lines(found: list[dict[str, Any]]) -> list[str]:
    """One line a difference, and the nodes they come from."""
    if not found:
        return ["no difference"]
    text = difference_lines(found, MAX_LINES)
    blamed = list(dict.fromkeys(row["node"] for row in found if row.get("node")))
    if blamed:
        more = f" and {len(blamed) - 10} more" if len(blamed) > 10 else ""
        text.append(f"nodes to blame: {', '.join(blamed[:10])}{more}")
    return text


def difference_lines(found: list[dict[str, Any]], most: int) -> list[str]:
    """One line a difference, up to so many."""
    rows = [
        (
            row["what"],
            row["where"],
            _cell(row["a"]),
            _cell(row["b"]),
            format_bytes(row["bytes"]) if "bytes" in row else "",
        )
        for row in found[:most]
    ]
    text = table(("what", "where", "A", "B", "grown by"), rows, (4,))
    if len(found) > most:
        text.append(f"... and {len(found) - most} more; --json prints all")
    return text


def _cell(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= MAX_CELL_CHARS else text[: MAX_CELL_CHARS - 3] + "..."
