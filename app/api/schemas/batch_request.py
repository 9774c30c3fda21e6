"""Parser of batch requests: graphs, axes (budgets, planners, seeds) and the fields that all items share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import TooLarge
from planner.errors import BadRequest, Finding
from planner.request.budget import parse_budget
from planner.request.field_parsers import MAX_FINDINGS, unknown_field
from planner.request.plan_request import FIELDS, PARSERS, parse_request

GRAPH_ID = re.compile(r"[0-9a-f]{64}")
#: Axis of a batch -> request field of an item.
AXES = {"budgets": "budget", "planners": "planner", "seeds": "seed"}
NOT_IN_BATCH = (*AXES.values(), "return")
MAX_PER_AXIS = 256  # budgets, planners or seeds
Parse = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Items: graphs x budgets x planners x seeds. An omitted axis is (None,), which sets no field."""

    graph_ids: tuple[str, ...]
    budgets: tuple[Any, ...]
    planners: tuple[str | None, ...]
    seeds: tuple[int | None, ...]
    fields: Mapping[str, Any]
    search_seconds: float  # time limit of one item

    @property
    def total(self) -> int:
        return len(self.graph_ids) * len(self.budgets) * len(self.planners) * len(self.seeds)

    def items(self) -> Iterator[tuple[str, Any, str | None, int | None]]:
        """(graph, budget, planner, seed) of every item, by number."""
        return itertools.product(self.graph_ids, self.budgets, self.planners, self.seeds)


def item_fields(fields: Mapping[str, Any], budget: Any, planner: str | None, seed: int | None) -> dict[str, Any]:
    """Fields of the plan request of one item; None omits a field."""
    own = {"budget": budget, "planner": planner, "seed": seed}
    return {**fields, **{name: given for name, given in own.items() if given is not None}}


def parse_batch(sent: Mapping[str, Any], max_items: int) -> BatchRequest:
    """The request in the body `sent`. Raises BadRequest with at most ten findings, TooLarge above `max_items` items."""
    findings: list[Finding] = []
    common = [name for name in FIELDS if name not in NOT_IN_BATCH]
    known = ("graph_ids", *AXES, *common)
    for name in sent:
        if name in ("graph", "graph_id"):
            findings.append(_unknown(name, "graph_ids", "post each graph, and list their ids"))
        elif name in AXES.values():
            findings.append(_unknown(name, f"{name}s", f"use {name}s: [...]"))
        elif name == "return":
            findings.append(_unknown(name, "no sections", "request sections from each plan"))
        elif name not in known:
            findings.append(unknown_field(name, name, known))
    graph_ids = distinct(sent.get("graph_ids"), "graph_ids", _graph_id, max_items, findings)
    if sent.get("graph_ids") is None:
        findings.append(Finding("bad_field", "graph_ids", "nothing", "ids of posted graphs", "post a graph first"))
    parsers: dict[str, Parse] = {"budgets": parse_budget, **{f"{n}s": PARSERS[n] for n in ("planner", "seed")}}
    axes = {axis: distinct(sent.get(axis), axis, parse, MAX_PER_AXIS, findings) for axis, parse in parsers.items()}
    budgets, planners, seeds = (axes[axis] or (None,) for axis in AXES)
    shared = {name: given for name, given in sent.items() if name in common}
    seconds = 0.0
    try:
        seconds = parse_request(item_fields(shared, budgets[0], planners[0], seeds[0])).search_seconds
    except BadRequest as error:
        findings.extend(error.findings)
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    request = BatchRequest(graph_ids or (), budgets, planners, seeds, shared, seconds)
    if request.total > max_items:
        finding = Finding(
            "too_many_items",
            "graph_ids",
            f"{request.total} items",
            f"at most {max_items}",
            "start several batches, or raise REMAT_BATCH_ITEMS",
        )
        raise TooLarge(str(finding), [finding], limit={"name": "REMAT_BATCH_ITEMS", "value": max_items})
    return request


def _unknown(name: str, expected: str, remedy: str) -> Finding:
    return Finding("unknown_field", name, f"{name}, which is no field of a batch", expected, remedy)


def _graph_id(given: Any, path: str) -> str:
    if not isinstance(given, str) or not GRAPH_ID.fullmatch(given):
        raise BadRequest.one("bad_field", path, repr(given)[:80], "64 hexadecimal digits", "use a posted graph")
    return given


def distinct(given: Any, name: str, parse: Parse, limit: int, findings: list[Finding]) -> tuple[Any, ...] | None:
    """Entries as given, 1 to `limit`, no two of which parse to the same; None if omitted or if any is invalid."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= limit:
        found = f"{len(given)} entries" if isinstance(given, list) else repr(given)[:80]
        too_long = isinstance(given, list) and len(given) > limit
        omit = "" if name == "graph_ids" else ", or omit the field"
        remedy = "start several batches" if too_long else f"give at least one entry, as a list{omit}"
        findings.append(Finding("bad_field", name, found, f"a list of 1 to {limit}", remedy))
        return None
    seen: dict[Any, int] = {}
    for i, entry in enumerate(given):
        path = f"{name}[{i}]"
        try:
            parsed = parse(entry, path)
        except BadRequest as error:
            findings.extend(error.findings)
            continue
        if parsed in seen:
            found = f"{entry!r}, equal to {name}[{seen[parsed]}]"[:200]
            findings.append(Finding("duplicate", path, found, "distinct entries", "remove one of them"))
        seen.setdefault(parsed, i)
    return tuple(given) if len(seen) == len(given) else None
