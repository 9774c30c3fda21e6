"""What is asked of a batch: graphs, what varies over its items, and the fields they share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import TooLarge
from planner.errors import BadRequest, Finding
from planner.request.budget import parse_budget
from planner.request.field_parsers import MAX_FINDINGS
from planner.request.plan_request import PARSERS, parse_request

GRAPH_ID = re.compile(r"[0-9a-f]{64}")
#: What varies -> the field of an item that it becomes.
AXES = {"budgets": "budget", "planners": "planner", "seeds": "seed"}
MAX_PER_AXIS = 256  # budgets, planners or seeds
Parse = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """graphs x budgets x planners x seeds; an axis of which nothing was named is one None, and sets no field."""

    graph_ids: tuple[str, ...]
    budgets: tuple[Any, ...]
    planners: tuple[str | None, ...]
    seeds: tuple[int | None, ...]
    fields: Mapping[str, Any]
    search_seconds: float  # of one item

    @property
    def total(self) -> int:
        return len(self.graph_ids) * len(self.budgets) * len(self.planners) * len(self.seeds)

    def items(self) -> Iterator[tuple[str, Any, str | None, int | None]]:
        """(graph, budget, planner, seed) of every item in the order of its number."""
        return itertools.product(self.graph_ids, self.budgets, self.planners, self.seeds)


def item_fields(fields: Mapping[str, Any], budget: Any, planner: str | None, seed: int | None) -> dict[str, Any]:
    """The fields of the one plan an item asks for; what was not named is left out, as anybody would."""
    own = {"budget": budget, "planner": planner, "seed": seed}
    return {**fields, **{name: given for name, given in own.items() if given is not None}}


def parse_batch(sent: Mapping[str, Any], most: int) -> BatchRequest:
    """What a body asks for. Raises BadRequest with ten findings at most, TooLarge past `most` items."""
    findings: list[Finding] = []
    for name in sent:
        if name in ("graph", "graph_id"):
            findings.append(_instead(name, "graph_ids", "post each graph, and list their ids"))
        elif name in AXES.values():
            findings.append(_instead(name, f"{name}s", f"say {name}s: [...]"))
        elif name == "return":
            findings.append(_instead(name, "no such field in a batch", "ask each plan for its sections"))
    graph_ids = distinct(sent.get("graph_ids"), "graph_ids", _graph_id, most, findings)
    if sent.get("graph_ids") is None:
        said = Finding("bad_field", "graph_ids", "nothing", "ids of graphs that were posted", "post a graph first")
        findings.append(said)
    parsers: dict[str, Parse] = {"budgets": parse_budget, **{f"{n}s": PARSERS[n] for n in ("planner", "seed")}}
    axes = {axis: distinct(sent.get(axis), axis, parse, MAX_PER_AXIS, findings) for axis, parse in parsers.items()}
    budgets, planners, seeds = (axes[axis] or (None,) for axis in AXES)
    left_out = {"graph", "graph_id", "graph_ids", "return", *AXES, *AXES.values()}
    shared = {name: given for name, given in sent.items() if name not in left_out}
    seconds = 0.0
    try:
        seconds = parse_request(item_fields(shared, budgets[0], planners[0], seeds[0])).search_seconds
    except BadRequest as error:
        findings.extend(error.findings)
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    asked = BatchRequest(graph_ids or (), budgets, planners, seeds, shared, seconds)
    if asked.total > most:
        finding = Finding(
            "too_many_items",
            "graph_ids",
            f"{asked.total} items",
            f"at most {most}",
            "ask for several batches, or raise REMAT_BATCH_ITEMS",
        )
        raise TooLarge(str(finding), [finding], limit={"name": "REMAT_BATCH_ITEMS", "value": most})
    return asked


def _instead(name: str, expected: str, remedy: str) -> Finding:
    return Finding("unknown_field", name, f"{name}, which no batch has", expected, remedy)


def _graph_id(given: Any, path: str) -> str:
    if not isinstance(given, str) or not GRAPH_ID.fullmatch(given):
        raise BadRequest.one("bad_field", path, repr(given)[:80], "64 hexadecimal digits", "name a posted graph")
    return given


def distinct(given: Any, name: str, parse: Parse, most: int, findings: list[Finding]) -> tuple[Any, ...] | None:
    """The entries as they were sent, no two of which mean the same; None where nothing was named, or some is wrong."""
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= most:
        found = f"{len(given)} of them" if isinstance(given, list) else repr(given)[:80]
        many = isinstance(given, list) and len(given) > most
        remedy = "ask for several batches" if many else "name at least one, or leave it out"
        findings.append(Finding("bad_field", name, found, f"a list of 1 to {most}", remedy))
        return None
    seen: dict[Any, int] = {}
    for place, entry in enumerate(given):
        path = f"{name}[{place}]"
        try:
            meant = parse(entry, path)
        except BadRequest as error:
            findings.extend(error.findings)
            continue
        if meant in seen:
            found = f"{entry!r}, which {name}[{seen[meant]}] says"[:200]
            findings.append(Finding("duplicate", path, found, "each once", "leave one of them out"))
        seen.setdefault(meant, place)
    return tuple(given) if len(seen) == len(given) else None
