"""What a plan's pictures are drawn from, as columns that a browser reads without parsing: made in a child process.

    u32 length │ header as JSON, padded │ column │ column │ ...       columns begin at multiples of eight bytes

The header is `{"meta": {...}, "columns": {name: {"type", "at", "length"}}}`; types are f64, i32, u32, u16, u8 and json,
all little endian; `at` counts from the first column. Values and nodes are numbered as in the graph that was planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "f64": "<f8"}
ALIGNED = 8
#: What bytes are for. An activation is of the phase that makes it.
KINDS = ("parameter", "input", "constant", "state", "activation", "gradient", "update", "workspace")
BY_PHASE = {"forward": 4, "backward": 5, "update": 6}
WORKSPACE = KINDS.index("workspace")
RUN_ONCE, EVICTED, RECOMPUTED = 0, 1, 2  # made once; given up and made again later; made again


class SourceValue(msgspec.Struct, gc=False):
    """What pictures need of a value of a document."""

    name: str
    role: str = "activation"


class SourceNode(msgspec.Struct, gc=False):
    """What pictures need of a node of a document."""

    name: str
    op: str
    outputs: list[str]
    phase: str = "forward"


class SourceGraph(msgspec.Struct, gc=False):
    """What pictures need of a document in rows."""

    values: list[SourceValue]
    nodes: list[SourceNode]


class WorkspaceColumns(msgspec.Struct, gc=False):
    """Where tasks work, by the step they run at."""

    step: list[int] = []
    bytes: list[int] = []
    offset: list[int] = []


class LayoutColumns(msgspec.Struct, gc=False):
    """The section `layout` of a report; empty where the plan was made without one."""

    value: list[str] = []
    run: list[int] = []
    from_step: list[int] = []
    to_step: list[int] = []
    bytes: list[int] = []
    offset: list[int] = []
    workspace: WorkspaceColumns = msgspec.field(default_factory=WorkspaceColumns)


class TimelineColumns(msgspec.Struct, gc=False):
    """The section `timeline` of a report."""

    step_bytes: list[int]
    baseline_step_bytes: list[int]


class PlanSummary(msgspec.Struct, gc=False):
    """What pictures need of a report's plan."""

    order: list[tuple[str, int]]
    budget_bytes: int | None = None
    arena_bytes: int | None = None
    counts: str = "everything"
    offloaded: list[str] = []
    kept: list[str] = []


class ReportSummary(msgspec.Struct, gc=False):
    """What pictures need of a report's figures."""

    plan: PlanSummary
    request: dict[str, Any] = {}
    runtime: str = "arena"
    device: str | dict[str, Any] = ""


def encode_columns(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], lists: Mapping[str, Sequence[str]]
) -> bytes:
    """The columns as one block of bytes; `lists` become columns of JSON. 53 bits of an integer arrive."""
    parts, said, at = [], {}, 0
    for name, array in arrays.items():
        kind = _smallest(array)
        data = array.astype(TYPES[kind]).tobytes()
        said[name] = {"type": kind, "at": at, "length": len(array)}
        parts.append(data + bytes(-len(data) % ALIGNED))
        at += len(parts[-1])
    for name, texts in lists.items():
        data = msgspec.json.encode(texts)
        said[name] = {"type": "json", "at": at, "length": len(data)}
        parts.append(data + bytes(-len(data) % ALIGNED))
        at += len(parts[-1])
    header = msgspec.json.encode({"meta": meta, "columns": said})
    header += b" " * (-(len(header) + 4) % ALIGNED)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def _smallest(array: np.ndarray) -> str:
    """The smallest type that has all the values: what arrives is drawn from as it is."""
    if array.dtype.kind == "f":
        return "f64"
    low, most = int(array.min(initial=0)), int(array.max(initial=0))
    limits = {kind: np.iinfo(TYPES[kind]) for kind in TYPES if kind != "f64"}
    return next((kind for kind, limit in limits.items() if limit.min <= low and most <= limit.max), "f64")


def decode_columns(data: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """(meta, columns) of what was packed: arrays, and lists of texts."""
    begin = 4 + int.from_bytes(data[:4], "little")
    header = msgspec.json.decode(data[4:begin])
    columns: dict[str, Any] = {}
    for name, said in header["columns"].items():
        at, length = begin + said["at"], said["length"]
        if said["type"] == "json":
            columns[name] = msgspec.json.decode(data[at : at + length])
        else:
            column = np.frombuffer(data, TYPES[said["type"]], length, at)
            columns[name] = column if said["type"] == "f64" else column.astype(np.int64)  # sums may be larger
    return header["meta"], columns


def memory(figures: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Bytes of each step before and after, and a rectangle for whatever lies in the arena. O(steps + rectangles).

    Columns: `after`, `before` bytes a step; per rectangle, by its first step: `first`, `last` step (both held),
    `offset`, `bytes`, `value` (-1: workspace), `run`, `kind`, `again`, `away` (offloaded). What all this is called,
    `names` says: pictures stand the sooner without.
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
    """What the numbers of the other columns are called: `values`, `nodes`, and the `ops` of nodes.

    And what runs at each step after: `step_node` (-1: a copy), `step_run`.
    """
    order = msgspec.json.decode(figures, type=ReportSummary).plan.order
    source = msgspec.json.decode(sections["source"], type=SourceGraph)
    layout = msgspec.json.decode(sections["layout"], type=LayoutColumns) if "layout" in sections else LayoutColumns()
    nodes, ops = [node.name for node in source.nodes], [node.op for node in source.nodes]
    node_id = {name: n for n, name in enumerate(nodes)}
    ran = {
        "step_node": np.asarray([node_id.get(name, -1) for name, _ in order], np.int32),
        "step_run": np.asarray([run for _, run in order], np.int32),
    }
    return encode_columns({}, ran, {"values": _values(source, layout), "nodes": nodes, "ops": ops})


def _values(source: SourceGraph, layout: LayoutColumns) -> list[str]:
    """Names of the values in their order, then of buffers whose value the graph has not."""
    return list(dict.fromkeys([*(value.name for value in source.values), *layout.value]))


def _held(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": row["value"], "bytes": row["bytes"]}


def _kinds(source: SourceGraph) -> np.ndarray:
    """uint8 per value: the index in `KINDS`."""
    phase_of = {name: node.phase for node in source.nodes for name in node.outputs}
    words = {kind: k for k, kind in enumerate(KINDS)}
    return np.asarray(
        [
            BY_PHASE.get(phase_of.get(value.name, "forward"), 4) if value.role == "activation" else words[value.role]
            for value in source.values
        ],
        np.uint8,
    )


def rectangles(plan: PlanSummary, source: SourceGraph, layout: LayoutColumns) -> dict[str, np.ndarray]:
    """The columns of the address map, by first step; workspaces among them."""
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
