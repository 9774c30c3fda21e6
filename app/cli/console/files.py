"""Reading and writing of model, plan and graph files named on the command line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.atomic_files import check_writable, write_atomic
from app.errors import BadUsage, about_file
from app.models.formats import FORMATS, Format
from graph.errors import BadGraph
from graph.formats.document.faults import describe_data
from graph.ir import Graph
from graph.limits import Limits

STANDARD_INPUT = "-"


def demand_data_folder(folder: Path) -> None:
    """Raise BadUsage if a service's data folder is missing; read-only commands do not create it."""
    if not folder.is_dir():
        raise BadUsage(
            f"{folder}: no such data folder; name the service's data folder (--data, REMAT_DATA)", code="no_data"
        )


def read_bytes(name: str) -> bytes:
    """Bytes of a model or plan; `-`: standard input. Raises BadGraph past the size limit, OSError."""
    limit = Limits().document_bytes
    if name == STANDARD_INPUT:
        with about_file("standard input"):
            data = sys.stdin.buffer.read(limit + 1)
    else:
        try:
            with about_file(name), Path(name).open("rb") as file:
                data = file.read(limit + 1)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise _no_such_file(name) from error
    if len(data) > limit:
        raise BadGraph.one("too_large", name, f"more than {limit:,} bytes", f"at most {limit:,}", "use a smaller model")
    return data


def _no_such_file(name: str) -> FileNotFoundError:
    """The error that says what the name is instead, or which names are near."""
    path = Path(name)
    if "://" in name:
        found = "a URL; download the file first, and name the file"
    elif path.is_dir():
        found = "a folder; name one file of it, or plan all of its models with `remat batch`"
    elif not path.parent.is_dir():
        found = f"no such file; the folder {path.parent} is not there either"
    else:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
        near = difflib.get_close_matches(path.name, names, 3, 0.6)
        found = "no such file" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return FileNotFoundError(f"{name}: {found}")


def demand_writable(inputs: Mapping[str | Path | None, str], *paths: Path | None) -> None:
    """Return if every output path is writable and distinct. Called before a search, so that no result is lost.

    `inputs` has what each file that is read is called: "the model". Raises BadUsage for standard output, for an input
    and for two outputs at one path; CannotWrite.
    """
    taken = {
        Path(name).resolve(): called
        for name, called in inputs.items()
        if name is not None and str(name) != STANDARD_INPUT
    }
    for path in paths:
        if path is None:
            continue
        if str(path) == STANDARD_INPUT:
            raise BadUsage("-: name a file; use --json for standard output")
        check_writable(path)
        if other := taken.get(path.resolve()):
            raise BadUsage(f"{path}: same file as {other}; name another file", code="conflicting_flags")
        taken[path.resolve()] = "another output"


def read_report(name: str) -> dict[str, Any]:
    """A report written by `remat plan -o`. Raises BadGraph for any other file."""
    return read_format(name, "remat-report/")


def read_format(name: str, *formats: str) -> dict[str, Any]:
    """A JSON object whose `format` begins with one of `formats`. Raises BadGraph for any other file."""
    try:
        document = msgspec.json.decode(read_bytes(name))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _not_a_report(name, str(error)) from error
    if not isinstance(document, dict):
        raise _not_a_report(name, describe_data(document))
    if not str(document.get("format", "")).startswith(formats):
        raise _not_a_report(name, repr(document.get("format", "an object without format")))
    return document


def is_report(document: object) -> bool:
    return isinstance(document, Mapping) and str(document.get("format", "")).startswith("remat-report/")


def _not_a_report(name: str, found: str) -> BadGraph:
    return BadGraph.one(
        "not_a_report", name, found, "a report, remat-report/1", "write one with `remat plan MODEL -o FILE`"
    )


def format_of(path: Path) -> Format:
    """Graph format of a file's extension. Raises BadUsage."""
    name = path.name.lower()
    for format in FORMATS.values():
        if name.endswith(format.suffix):
            return format
    suffixes = ", ".join(format.suffix for format in FORMATS.values())
    if name.endswith((".mlir", ".mlirbc")):
        problem = "StableHLO is read, not written; write the report with -o, which has the order, or a graph as"
    else:
        problem = "unknown extension; use"
    raise BadUsage(f"{path}: {problem} one of {suffixes}", code="unknown_extension")


def write_graph(path: Path, graph: Graph) -> None:
    """Write the graph atomically in the format of the file's extension."""
    write_atomic(path, format_of(path).write(graph))


def to_json(value: object) -> str:
    """Indented JSON, for files and standard output."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
