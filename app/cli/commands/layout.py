"""`remat layout`: assign an offset to each buffer of a CSV of sizes and lifetimes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.console.files import demand_writable, read_bytes, to_json
from app.cli.console.signals import EXIT_STOPPED, stop_on_signal
from app.render.text import format_bytes
from planner.errors import BadRequest, Finding
from planner.layout.csv_buffers import BUFFER_FIELDS, COLUMNS, pack, parse_buffers

INTEGER = re.compile(r"\s*-?[0-9]{1,19}\s*")
Table = tuple[Sequence[str], list[dict[str, str]]]


def run(file: str, options: Mapping[str, Any], output: Path | None, as_json: bool) -> int:
    """Exit code of the command: 0 done, 1 over the capacity, 2 bad input, 3 stopped."""
    demand_writable({file: "the table"}, output)
    names, rows = read_table(file)
    given = {name: value for name, value in options.items() if value is not None}
    buffers = parse_buffers({"buffers": [_numbers(row) for row in rows], **given})
    with stop_on_signal() as stop:
        packed = pack(buffers, stop)
    if output is not None:
        offsets = [str(offset) for offset in packed.offsets.tolist()]
        write_atomic(output, with_offsets(names, rows, offsets).encode())
    arena, bound = format_bytes(packed.arena_bytes), format_bytes(packed.bound_bytes)
    text = f"{len(rows)} buffers in {arena}, {packed.status}; proven minimum {bound}"
    print(to_json(packed.document()) if as_json else text)
    return EXIT_STOPPED if stop.is_set() else int(packed.status == "over_capacity")


def read_table(file: str) -> Table:
    """Column names and rows of a CSV file. Raises BadRequest."""
    try:
        reader = csv.DictReader(io.StringIO(read_bytes(file).decode(), newline=""), strict=True)
        names, rows = list(reader.fieldnames or ()), list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadRequest.one("unparseable", file, str(error)[:80], "a CSV file", "correct the file") from error
    head = "a header with id, lower, upper and size; optionally alignment and offset"
    missing = [name for name in ("lower", "upper", "size") if name not in names]
    if missing or len(set(names)) < len(names):
        raise BadRequest.one("missing_field", file, ",".join(names)[:80] or "nothing", head, "add the missing columns")
    uneven = [
        Finding("bad_field", f"buffers[{i}]", "a different number of cells", "as in the header", "correct the line")
        for i, row in enumerate(rows)
        if None in row or None in row.values()
    ]
    if uneven:
        raise BadRequest(uneven[:10])
    return names, rows


def _numbers(row: Mapping[str, str]) -> dict[str, Any]:
    """Nonempty cells of `BUFFER_FIELDS`; other columns are copied to the output but not read."""
    return {
        name: int(cell) if name in COLUMNS and INTEGER.fullmatch(cell) else cell
        for name, cell in row.items()
        if name in BUFFER_FIELDS and cell.strip()
    }


def with_offsets(names: Sequence[str], rows: Sequence[Mapping[str, str]], offsets: Sequence[str]) -> str:
    """CSV text of the table with an `offset` column."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys([*names, "offset"]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "offset": offset} for row, offset in zip(rows, offsets, strict=True))
    return text.getvalue()
