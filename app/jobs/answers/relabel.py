"""Relabel a stored report for an equivalent graph, which differs in names only, without a search.

stored ─────differentiate──▶ source ─╮ same shape?        ╭▶ report, field by field
requested ──differentiate──▶ source ─┴─▶ old → new names ─┴▶ source and rewritten graph
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import msgspec

from graph.formats.document.tensor_content import write_attributes
from graph.formats.native.writer import document, shape_hash
from graph.ir import walk
from graph.limits import Limits
from graph.transforms.replay import replay
from planner.formulation.training_graph import load_model, model_identity, training_graph
from planner.report import saved_report
from planner.request.curve_and_fit_request import SINGLE_REPORT_FIELDS
from planner.request.plan_request import FIELDS, parse_request

if TYPE_CHECKING:
    from graph.ir import Graph
    from planner.request.plan_request import Request

DIFFERENTIATE_LISTS = frozenset({"of", "with_respect_to", "no_gradient"})  # of value names in `differentiate`
#: Report keys that can be relabeled. Reports with other keys are not relabeled.
REPORT_KEYS = frozenset(
    {
        "format",
        "id",
        "model",
        "runtime",
        "device",
        "fits",
        "request",
        "baseline",
        "reference",
        "plan",
        "checked",
        "executed",
        "warnings",
        "elapsed",
    }
)
PLAN_KEYS = frozenset(
    {
        "status",
        "planner",
        "seed",
        "reproducible",
        "stopped",
        "budget_bytes",
        "max_overhead",
        "counts",
        "peak_bytes",
        "peak_step",
        "seconds",
        "overhead",
        "peak_by",
        "arena_bytes",
        "saved_bytes",
        "saved",
        "bound",
        "gap",
        "smallest_budget_bytes",
        "smallest_budget_proven",
        "binding_node",
        "order",
        "kept",
        "recomputed",
        "choices",
        "offloaded",
    }
)
SECTION_KEYS = frozenset({"timeline", "layout", "explain", "source", "graph", "sketch"})
NAME_FREE_TEXTS = frozenset({"", "arena", "not asked for", "stopped"})  # constants, even if a node has the same name
Json = dict[str, Any]
Renamer = Callable[[str], str]


class CannotRelabel(Exception):
    """The request or report cannot be relabeled."""


def form_hash(graph: Graph) -> str | None:
    """SHA-256 of the graph without the names of nodes and values, with the graph name and annotations.

    Equal for graphs that differ in those names only; the order of nodes matters. None if an annotation or attribute
    contains a name of the graph, because it may refer to that node or value.
    """
    names, annotations, attributes = set[str](), list[Any](), list[Any]()
    for each in walk(graph):
        notes = [each.annotations, *(value.annotations for value in each.values)]
        notes += [node.annotations for node in each.nodes]
        annotations += [write_attributes(note) if note else None for note in notes]
        attributes += [write_attributes(node.attributes) for node in each.nodes if node.attributes]
        names.update(value.name for value in each.values)
        names.update(node.name for node in each.nodes)
    if not names.isdisjoint(_strings([annotations, attributes])):
        return None
    return hashlib.sha256(
        msgspec.json.encode([graph.name, shape_hash(graph), annotations], order="deterministic")
    ).hexdigest()


def _strings(document: Any) -> Iterable[str]:
    """Every string in a JSON document, keys included."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield key
            yield from _strings(value)
    elif isinstance(document, list | tuple):
        for value in document:
            yield from _strings(value)


class _Value(msgspec.Struct):
    name: str


class _Values(msgspec.Struct):
    values: list[_Value]


def relabel_fields(
    fields: Mapping[str, Any], requested: Callable[[], bytes], stored: Callable[[], bytes]
) -> Json | None:
    """The fields of a request on the requested graph, relabeled for the stored graph of the same form; else None.

    The documents are loaded only if a field names values.
    """

    @cache
    def table() -> Renamer:
        own, others = requested(), stored()
        if "recompute" in fields and b'"bodies"' in own:  # may name values inside bodies
            raise CannotRelabel("recompute")
        decoded = (msgspec.json.decode(document, type=_Values).values for document in (own, others))
        return _renaming(*([value.name for value in values] for values in decoded))

    try:
        return {field: _relabel_field(field, given, lambda old: table()(old)) for field, given in fields.items()}
    except CannotRelabel:
        return None


def _relabel_field(field: str, given: Any, name: Renamer) -> Any:
    if given is None or given is False or (given is True and field == "differentiate"):
        return given
    names_values = FIELDS[field].kind.names_values
    if names_values == "no" and (field == "return" or field not in SINGLE_REPORT_FIELDS):  # others add sections
        return given
    if names_values == "all":
        return name(given) if isinstance(given, str) else [name(one) for one in given]
    if field == "inputs":
        return {name(value): shape for value, shape in given.items()}
    if field == "differentiate" and isinstance(given, Mapping):
        return {key: _differentiate_field(key, value, name) for key, value in given.items()}
    raise CannotRelabel(field)


def _differentiate_field(key: str, given: Any, name: Renamer) -> Any:
    if key in DIFFERENTIATE_LISTS and isinstance(given, list):
        return [name(one) for one in given]
    if given is None or key in ("unreachable", "update"):
        return given
    raise CannotRelabel(key)


def _renaming(before: Sequence[str], after: Sequence[str]) -> Renamer:
    table = dict(zip(before, after, strict=True))

    def name(old: Any) -> str:
        if not isinstance(old, str) or old not in table:
            raise CannotRelabel(old)
        return table[old]

    return name


@dataclass(frozen=True, eq=False, slots=True)
class PreparedSolve:
    """A parsed request: the training graph to plan, and the notes of its preparation."""

    request: Request
    source: Graph
    notes: list[str]

    @classmethod
    def of(cls, payload: Mapping[str, Any], limits: Mapping[str, int]) -> Self:
        """As `pipeline.solve` begins. Raises BadGraph, BadRequest."""
        request = parse_request(payload["fields"])
        source, notes = training_graph(payload["data"], load_model(payload["data"], request, Limits(**limits)), request)
        return cls(request, source, notes)


def relabel_report(
    requested: PreparedSolve, stored: PreparedSolve, figures: bytes, sections: Mapping[str, bytes]
) -> tuple[Json, dict[str, Any]] | None:
    """(figures, sections) of the stored report, relabeled for the requested graph; None: not possible.

    Raises IllegalPlan if the result does not verify on the requested graph, which is a defect.
    """
    begun = time.monotonic()
    report = msgspec.json.decode(figures)
    parts = {name: msgspec.json.decode(data) for name, data in sections.items()}
    plan = report["plan"]
    known = report.keys() <= REPORT_KEYS and plan.keys() <= PLAN_KEYS and parts.keys() <= SECTION_KEYS
    if not known or plan["choices"] or plan["offloaded"] or shape_hash(requested.source) != shape_hash(stored.source):
        return None
    try:
        relabeled, sections_relabeled = _Relabeler(requested, stored).relabel(report, parts)
    except CannotRelabel:
        return None
    relabeled["elapsed"] = dict.fromkeys(report["elapsed"], 0.0) | {"rewrite": round(time.monotonic() - begun, 6)}
    saved_report.verify(relabeled | sections_relabeled)
    return relabeled, sections_relabeled


class _Relabeler:
    """Maps names of the stored source to names of the requested one."""

    def __init__(self, requested: PreparedSolve, stored: PreparedSolve):
        self.requested, self.stored = requested, stored
        own, others = requested.source, stored.source
        self.node = _renaming([node.name for node in others.nodes], [node.name for node in own.nodes])
        self.value = _renaming([value.name for value in others.values], [value.name for value in own.values])

    def relabel(self, report: Json, parts: dict[str, Any]) -> tuple[Json, dict[str, Any]]:
        """(figures, sections). Raises CannotRelabel."""
        node, value, plan = self.node, self.value, report["plan"]
        source, graph = self._graphs(plan["order"], parts)
        plan = plan | {
            "order": [[node(name), run] for name, run in plan["order"]],
            "kept": [value(name) for name in plan["kept"]],
            "recomputed": [node(name) for name in plan["recomputed"]],
            "binding_node": _or_none(node)(plan["binding_node"]),
        }
        executed = report["executed"] | {key: self._text(report["executed"][key]) for key in ("how", "why")}
        figures = report | {
            "model": model_identity(self.requested.source),
            "request": dict(self.requested.request.given),
            "plan": plan,
            "executed": executed,
            "warnings": self._warnings(report["warnings"]),
        }
        sections: dict[str, Any] = {"source": source, "graph": graph, "sketch": parts.get("sketch")}
        if "timeline" in parts:
            sections["timeline"] = parts["timeline"] | {
                name: self._row(parts["timeline"][name], value=value) for name in ("holder", "baseline_holder")
            }
        if "layout" in parts:
            sections["layout"] = parts["layout"] | {"value": [value(name) for name in parts["layout"]["value"]]}
        if "explain" in parts:
            sections["explain"] = self._explain(parts["explain"])
        return figures, {name: sections[name] for name in parts}

    def _graphs(self, order: Sequence[Any], parts: Mapping[str, Any]) -> tuple[Json, Json]:
        """(requested source, its rewritten graph), after the stored pair was reproduced. Raises CannotRelabel."""
        source, rewritten = self.stored.source, parts["graph"]
        number = {node.name: n for n, node in enumerate(source.nodes)}
        runs = [number[name] for name, _ in order]
        producer = {name: place for place, node in enumerate(rewritten["nodes"]) for name in node["outputs"]}
        leaves = zip(source.outputs, rewritten["outputs"], strict=True)
        # A copy has a new name unless it is the one whose storage is an output.
        returned = {
            v: producer[name] if name == source.values[v].name else -1 for v, name in leaves if name in producer
        }
        if document(source) != parts["source"] or document(replay(source, runs, returned)) != rewritten:
            raise CannotRelabel("graph")
        return document(self.requested.source), document(replay(self.requested.source, runs, returned))

    def _explain(self, section: Json) -> Json:
        node, value = self.node, self.value
        return section | {
            "recomputed": [self._row(row, node=node) for row in section["recomputed"]],
            "binding": self._row(section["binding"], node=_or_none(node), next_node=_or_none(node)),
            "holders": [self._row(row, value=value) for row in section["holders"]],
            "baseline_holders": [self._row(row, value=value) for row in section["baseline_holders"]],
        }

    def _row(self, row: Json | None, **names: Callable[[Any], Any]) -> Json | None:
        return None if row is None else row | {key: name(row[key]) for key, name in names.items()}

    def _warnings(self, warnings: list[str]) -> list[str]:
        """Preparation notes of the requested source, then the other warnings."""
        count = len(self.stored.notes)
        if warnings[:count] != self.stored.notes:
            raise CannotRelabel("warnings")
        return [*self.requested.notes, *map(self._text, warnings[count:])]

    def _text(self, text: str) -> str:
        """The text unchanged. Raises CannotRelabel if it contains a name that differs between the graphs."""
        if text not in NAME_FREE_TEXTS:
            for name in self._changed():
                if name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
                    raise CannotRelabel(name)
        return text

    def _changed(self) -> set[str]:
        """Names of the stored source that differ in the requested one."""
        own, others = self.requested.source, self.stored.source
        nodes = {old.name for new, old in zip(own.nodes, others.nodes, strict=True) if new.name != old.name}
        return nodes | {old.name for new, old in zip(own.values, others.values, strict=True) if new.name != old.name}


def _or_none(name: Renamer) -> Callable[[Any], Any]:
    return lambda old: None if old is None else name(old)
