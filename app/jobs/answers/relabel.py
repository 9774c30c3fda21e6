"""A plan told again for a graph that differs in names alone, from a report that is stored: nothing is searched.

theirs ──differentiated──▶ source ─╮ alike?           ╭▶ the report, place by place
ours ────differentiated──▶ source ─┴──▶ theirs → ours ┴▶ source and rewritten graph
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
from planner.request.plan_request import parse_request

if TYPE_CHECKING:
    from graph.ir import Graph
    from planner.request.plan_request import Request

VALUE_LIST_FIELDS = frozenset({"checkpoints", "keep", "recompute"})  # fields that list values
DIFFERENTIATE_LISTS = frozenset({"of", "with_respect_to", "no_gradient"})  # those of `differentiate`
#: Fields that name nothing of the graph. A field that stands nowhere here is not said in other names.
NAME_FREE_FIELDS = frozenset(
    {
        "budget",
        "max_overhead",
        "fits",
        "fraction_of",
        "counts",
        "order",
        "phases",
        "runtime",
        "recipe",
        "reserve",
        "planner",
        "search_seconds",
        "iterations",
        "seed",
        "device",
        "loss_chunks",
        "fuse_attention",
        "batch",
        "dims",
        "unknown_checkpoints",
        "layout",
        "execute",
        "return",
    }
)
#: What a report has that is told here; one with more is not.
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
NAME_FREE_TEXTS = frozenset({"", "arena", "not asked for", "stopped"})  # words of ours, whatever nodes are called
Json = dict[str, Any]
Renamer = Callable[[str], str]


class CannotRelabel(Exception):
    """It cannot be said in other names."""


def form_hash(graph: Graph) -> str | None:
    """SHA-256 of the graph without names of nodes and values, with its own and its annotations.

    Equal for graphs that differ in those names alone; of the same nodes in another order it is another. None where an
    annotation or attribute says a name of the graph, which may mean what has the name.
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


def _strings(said: Any) -> Iterable[str]:
    """Every text in a document, keys included."""
    if isinstance(said, str):
        yield said
    elif isinstance(said, Mapping):
        for key, value in said.items():
            yield key
            yield from _strings(value)
    elif isinstance(said, list | tuple):
        for value in said:
            yield from _strings(value)


class _Value(msgspec.Struct):
    name: str


class _Values(msgspec.Struct):
    values: list[_Value]


def relabel_fields(fields: Mapping[str, Any], ours: Callable[[], bytes], theirs: Callable[[], bytes]) -> Json | None:
    """The fields of a request about our graph as they would be about theirs, of the same form; else None.

    Documents are asked for where a field names values.
    """

    @cache
    def table() -> Renamer:
        own, others = ours(), theirs()
        if "recompute" in fields and b'"bodies"' in own:  # it names what is inside them too
            raise CannotRelabel("recompute")
        decoded = (msgspec.json.decode(document, type=_Values).values for document in (own, others))
        return _renaming(*([value.name for value in values] for values in decoded))

    try:
        return {field: _field(field, given, lambda old: table()(old)) for field, given in fields.items()}
    except CannotRelabel:
        return None


def _field(field: str, given: Any, name: Renamer) -> Any:
    if field in NAME_FREE_FIELDS or given is None or given is False or (given is True and field == "differentiate"):
        return given
    if field == "loss":
        return name(given)
    if field in VALUE_LIST_FIELDS:
        return [name(one) for one in given]
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
    """One question: what would be planned, and what was done to get there."""

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
    ours: PreparedSolve, theirs: PreparedSolve, figures: bytes, sections: Mapping[str, bytes]
) -> tuple[Json, dict[str, Any]] | None:
    """(figures, sections) of the report about their question, told of ours; None where that cannot be said.

    Raises IllegalPlan where what comes out does not hold for our graph, which is a defect.
    """
    begun = time.monotonic()
    report = msgspec.json.decode(figures)
    parts = {name: msgspec.json.decode(data) for name, data in sections.items()}
    plan = report["plan"]
    known = report.keys() <= REPORT_KEYS and plan.keys() <= PLAN_KEYS and parts.keys() <= SECTION_KEYS
    if not known or plan["choices"] or plan["offloaded"] or shape_hash(ours.source) != shape_hash(theirs.source):
        return None
    try:
        figures_told, told = _Relabeler(ours, theirs).told(report, parts)
    except CannotRelabel:
        return None
    figures_told["elapsed"] = dict.fromkeys(report["elapsed"], 0.0) | {"rewrite": round(time.monotonic() - begun, 6)}
    saved_report.verify(figures_told | told)
    return figures_told, told


class _Relabeler:
    """What is said of their source, said of ours."""

    def __init__(self, ours: PreparedSolve, theirs: PreparedSolve):
        self.ours, self.theirs = ours, theirs
        own, others = ours.source, theirs.source
        self.node = _renaming([node.name for node in others.nodes], [node.name for node in own.nodes])
        self.value = _renaming([value.name for value in others.values], [value.name for value in own.values])

    def told(self, report: Json, parts: dict[str, Any]) -> tuple[Json, dict[str, Any]]:
        """(figures, sections). Raises Untold."""
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
            "model": model_identity(self.ours.source),
            "request": dict(self.ours.request.given),
            "plan": plan,
            "executed": executed,
            "warnings": self._warnings(report["warnings"]),
        }
        told: dict[str, Any] = {"source": source, "graph": graph, "sketch": parts.get("sketch")}
        if "timeline" in parts:
            told["timeline"] = parts["timeline"] | {
                name: self._row(parts["timeline"][name], value=value) for name in ("holder", "baseline_holder")
            }
        if "layout" in parts:
            told["layout"] = parts["layout"] | {"value": [value(name) for name in parts["layout"]["value"]]}
        if "explain" in parts:
            told["explain"] = self._explained(parts["explain"])
        return figures, {name: told[name] for name in parts}

    def _graphs(self, order: Sequence[Any], parts: Mapping[str, Any]) -> tuple[Json, Json]:
        """Our source and it rewritten, once theirs come out as they are stored. Raises Untold."""
        source, rewritten = self.theirs.source, parts["graph"]
        number = {node.name: n for n, node in enumerate(source.nodes)}
        runs = [number[name] for name, _ in order]
        maker = {name: place for place, node in enumerate(rewritten["nodes"]) for name in node["outputs"]}
        leaves = zip(source.outputs, rewritten["outputs"], strict=True)
        # A copy that is not the one its storage leaves with has not kept its name.
        handed_out = {v: maker[name] if name == source.values[v].name else -1 for v, name in leaves if name in maker}
        if document(source) != parts["source"] or document(replay(source, runs, handed_out)) != rewritten:
            raise CannotRelabel("graph")
        return document(self.ours.source), document(replay(self.ours.source, runs, handed_out))

    def _explained(self, said: Json) -> Json:
        node, value = self.node, self.value
        return said | {
            "recomputed": [self._row(row, node=node) for row in said["recomputed"]],
            "binding": self._row(said["binding"], node=_or_none(node), next_node=_or_none(node)),
            "holders": [self._row(row, value=value) for row in said["holders"]],
            "baseline_holders": [self._row(row, value=value) for row in said["baseline_holders"]],
        }

    def _row(self, row: Json | None, **names: Callable[[Any], Any]) -> Json | None:
        return None if row is None else row | {key: name(row[key]) for key, name in names.items()}

    def _warnings(self, said: list[str]) -> list[str]:
        """What was done to get to the source, in our words; then what else was said."""
        begun = len(self.theirs.notes)
        if said[:begun] != self.theirs.notes:
            raise CannotRelabel("warnings")
        return [*self.ours.notes, *map(self._text, said[begun:])]

    def _text(self, said: str) -> str:
        """The text, which says none of their names that is not ours too. Raises Untold."""
        if said not in NAME_FREE_TEXTS:
            for name in self._changed():
                if name in said and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said):
                    raise CannotRelabel(name)
        return said

    def _changed(self) -> set[str]:
        """What is called so in their source, and not in ours."""
        own, others = self.ours.source, self.theirs.source
        nodes = {old.name for new, old in zip(own.nodes, others.nodes, strict=True) if new.name != old.name}
        return nodes | {old.name for new, old in zip(own.values, others.values, strict=True) if new.name != old.name}


def _or_none(name: Renamer) -> Callable[[Any], Any]:
    return lambda said: None if said is None else name(said)
