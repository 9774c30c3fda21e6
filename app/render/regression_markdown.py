"""A regression check as Markdown, for the comment on a pull request. It stands alone: no picture is needed to read it.

Names come from model files, which anyone may have written. They appear as code, in which GitHub reads no Markdown,
HTML, link or mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.render import regression, terminal_chart
from app.render.axes import printable
from app.render.terminal_chart import BLOCKS, ChartStyle
from app.render.text import format_bytes, format_seconds

MAX_ROWS, MAX_NAME_CHARS, MAX_LINE_CHARS, CHART_COLUMNS = 10, 80, 400, 90
#: Characters of a name that mean nothing in Markdown and HTML between backticks, table cells included.
PLAIN = re.compile(r"[^`|\\]*[^`|\\\s][^`|\\]*")
SIGN = re.compile(r"[^\w\s]|_")


def comment(
    document: Mapping[str, Any], model: str, drawn: Mapping[str, Any], differences: Sequence[str], picture: str
) -> str:
    """The comment about a check of `model`, the verdict in its first line.

    `drawn` is a report with a timeline; `differences` are lines about the graphs; `picture` is a file's name, or "".
    """
    verdict = "passed" if document["within"] else "failed"
    parts = [f"**remat check {verdict}** · {code(model)} · {_headline(document)}"]
    rows = [(f"**{name}**" if "plan" in name else name, *cells) for name, *cells in regression.figure_rows(document)]
    parts.append(_table(("", "before", "after", "change"), rows, right=(1, 2, 3)))
    if document["budget_bytes"]:
        parts.append(f"Budget of the plan: {format_bytes(document['budget_bytes'])}.")
    batch, why = regression.largest_batch(document)
    if batch:
        reason = f" ({code(why, MAX_LINE_CHARS)})" if why else ""
        parts.append(f"L{batch[1:]}{reason}.")
    parts += [] if document["within"] else _blame(document)
    parts.append(_folded("Memory over steps, before and after", terminal_chart.timeline(drawn, CHART)))
    if differences:
        parts.append(_folded("Differences of the training graph", differences))
    if document["warnings"]:
        parts.append(_folded(f"Warnings: {len(document['warnings'])}", document["warnings"][:MAX_ROWS]))
    if picture:
        parts.append(f"Picture of memory before and after: {code(picture)}.")
    return "\n\n".join(parts) + "\n"


CHART = ChartStyle(CHART_COLUMNS, BLOCKS)


def _headline(document: Mapping[str, Any]) -> str:
    replay = document["replay"]
    if replay["runs"]:
        return regression.headline(document)
    return f"{regression.CANNOT_RUN}: {code(replay['why'], MAX_LINE_CHARS)}"


def _blame(document: Mapping[str, Any]) -> list[str]:
    """Tables of the ops that cause the regression, with shapes and bytes or seconds."""
    parts = [f"**Ops to blame**: {', '.join(map(code, document['blame'])) or 'none by name'}"]
    head = ("op", "node", "value", "shape", "bytes before", "bytes after", "why")
    for figure, rows in regression.grown_values(document):
        cells = [
            (
                code(row["op"] or ""),
                code(row["node"]) if row["node"] else regression.producer(row),
                code(row["value"]),
                code(regression.shapes(row)),
                format_bytes(row["was"]),
                format_bytes(row["now"]),
                row["why"],
            )
            for row in rows[:MAX_ROWS]
        ]
        parts.append(f"Growth at the {figure}{_of(rows)}:\n\n{_table(head, cells, right=(4, 5))}")
    if slower := regression.slower_nodes(document):
        nodes = [
            (
                code(row["op"] or ""),
                code(row["node"]),
                code(regression.shapes(row)),
                format_seconds(row["was"]),
                format_seconds(row["now"]),
            )
            for row in slower[:MAX_ROWS]
        ]
        columns = ("op", "node", "shape", "before", "after")
        parts.append(f"Slower nodes{_of(slower)}:\n\n{_table(columns, nodes, right=(3, 4))}")
    return parts


def _of(rows: Sequence[object]) -> str:
    return f" ({MAX_ROWS} of {len(rows)})" if len(rows) > MAX_ROWS else ""


def code(name: str, longest: int = MAX_NAME_CHARS) -> str:
    """A name as inline code; an element with every sign as an entity where backticks would not hold it."""
    clean = printable(name, longest)
    if not clean or PLAIN.fullmatch(clean):
        return f"`{clean}`" if clean else ""
    return f"<code>{SIGN.sub(lambda found: f'&#{ord(found[0])};', clean)}</code>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int]) -> str:
    rule = ["---:" if place in right else "---" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _folded(title: str, lines: Sequence[str]) -> str:
    """Lines under a title that opens them, between fences that none of them closes."""
    shown = [printable(line, MAX_LINE_CHARS) for line in lines]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join(["<details>", f"<summary>{title}</summary>", "", f"{fence}text", *shown, fence, "", "</details>"])
