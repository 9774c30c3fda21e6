"""Data of a plan's charts as binary columns, computed in a child process and read by the browser as typed arrays.

    u32 length │ header as JSON, padded │ column │ column │ ...       columns begin at multiples of eight bytes

The header is `{"meta": {...}, "columns": {name: {"type", "at", "length"}}}`; types are f64, i32, u32, u16, u8 and json,
all little endian; `at` is a byte offset from the first column. Values and nodes have their indices in the source graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
ALIGNED = 8
#: Kinds of bytes. An activation has the kind of the phase that produces it.
KINDS = ("parameter", "input", "constant", "state", "activation", "gradient", "update", "workspace")
BY_PHASE = {"forward": 4, "backward": 5, "update": 6}
WORKSPACE = KINDS.index("workspace")
#: Values of the column `again`: never recomputed; evicted, recomputed later; a recomputation.
RUN_ONCE, EVICTED, RECOMPUTED = 0, 1, 2


class SourceValue(msgspec.Struct, gc=False):
    """Fields of a document's value that charts use."""

    name: str
    role: str = "activation"


class SourceNode(msgspec.Struct, gc=False):
    """Fields of a document's node that charts use."""

    name: str
    op: str
    outputs: list[str]
    phase: str = "forward"


class SourceGraph(msgspec.Struct, gc=False):
    """Parts of a remat/1 document that charts use."""

    values: list[SourceValue]
    nodes: list[SourceNode]


class WorkspaceColumns(msgspec.Struct, gc=False):
    """Workspaces of tasks, by step."""

    step: list[int] = []
    bytes: list[int] = []
    offset: list[int] = []


class LayoutColumns(msgspec.Struct, gc=False):
    """Report section `layout`; empty for a plan without layout."""

    value: list[str] = []
    run: list[int] = []
    from_step: list[int] = []
    to_step: list[int] = []
    bytes: list[int] = []
    offset: list[int] = []
    workspace: WorkspaceColumns = msgspec.field(default_factory=WorkspaceColumns)


class TimelineColumns(msgspec.Struct, gc=False):
    """Report section `timeline`."""

    step_bytes: list[int]
    baseline_step_bytes: list[int]


class PlanSummary(msgspec.Struct, gc=False):
    """Fields of a report's plan that charts use."""

    order: list[tuple[str, int]]
    budget_bytes: int | None = None
    arena_bytes: int | None = None
    counts: str = "everything"
    offloaded: list[str] = []
    kept: list[str] = []


class ReportSummary(msgspec.Struct, gc=False):
    """Fields of a report that charts use."""

    plan: PlanSummary
    request: dict[str, Any] = {}
    runtime: str = "arena"
    device: str | dict[str, Any] = ""


def encode_columns(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], lists: Mapping[str, Sequence[str]]
) -> bytes:
    """Columns in one block of bytes; `lists` become JSON columns. Integers are exact up to 53 bits."""
    parts, described, at = [], {}, 0
    for name, array in arrays.items():
        kind = _smallest(array)
        data = array.astype(TYPES[kind]).tobytes()
        described[name] = {"type": kind, "at": at, "length": len(array)}
        parts.append(data + bytes(-len(data) % ALIGNED))
        at += len(parts[-1])
    for name, texts in lists.items():
        data = msgspec.json.encode(texts)
        described[name] = {"type": "json", "at": at, "length": len(data)}
        parts.append(data + bytes(-len(data) % ALIGNED))
        at += len(parts[-1])
    header = msgspec.json.encode({"meta": meta, "columns": described})
    header += b" " * (-(len(header) + 4) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def _smallest(array: np.ndarray) -> str:
    """Smallest type that holds all values, to keep the transfer small."""
    if array.dtype.kind == "f":
        return "f64"
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    limits = {kind: np.iinfo(TYPES[kind]) for kind in TYPES if kind != "f64"}
    return next((kind for kind, limit in limits.items() if limit.min <= low and high <= limit.max), "f64")


def decode_columns(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """(meta, columns) of an encoded block; columns are arrays or lists of strings."""
    begin = 4 + int.from_bytes(data[:4], "little")
    header = msgspec.json.decode(data[4:begin])
    columns: dict[str, Any] = {}
    for name, described in header["columns"].items():
        at, length = begin + described["at"], described["length"]
        if described["type"] == "json":
            columns[name] = msgspec.json.decode(data[at : at + length])
        else:
            column = np.frombuffer(data, TYPES[described["type"]], length, at)
            # Integers are widened, as sums may exceed the column's type.
            columns[name] = column if described["type"] == "f64" else column.astype(np.int64)
    return header["meta"], columns


def memory(figures: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Bytes of each step before and after, and one rectangle per buffer of the arena. O(steps + rectangles).

    Columns: `after`, `before` bytes per step; per rectangle, by its first step: `first`, `last` step (both inclusive),
    `offset`, `bytes`, `value` (-1: workspace), `run`, `kind`, `again` (see RUN_ONCE), `away` (offloaded). `names` is a
    separate block, so that charts can be drawn before it arrives.
    """
    plan = msgspec.json.decode(figures, type=ReportSummary).plan
    source = msgspec.json.decode(sections["source"], type=SourceGraph)
    layout = msgspec.json.decode(sections["layout"], type=LayoutColumns) if "layout" in sections else LayoutColumns()
    drawn = msgspec.json.decode(sections["timeline"], type=TimelineColumns)
    explained = msgspec.json.decode(sections.get("explain", b"{}"), type=dict[str, Any])
    columns = rectangles(plan, source, layout)
    meta = {
        "budget_bytes": plan.budget_bytes,
        "arena_bytes": plan.arena_bytes,
        "counts": plan.counts,
        "has_layout": "layout" in sections,
        "kinds": KINDS,
        "holders": {
            "after": [_held(row) for row in explained.get("holders", ())],
            "before": [_held(row) for row in explained.get("baseline_holders", ())],
        },
    }
    columns |= {
        "after": np.asarray(drawn.step_bytes, np.int64),
        "before": np.asarray(drawn.baseline_step_bytes, np.int64),
    }
    return encode_columns(meta, columns, {})


def names(figures: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Names for the indices of the other columns: `values`, `nodes`, and the `ops` of nodes.

    Also the task of each step after planning: `step_node` (-1: a copy), `step_run`.
    """
    order = msgspec.json.decode(figures, type=ReportSummary).plan.order
    source = msgspec.json.decode(sections["source"], type=SourceGraph)
    layout = msgspec.json.decode(sections["layout"], type=LayoutColumns) if "layout" in sections else LayoutColumns()
    nodes, ops = [node.name for node in source.nodes], [node.op for node in source.nodes]
    node_id = {name: n for n, name in enumerate(nodes)}
    steps = {
        "step_node": np.asarray([node_id.get(name, -1) for name, _ in order], np.int32),
        "step_run": np.asarray([run for _, run in order], np.int32),
    }
    return encode_columns({}, steps, {"values": _values(source, layout), "nodes": nodes, "ops": ops})


def _values(source: SourceGraph, layout: LayoutColumns) -> list[str]:
    """Names of the graph's values in order, then of buffers without a value in the graph."""
    return list(dict.fromkeys([*(value.name for value in source.values), *layout.value]))


def _held(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": row["value"], "bytes": row["bytes"]}


def _kinds(source: SourceGraph) -> np.ndarray:
    """uint8[values]: index in `KINDS`."""
    phase_of = {name: node.phase for node in source.nodes for name in node.outputs}
    kind_id = {kind: k for k, kind in enumerate(KINDS)}
    return np.asarray(
        [
            BY_PHASE.get(phase_of.get(value.name, "forward"), 4) if value.role == "activation" else kind_id[value.role]
            for value in source.values
        ],
        np.uint8,
    )


def rectangles(plan: PlanSummary, source: SourceGraph, layout: LayoutColumns) -> dict[str, np.ndarray]:
    """Columns of the address map, workspaces included, sorted by first step."""
    value_id = {name: v for v, name in enumerate(_values(source, layout))}
    kind_of, away = _kinds(source), set(plan.offloaded)
    kind_of = np.append(kind_of, np.full(len(value_id) - len(kind_of), BY_PHASE["forward"], np.uint8))
    value = np.asarray([value_id[name] for name in layout.value], np.int32)
    run = np.asarray(layout.run, np.int32)
    last_run = np.zeros(len(kind_of), np.int32)
    np.maximum.at(last_run, value, run)
    again = np.where(run > 0, RECOMPUTED, np.where(last_run[value] > 0, EVICTED, RUN_ONCE))
    space, many = layout.workspace, len(layout.workspace.step)
    columns: dict[str, np.ndarray] = {
        "first": np.asarray(layout.from_step + space.step, np.int32),
        "last": np.asarray(layout.to_step + space.step, np.int32),
        "offset": np.asarray(layout.offset + space.offset, np.int64),
        "bytes": np.asarray(layout.bytes + space.bytes, np.int64),
        "value": np.append(value, np.full(many, -1, np.int32)),
        "run": np.append(run, np.zeros(many, np.int32)),
        "kind": np.append(kind_of[value], np.full(many, WORKSPACE, np.uint8)),
        "again": np.append(again, np.zeros(many, np.int64)).astype(np.uint8),
        "away": np.asarray([name in away for name in layout.value] + [False] * many, np.uint8),
    }
    by = np.argsort(columns["first"], kind="stable")
    return {name: column[by] for name, column in columns.items()}
