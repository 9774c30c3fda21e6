"""Packing of buffers with given lifetimes (JSON or CSV input) into one arena.

With a common alignment and no pinned buffer: the layout `best`. Otherwise one by one, each at the lowest aligned
address that is free throughout its lifetime, pinned buffers first, in random orders around the good ones.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from planner.errors import BadRequest, Finding
from planner.layout import randomized
from planner.layout.best_fit import MAX_PAIRWISE, candidate_offsets, place_one_by_one, smallest_arena
from planner.layout.canonical_search import packing_within
from planner.layout.storages import Storages
from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Score
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS, SEARCH_TIME, nullable, whole
from planner.request.field_parsers import MAX_FINDINGS, Parser, bad_field, parse_fields
from planner.verify.checker import check_packing

#: Maximum of sizes, times, alignments and offsets, so that no sum overflows.
MAX_NUMBER = 2**40
MAX_BUFFERS = 100_000
#: Maximum number of buffers if some are pinned or alignments differ.
MAX_MIXED_BUFFERS = 10_000
COLUMNS = ("lower", "upper", "size", "alignment", "offset")
#: Share of the time for a packing within a capacity, before the smallest arena is searched for.
CAPACITY_PART = 0.8
UNPINNED = -1  # offset of a buffer that is not pinned


@dataclass(frozen=True, eq=False, slots=True)
class PackingProblem:
    """r buffers, each live from `lower` until before `upper`."""

    lower: np.ndarray  # int64[r]
    upper: np.ndarray  # int64[r]
    size: np.ndarray  # int64[r]  bytes
    alignment: np.ndarray  # int64[r]
    offset: np.ndarray  # int64[r]  required offset, or UNPINNED
    capacity: int | None = None  # bytes of the arena; None: minimise it
    seconds: float = DEFAULT_SEARCH_SECONDS

    def storages(self) -> Storages:
        """The storages over the points in time at which a buffer starts or ends."""
        points = np.unique(np.concatenate([self.lower, self.upper]))
        none = np.zeros(0, np.int64)
        return Storages(
            np.searchsorted(points, self.lower),
            np.searchsorted(points, self.upper),
            self.upper - self.lower,
            self.size,
            none,
            none,
            none,
            max(len(points) - 1, 0),
        )


@dataclass(frozen=True, eq=False, slots=True)
class PackingResult:
    """Offsets of the buffers. `status`: proven (no arena is smaller), found, or over_capacity."""

    offsets: np.ndarray  # int64[r]
    arena_bytes: int
    bound_bytes: int  # lower bound on the arena
    status: str

    def document(self) -> dict[str, Any]:
        """The JSON form of the result."""
        return {
            "offsets": self.offsets.tolist(),
            "arena_bytes": self.arena_bytes,
            "bound_bytes": self.bound_bytes,
            "status": self.status,
        }


def pack(buffers: PackingProblem, cancel: threading.Event | None = None) -> PackingResult:
    """The smallest arena found in time, or the first within the capacity; accepted by the checker."""
    storages = buffers.storages()
    monitor = Monitor(_no_score, buffers.seconds, cancel_event=cancel or threading.Event())
    pinned_end = int((buffers.offset + buffers.size)[buffers.offset != UNPINNED].max(initial=0))
    bound = max(int(storages.profile().max(initial=0)), pinned_end)
    is_plain = len(np.unique(buffers.alignment)) <= 1 and (buffers.offset == UNPINNED).all()
    offset = _plain(buffers, storages, monitor) if is_plain else _apart(buffers, storages, bound, monitor)
    arena = storages.arena(offset)
    lower, upper, size, alignment = (
        column.tolist() for column in (buffers.lower, buffers.upper, buffers.size, buffers.alignment)
    )
    check_packing(lower, upper, size, alignment, offset.tolist(), arena)
    if buffers.capacity is not None and arena > buffers.capacity:
        return PackingResult(offset, arena, bound, "over_capacity")
    return PackingResult(offset, arena, bound, "proven" if arena == bound else "found")


def _plain(buffers: PackingProblem, storages: Storages, monitor: Monitor) -> np.ndarray:
    """Offsets for one common alignment and no pinned buffer."""
    unit = int(buffers.alignment.max(initial=1))
    rounded = replace(storages, size=-(-storages.size // unit) * unit)
    if buffers.capacity is not None:
        swept = smallest_arena(rounded, candidate_offsets(rounded), monitor, enough=buffers.capacity)
        if rounded.arena(swept) <= buffers.capacity:
            return swept
        part = monitor.child(_no_score, CAPACITY_PART)  # the rest is for the smallest arena
        if (within := packing_within(rounded, buffers.capacity, part.should_stop)) is not None:
            return within
    tries = randomized.randomized_offsets(rounded, monitor)
    return smallest_arena(rounded, tries, monitor, enough=buffers.capacity or 0)


def _apart(buffers: PackingProblem, storages: Storages, bound: int, monitor: Monitor) -> np.ndarray:
    """Offsets for pinned buffers or differing alignments."""
    in_order = partial(place_one_by_one, storages, alignment=buffers.alignment, pinned=buffers.offset)

    length = (storages.stop - storages.start).astype(float)
    keys = (buffers.size, buffers.size * length, length, buffers.alignment)
    orders = [np.lexsort((storages.start, -storages.size, -key)) for key in keys]
    first = [in_order(order) for order in orders[: 1 if len(length) > MAX_PAIRWISE else None]]
    best = min(first, key=storages.arena)
    tries = chain(first, randomized.neighbour_offsets(storages, best, bound, in_order))
    return smallest_arena(storages, tries, monitor, enough=max(bound, buffers.capacity or 0))


def _no_score(order: Order) -> Score:
    raise NotImplementedError("layouts do not score orders")


def parse_buffers(fields: Mapping[str, Any]) -> PackingProblem:
    """The packing problem of the request fields; `alignment` is the default of buffers without their own.

    Raises BadRequest with one finding per fault, ten at most.
    """
    findings: list[Finding] = []
    parsed = parse_fields(fields, REQUEST_FIELDS, findings)
    if "buffers" not in fields:
        findings.append(Finding("missing_field", "buffers", "nothing", "a list of buffers", "add the buffers to pack"))
    alignment = parsed.get("alignment", 1)
    rows, ids = parsed.get("buffers", ()), set[Any]()
    table = np.zeros((len(rows), len(COLUMNS)), np.int64)
    for i, row in enumerate(rows):
        if len(findings) >= MAX_FINDINGS:
            break
        table[i] = _numbers(row, f"buffers[{i}]", alignment, ids, findings)
    findings = findings or _collisions(table)
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    lower, upper, size, aligned, offset = table.T.copy()
    return PackingProblem(lower, upper, size, aligned, offset, parsed.get("capacity"), parse_seconds(fields))


def parse_seconds(fields: Mapping[str, Any]) -> float:
    """The search time of the request, in seconds. Raises BadRequest."""
    return float(SEARCH_TIME.parse(fields.get("search_seconds", DEFAULT_SEARCH_SECONDS), "search_seconds"))


def _numbers(row: Any, path: str, alignment: int, ids: set[Any], findings: list[Finding]) -> list[int]:
    """The numbers of one buffer in the order of `COLUMNS`; adds its faults to the findings."""
    known = len(findings)
    if not isinstance(row, Mapping):
        findings.extend(bad_field(path, row, "an object with lower, upper and size").findings)
        return [0] * len(COLUMNS)
    own = parse_fields(row, BUFFER_FIELDS, findings, f"{path}.")
    findings.extend(
        Finding("missing_field", f"{path}.{name}", "nothing", "a whole number", "add it")
        for name in ("lower", "upper", "size")
        if name not in row
    )
    if own.get("id") is not None and own["id"] in ids:
        findings.append(Finding("duplicate_name", f"{path}.id", repr(own["id"])[:80], "each id once", "rename it"))
    ids.add(own.get("id"))
    if len(findings) > known:
        return [0] * len(COLUMNS)
    numbers = {"alignment": alignment} | own
    if numbers["upper"] <= numbers["lower"]:
        findings.extend(bad_field(f"{path}.upper", numbers["upper"], f"more than lower, {numbers['lower']}").findings)
    if numbers.get("offset") is None:
        numbers["offset"] = UNPINNED
    elif numbers["offset"] % numbers["alignment"]:
        expected = f"a multiple of its alignment, {numbers['alignment']}"
        findings.extend(bad_field(f"{path}.offset", numbers["offset"], expected).findings)
    return [numbers[name] for name in COLUMNS]


def _id(given: Any, path: str) -> str | int | None:
    if isinstance(given, bool) or not isinstance(given, (str, int, NoneType)):
        raise bad_field(path, given, "a string or a whole number")
    return given


def _rows(given: Any, path: str) -> Sequence[Any]:
    if not isinstance(given, (list, tuple)):
        raise bad_field(path, given, "a list of buffers")
    if len(given) > MAX_BUFFERS:
        found, expected = f"{len(given)} buffers", f"at most {MAX_BUFFERS}"
        raise BadRequest.one("too_many_buffers", path, found, expected, "send fewer")
    return given


REQUEST_FIELDS: dict[str, Parser] = {
    "buffers": _rows,
    "capacity": nullable(whole(0)).parse,
    "alignment": whole(1, MAX_NUMBER).parse,
    "search_seconds": SEARCH_TIME.parse,
}
BUFFER_FIELDS: dict[str, Parser] = {
    "id": _id,
    "lower": whole(-MAX_NUMBER, MAX_NUMBER).parse,
    "upper": whole(-MAX_NUMBER, MAX_NUMBER).parse,
    "size": whole(0, MAX_NUMBER).parse,
    "alignment": whole(1, MAX_NUMBER).parse,
    "offset": nullable(whole(0, MAX_NUMBER)).parse,
}


def _collisions(table: np.ndarray) -> list[Finding]:
    """Findings for pinned buffers that overlap, and for more mixed buffers than can be placed one by one."""
    lower, upper, size, alignment, offset = table.T
    pinned = np.flatnonzero(offset != UNPINNED)
    if len(table) > MAX_MIXED_BUFFERS and (len(pinned) or len(np.unique(alignment)) > 1):
        condition = "pinned offsets or differing alignments"
        found, expected = f"{len(table)} buffers with {condition}", f"at most {MAX_MIXED_BUFFERS}"
        return [Finding("too_many_buffers", "buffers", found, expected, "send fewer")]
    findings = []
    for k, i in enumerate(pinned.tolist()):
        others = pinned[:k]
        meets = (lower[others] < upper[i]) & (upper[others] > lower[i])
        meets &= (offset[others] < offset[i] + size[i]) & (offset[others] + size[others] > offset[i])
        for j in others[meets].tolist():
            found = f"{offset[i]}, which overlaps buffers[{j}] in time and space"
            findings.append(
                Finding("pinned_overlap", f"buffers[{i}].offset", found, "bytes of its own", "move one of them")
            )
        if len(findings) >= MAX_FINDINGS:
            break
    return findings
