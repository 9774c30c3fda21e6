"""Model, plan and graph files as the command line names them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from app.atomic_files import check_writable, write_atomic
from app.errors import BadUsage
from app.models.formats import FORMATS, Format
from graph.errors import BadGraph
from graph.ir import Graph
from graph.limits import Limits

STANDARD_INPUT = "-"


def demand_data_folder(folder: Path) -> None:
    """Raises BadUsage where there is no data folder of a service: a command that only looks makes none."""
    if not folder.is_dir():
        said = "no data folder is there; name the one that the service was given (--data, REMAT_DATA)"
        raise BadUsage(f"{folder}: {said}", code="no_data")


def read_bytes(name: str) -> bytes:
    """The bytes of a model or plan, `-` being standard input. Raises BadGraph past the limit, OSError."""
    most = Limits().document_bytes
    if name == STANDARD_INPUT:
        data = sys.stdin.buffer.read(most + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise BadGraph.one("too_large", name, f"more than {most} bytes", f"at most {most}", "send a smaller model")
    return data


def demand_writable(model: str, *paths: Path | None) -> None:
    """Returns where each of the paths can take a file of its own; told before a search, not after it.

    Raises BadUsage for standard output, the model itself or two answers at one place, CannotWrite.
    """
    taken: dict[Path, str] = {} if model == STANDARD_INPUT else {Path(model).resolve(): "the model"}
    for path in paths:
        if path is None:
            continue
        if str(path) == STANDARD_INPUT:
            raise BadUsage("-: name a file; on standard output the answer is with --json")
        check_writable(path)
        if other := taken.get(path.resolve()):
            raise BadUsage(f"{path}: that is {other}; name another file", code="conflicting_flags")
        taken[path.resolve()] = "where another answer goes"


def read_report(name: str) -> dict[str, Any]:
    """A report written by `remat plan -o`. Raises BadGraph when the file holds none."""
    return read_format(name, "remat-report/")


def read_format(name: str, *formats: str) -> dict[str, Any]:
    """A JSON object whose format begins with one of those given. Raises BadGraph when the file holds none."""
    try:
        found = msgspec.json.decode(read_bytes(name))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _not_a_report(name, str(error)) from error
    if not isinstance(found, dict) or not str(found.get("format", "")).startswith(formats):
        what = found.get("format", "an object without format") if isinstance(found, dict) else type(found).__name__
        raise _not_a_report(name, repr(what))
    return found


def is_report(document: object) -> bool:
    return isinstance(document, Mapping) and str(document.get("format", "")).startswith("remat-report/")


def _not_a_report(name: str, found: str) -> BadGraph:
    return BadGraph.one(
        "not_a_report", name, found, "a report, remat-report/1", "write one with `remat plan MODEL -o FILE`"
    )


def format_of(path: Path) -> Format:
    """The graph format a file's extension stands for. Raises BadUsage."""
    name = path.name.lower()
    for format in FORMATS.values():
        if name.endswith(format.suffix):
            return format
    suffixes = ", ".join(format.suffix for format in FORMATS.values())
    said = f"{path}: the extension says no format; end the name in one of {suffixes}"
    raise BadUsage(said, code="unknown_extension")


def write_graph(path: Path, graph: Graph) -> None:
    """Write the graph in the format of the file's extension, whole or not at all."""
    write_atomic(path, format_of(path).write(graph))


def to_json(value: object) -> str:
    """Indented JSON, as written to files and standard output."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
